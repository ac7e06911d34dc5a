package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"unicode/utf8"

	linediff "github.com/rogpeppe/go-internal/diff"
	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// maxCompared is the largest file whose lines are compared, in bytes.
const maxCompared = 1 << 20

// Sides open the content of changed files. fs.ErrNotExist: there was none.
type Sides struct {
	Before, After func(path string) (io.ReadCloser, error)
}

// Lines returns the lines in which a file differs, as a unified diff, or why there are none.
func (s Sides) Lines(c wire.Change) (lines, why string, err error) {
	old := c.Path
	if c.From != "" {
		old = c.From
	}
	before, beforeWhy, err := readSide(s.Before, string(old))
	if err != nil {
		return "", "", err
	}
	after, afterWhy, err := readSide(s.After, string(c.Path))
	if err != nil {
		return "", "", err
	}
	if afterWhy != "" {
		return "", afterWhy, nil
	}
	if beforeWhy != "" {
		return "", beforeWhy, nil
	}
	return string(linediff.Diff("a/"+wire.EncodeName(string(old)), before, "b/"+wire.EncodeName(string(c.Path)), after)), "", nil
}

// readSide reads one side of a comparison. A file that is not there is empty.
func readSide(open func(string) (io.ReadCloser, error), path string) (data []byte, why string, err error) {
	f, err := open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if errors.Is(err, ErrNoPrevious) {
		return nil, "its old content was not kept", nil
	}
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	data, err = io.ReadAll(io.LimitReader(f, maxCompared+1))
	switch {
	case err != nil:
		return nil, "", err
	case len(data) > maxCompared:
		return nil, "larger than 1 MiB", nil
	case !utf8.Valid(data) || bytes.IndexByte(data, 0) >= 0:
		return nil, wire.BinaryFile, nil
	}
	return data, "", nil
}

// InWorkspace opens regular files of a workspace, whatever links lie in it.
func InWorkspace(dir string) func(string) (io.ReadCloser, error) {
	return func(path string) (io.ReadCloser, error) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer func() { _ = root.Close() }() // opened for reading
		info, err := root.Lstat(filepath.FromSlash(path))
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s: no regular file: %w", path, fs.ErrNotExist)
		}
		return root.OpenFile(filepath.FromSlash(path), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	}
}

// Since opens the content that files had when the session began. The record of its changes says which
// were not there.
func (s *Session) Since(list []wire.Change) func(string) (io.ReadCloser, error) {
	created := map[string]bool{}
	for _, c := range list {
		created[string(c.Path)] = created[string(c.Path)] || c.Kind == wire.Created
	}
	return func(path string) (io.ReadCloser, error) {
		if created[path] {
			return nil, fs.ErrNotExist
		}
		return s.Previous(path)
	}
}
