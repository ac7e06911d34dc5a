// Package paths answers questions about names of files.
package paths

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Within reports whether a name is a directory or lies below it. Both are absolute and
// clean.
func Within(name, dir string) bool {
	return dir == "/" && strings.HasPrefix(name, "/") || name == dir || strings.HasPrefix(name, dir+"/")
}

// Here is the current directory. Its name is that of PWD where that is a clean name of it;
// empty: it was removed.
func Here() string {
	here, err := os.Getwd()
	if err == nil && filepath.Clean(here) == here {
		return here
	}
	if here, err = syscall.Getwd(); err != nil {
		return ""
	}
	return here
}

// Resolve follows the links of a name, as far as it exists.
func Resolve(name string) string {
	name = filepath.Clean(name)
	if real, err := filepath.EvalSymlinks(name); err == nil {
		return real
	}
	if dir := filepath.Dir(name); dir != name {
		return filepath.Join(Resolve(dir), filepath.Base(name))
	}
	return name
}
