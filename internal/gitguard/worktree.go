package gitguard

import (
	"io/fs"
	"path"
	"strings"
)

// git writes committed files into its work tree. It does not write to a path with a
// component .git. It writes to every other path, also into a git directory: git would
// then run a committed hook.

// A symbolic link could later make a path without that component refer to a path with
// it. Therefore three rules apply. No link that commands make refers to a path through
// a .git ([CheckAnyLink]). A .git file refers only to a directory in a .git. Only a
// repository in a .git names a work tree.

// CheckAnyLink checks the text of a symbolic link that is anywhere in a tree and not
// called .git itself.
func CheckAnyLink(text string) []Problem {
	if !hasDotGit(text) {
		return nil
	}
	return []Problem{
		{
			Reason: "a symbolic link may not lead into a .git: git would follow it into a git directory",
			Hint:   "copy the file, or use git worktree add",
		},
	}
}

// writesTo reports whether git could write committed files into a git directory when
// it works in a work tree. Both paths are absolute and clean.
func writesTo(tree, dir string) bool {
	return beneath(dir, tree) && !hasDotGit(strings.TrimPrefix(dir, tree))
}

// beneath reports whether a path is a directory or below it.
func beneath(name, dir string) bool {
	return strings.HasPrefix(name+"/", strings.TrimSuffix(dir, "/")+"/")
}

func hasDotGit(name string) bool {
	for part := range strings.SplitSeq(name, "/") {
		if IsDotGit(part) {
			return true
		}
	}
	return false
}

// checkWorkTree returns why the path of a work tree is refused; empty: it is allowed.
// The path must be below the roots. It must contain no git directory and be in none.
func checkWorkTree(value string, at Location) string {
	if !at.inside(value) {
		return "the path must stay below " + strings.Join(at.Roots, " or ")
	}
	if !hasDotGit(at.Dir) {
		return "only a repository in a .git names its work tree"
	}
	tree := at.absolute(value)
	if hasDotGit(tree) || writesTo(tree, at.Dir) || beneath(tree, at.Dir) {
		return "git would write committed files into a git directory"
	}
	return ""
}

// absolute returns the absolute path of a name in a file in at.Dir.
func (at Location) absolute(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(at.Dir, name)
}

// Nested returns the problem of an entry called .git among the files that git reads in
// a repository: git uses its directory as a work tree.
func Nested() Problem {
	return Problem{Reason: "a git directory is no work tree: git would write committed files into it", Hint: "make the repository elsewhere"}
}

// NotAFile returns the problem of a FIFO, socket or device instead of a regular file.
func NotAFile() Problem {
	return Problem{Reason: "git reads a file here, and this is none", Hint: "use another name"}
}

func isSpecial(mode fs.FileMode) bool {
	return mode&(fs.ModeNamedPipe|fs.ModeSocket|fs.ModeDevice) != 0
}

// Special reports whether a special file is not allowed in a repository, by its name
// relative to the git directory. git blocks on a FIFO. Sockets belong to git's own
// programs, for example fsmonitor--daemon.ipc.
func Special(rel string, fifo bool) bool { return Guarded(rel) || fifo && Reads(rel) }
