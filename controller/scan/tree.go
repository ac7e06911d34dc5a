package scan

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
)

// Tree scans the files of a directory that an agent reads without being asked,
// or all files. It follows links as far as fsys permits, and leaves out Git's
// directory except its configuration. It calls each with the findings of one
// file and returns the number of scanned files. A file that cannot be read is
// an error.
func (s *Scanner) Tree(ctx context.Context, fsys fs.FS, all bool, each func([]Finding)) (int, error) {
	return s.walk(ctx, fsys, func(name string) (Kind, bool) {
		kind, context := Classify(name)
		return kind, context || all
	}, each)
}

// OutputTree scans every file of a directory as output of a sandbox.
func (s *Scanner) OutputTree(ctx context.Context, fsys fs.FS, each func([]Finding)) (int, error) {
	return s.walk(ctx, fsys, func(string) (Kind, bool) { return Output, true }, each)
}

// walk scans the files that want selects.
func (s *Scanner) walk(ctx context.Context, fsys fs.FS, want func(name string) (Kind, bool), each func([]Finding)) (int, error) {
	files := 0
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil && name != "." && s.leftOut(err) {
			return fs.SkipDir
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path.Base(path.Dir(name)) == ".git" {
				return fs.SkipDir
			}
			return nil
		}
		if path.Base(path.Dir(name)) == ".git" && path.Base(name) != "config" {
			return nil
		}
		kind, wanted := want(name)
		if !wanted {
			return nil
		}
		found, err := s.file(ctx, fsys, name, kind)
		if errors.Is(err, errNotFile) || err != nil && s.leftOut(err) {
			return nil
		}
		if err != nil {
			return err
		}
		files++
		each(found)
		return nil
	})
	return files, err
}

// leftOut reports errors of files that may not be read.
func (s *Scanner) leftOut(err error) bool {
	return s.options.Unreadable && errors.Is(err, fs.ErrPermission)
}

var errNotFile = errors.New("not a regular file")

// file scans one file. A link that leads out of the tree or nowhere, and a
// special file, give [errNotFile]: an agent cannot read them from the
// repository either.
func (s *Scanner) file(ctx context.Context, fsys fs.FS, name string, kind Kind) ([]Finding, error) {
	info, err := fs.Stat(fsys, name)
	if link, linkErr := fs.Lstat(fsys, name); err != nil && linkErr == nil && link.Mode()&fs.ModeSymlink != 0 {
		return nil, errNotFile
	}
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errNotFile
	}
	f, err := fsys.Open(name)
	if err != nil {
		return nil, fmt.Errorf("scan: %w", err)
	}
	defer func() { _ = f.Close() }()
	return s.Text(ctx, name, kind, f)
}
