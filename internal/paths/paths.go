// Package paths answers questions about names of files.
package paths

import (
	"path/filepath"
	"strings"
)

// Within reports whether a name is a directory or lies below it. Both are absolute and
// clean.
func Within(name, dir string) bool {
	return dir == "/" && strings.HasPrefix(name, "/") || name == dir || strings.HasPrefix(name, dir+"/")
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
