// Package image finds the root file system of a container image. The operator
// says where it is: a directory, or an archive that is extracted once into a
// cache.
//
// image.go calls archive.go, which opens archives and layouts, and extract.go,
// which writes their files.
package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Config says where images are.
type Config struct {
	Places   map[string]string // paths by the names that harnesses use
	Given    []string          // names of those that the command line has
	Cache    string            // absolute path of the directory of extracted images
	Required bool              // an image without a path is an error
}

// Root is a root file system. The zero Root is none.
type Root struct {
	Name   string // in the harness
	Path   string // that the operator gave, absolute
	Dir    string // its directory, absolute and without links
	Digest string // of an archive or layout, "sha256:" and hex; empty for a directory
}

// Open returns the root file system of an image. An archive or a layout is
// extracted first, unless the cache has it already.
func (c Config) Open(ctx context.Context, name string) (Root, error) {
	root := Root{Name: name, Path: c.Places[name]}
	info, err := os.Stat(root.Path)
	if err != nil {
		return Root{}, fmt.Errorf("image %s: %w", name, err)
	}
	source := opener(nil)
	switch {
	case info.Mode().IsRegular():
		root.Digest, source, err = openArchive(root.Path)
	case info.IsDir() && isLayout(root.Path):
		root.Digest, source, err = openLayout(root.Path)
	case !info.IsDir():
		err = errors.New("neither a directory nor an archive")
	}
	root.Dir = root.Path
	if err == nil && source != nil {
		root.Dir, err = c.extracted(ctx, root.Digest, source)
	}
	if err == nil {
		root.Dir, err = filepath.EvalSymlinks(root.Dir)
	}
	if err == nil && root.Dir == "/" {
		err = errors.New("the root of this machine is no image")
	}
	if err != nil {
		return Root{}, fmt.Errorf("image %s: %s: %w", name, root.Path, err)
	}
	return root, nil
}

// searched are the directories in which commands find their programs. They are
// those of the supervisor's default PATH.
var searched = []string{
	"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/go/bin",
}

// Find returns the path of a program in the image. A name with a slash is a path
// in the image.
func (r Root) Find(program string) (string, error) {
	names := []string{program}
	if !strings.Contains(program, "/") {
		names = nil
		for _, dir := range searched {
			names = append(names, path.Join(dir, program))
		}
	}
	for _, name := range names {
		at, err := r.resolve(name)
		if err != nil {
			continue
		}
		if info, err := os.Lstat(at); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return name, nil
		}
	}
	return "", fmt.Errorf("the image has no program %s", program)
}

// maxLinks bounds the symbolic links on one path, as the kernel does.
const maxLinks = 40

// resolve returns the place of a path of the image on this machine. Links are
// followed as inside the image: they never lead out of it.
func (r Root) resolve(name string) (string, error) {
	at, rest := "/", strings.Split(name, "/")
	for links := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		next := path.Join(at, part) // ".." of the root is the root
		info, err := os.Lstat(filepath.Join(r.Dir, next))
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("%s: too many links", name)
		}
		target, err := os.Readlink(filepath.Join(r.Dir, next))
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			at = "/"
		}
		rest = append(strings.Split(target, "/"), rest...)
	}
	return filepath.Join(r.Dir, at), nil
}
