package project

import (
	"cmp"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"agentsh/internal/paths"
)

// Root returns the root of the project around a directory: the nearest directory whose
// policy the user trusts, else the root of the git repository, else the directory. The
// first one counts more, because commands can make repositories and remove them. dir is
// absolute and has no links. The search ends at a mount point, at the user's homes and at
// the directories that hold them: what lies there is more than one project. It passes over
// a repository that another user made. See safe.directory in git-config(1).
func Root(dir string, trust Trust, homes ...string) string {
	start, ok := describe(dir)
	if !ok {
		return dir
	}
	for i, home := range homes {
		if real, err := filepath.EvalSymlinks(home); err == nil {
			homes[i] = real
		}
	}
	found := ""
	for d := dir; ; d = filepath.Dir(d) {
		here, ok := describe(d)
		holds := func(home string) bool { return home != "" && paths.Within(home, d) }
		if !ok || here.Dev != start.Dev || d == "/" || slices.ContainsFunc(homes, holds) {
			return cmp.Or(found, dir)
		}
		if trust.Has(d) {
			return d
		}
		if git, ok := repository(d); ok && found == "" && git.Uid == here.Uid && ours(git, start) {
			found = d
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

// Homes returns the homes of the user who runs this program: the one of its environment,
// and the one of the user database, which callers cannot set.
func Homes() []string {
	var out []string
	if home := Home(); home != "" {
		out = append(out, home)
	}
	if home := HomeOf(os.Geteuid()); home != "" {
		out = append(out, home)
	}
	return out
}

// HomeOf returns the home of a user in the user database; empty: it has none.
func HomeOf(uid int) string {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil || !filepath.IsAbs(u.HomeDir) || filepath.Clean(u.HomeDir) == "/" {
		return ""
	}
	return filepath.Clean(u.HomeDir)
}

// Session returns the session whose command runs this program; empty: none. It makes
// errors clear. It protects nothing, because commands choose their variables.
func Session() string { return os.Getenv("AGENTSH_SESSION") }
