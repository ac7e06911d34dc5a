// Package rootfs provides an [os.Root] as an [fs.FS] whose names may contain any
// bytes. [os.Root.FS] refuses names that are not UTF-8, although files can have such
// names.
package rootfs

import (
	"io/fs"
	"os"
	"slices"
	"strings"
)

// FS is a file system below a root. Its methods follow no symbolic link out of the
// root.
type FS struct{ root *os.Root }

var (
	_ fs.ReadDirFS  = FS{}
	_ fs.ReadFileFS = FS{}
	_ fs.ReadLinkFS = FS{}
	_ fs.StatFS     = FS{}
)

// New returns the file system below root. The caller closes root afterwards.
func New(root *os.Root) FS { return FS{root} }

// Open implements [fs.FS].
func (f FS) Open(name string) (fs.File, error) {
	file, err := f.root.Open(name)
	if err != nil {
		return nil, err // otherwise the interface would contain a nil *os.File
	}
	return file, nil
}

// ReadDir implements [fs.ReadDirFS]: the entries are sorted by name.
func (f FS) ReadDir(name string) ([]fs.DirEntry, error) {
	dir, err := f.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	list, err := dir.ReadDir(-1)
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, err
}

// ReadFile implements [fs.ReadFileFS].
func (f FS) ReadFile(name string) ([]byte, error) { return f.root.ReadFile(name) }

// ReadLink implements [fs.ReadLinkFS].
func (f FS) ReadLink(name string) (string, error) { return f.root.Readlink(name) }

// Stat implements [fs.StatFS].
func (f FS) Stat(name string) (fs.FileInfo, error) { return f.root.Stat(name) }

// Lstat implements [fs.ReadLinkFS].
func (f FS) Lstat(name string) (fs.FileInfo, error) { return f.root.Lstat(name) }
