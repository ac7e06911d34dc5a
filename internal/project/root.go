package project

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Root returns the root of the git repository around a directory, else the directory.
// dir is absolute and has no links. The search ends at a mount point, at home and at
// the directories that hold home: what lies there is more than one project. It passes
// over a repository that another user made. See safe.directory in git-config(1).
func Root(dir, home string) string {
	start, ok := describe(dir)
	if !ok {
		return dir
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	for d := dir; ; d = filepath.Dir(d) {
		here, ok := describe(d)
		if !ok || here.Dev != start.Dev || d == "/" || home != "" && (home+"/" == d+"/" || strings.HasPrefix(home, d+"/")) {
			return dir
		}
		if git, ok := repository(d); ok && ours(git, start) && ours(here, start) {
			return d
		}
	}
}

// ours reports whether a file belongs to this user, or to the owner of where the search
// began.
func ours(file, start syscall.Stat_t) bool {
	return int(file.Uid) == os.Geteuid() || file.Uid == start.Uid
}

// repository looks for the .git of a working tree: a directory with a HEAD, or the file
// of a linked working tree.
func repository(dir string) (syscall.Stat_t, bool) {
	git := filepath.Join(dir, ".git")
	st, ok := describe(git)
	if !ok {
		return st, false
	}
	if st.Mode&syscall.S_IFMT == syscall.S_IFDIR {
		_, ok = describe(filepath.Join(git, "HEAD"))
	}
	return st, ok
}

// describe is lstat(2).
func describe(name string) (st syscall.Stat_t, ok bool) {
	return st, syscall.Lstat(name, &st) == nil
}

// Home returns the home of the user who runs this program; empty: it has none.
func Home() string {
	home := os.Getenv("HOME")
	if !filepath.IsAbs(home) || filepath.Clean(home) == "/" {
		return ""
	}
	return filepath.Clean(home)
}

// Session returns the session whose command runs this program; empty: none. It makes
// errors clear. It protects nothing, because commands choose their variables.
func Session() string { return os.Getenv("AGENTSH_SESSION") }
