package gitguard

// Suspect reports whether a path with these two successive components can belong to a
// repository on some file system. It is fast, and false for most paths.
func Suspect(parent, name string) bool {
	if IsDotGit(name) {
		return true
	}
	name = fold(name)
	return name == "head" || Completes(name) || MayBeGuarded(fold(parent), name)
}
