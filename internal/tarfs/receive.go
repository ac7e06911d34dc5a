package tarfs

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"

	"agentsh/internal/rootfs"
	"agentsh/internal/wire"
)

// PartialSuffix is the end of the name of a directory with an incomplete tree.
const PartialSuffix = ".partial"

// Receive unpacks r into a fresh directory. When every entry has matched the manifest,
// it publishes the directory as name beneath parent by rename. name must be one path
// component that does not exist. On an error name does not appear. With KeepPartial
// the files that arrived, complete or in part, stay as name.partial, and the manifest
// lists the entries that arrived complete; otherwise the files are removed.
func Receive(ctx context.Context, parent *os.Root, name string, r io.Reader, opts ReceiveOptions) (wire.Manifest, error) {
	if !fs.ValidPath(name) || name == "." || path.Base(name) != name {
		return wire.Manifest{}, fmt.Errorf("receive: %q is not one path component", name)
	}
	if err := requireAbsent(parent, name); err != nil {
		return wire.Manifest{}, fmt.Errorf("receive: %w", err)
	}
	staging, m, err := stage(ctx, parent, cmp.Or(opts.Staging, newStaging()), r, opts.UnpackOptions)
	if err == nil {
		err = parent.Rename(staging, name)
	}
	if err == nil {
		return m, nil
	}
	err = fmt.Errorf("receive %s: %w", name, err)
	if staging == "" {
		return m, err
	}
	if !opts.KeepPartial {
		return m, errors.Join(err, removeAll(parent, staging))
	}
	if absent := requireAbsent(parent, name+PartialSuffix); absent != nil {
		return m, errors.Join(err, absent, removeAll(parent, staging))
	}
	return m, errors.Join(err, parent.Rename(staging, name+PartialSuffix))
}

// ReceiveOptions are the options of [Receive].
type ReceiveOptions struct {
	UnpackOptions
	Staging string // name in parent of the directory that is filled; empty: a new one
}

// Install unpacks r beneath a hidden directory in dir. When every entry has matched
// the manifest, it moves the content into dir. Directories merge. Files and links
// replace files and links, each by one rename. Nothing is moved if a directory would
// replace a file or a file a directory. An interrupted install leaves dir unchanged or
// with some of the new files, each of them complete.
func Install(ctx context.Context, dir *os.Root, r io.Reader, opts UnpackOptions) (wire.Manifest, error) {
	staging, m, err := stage(ctx, dir, newStaging(), r, opts)
	if staging != "" {
		defer func() { _ = removeAll(dir, staging) }()
	}
	if err != nil {
		return m, fmt.Errorf("install: %w", err)
	}
	moves, err := planMoves(dir, staging, ".")
	if err != nil {
		return m, fmt.Errorf("install: %w", err)
	}
	for _, name := range moves {
		if err := dir.Rename(path.Join(staging, name), name); err != nil {
			return m, fmt.Errorf("install: %w", err)
		}
	}
	return m, nil
}

func newStaging() string { return ".agentsh-incoming-" + rand.Text() }

// stage unpacks r into a new directory in parent. The returned name is empty if there
// is nothing to remove.
func stage(ctx context.Context, parent *os.Root, staging string, r io.Reader, opts UnpackOptions) (string, wire.Manifest, error) {
	if err := parent.Mkdir(staging, 0o700); err != nil {
		return "", wire.Manifest{}, err
	}
	sub, err := parent.OpenRoot(staging)
	if err != nil {
		return staging, wire.Manifest{}, err
	}
	defer release(sub)
	m, err := Unpack(ctx, sub, r, opts)
	return staging, m, err
}

// planMoves lists the renames that move the content of staging/at to at. It performs
// none.
func planMoves(dir *os.Root, staging, at string) ([]string, error) {
	entries, err := fs.ReadDir(rootfs.New(dir), path.Join(staging, at))
	if err != nil {
		return nil, err
	}
	var moves []string
	for _, e := range entries {
		name := path.Join(at, e.Name())
		old, err := dir.Lstat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			moves = append(moves, name)
		case err != nil:
			return nil, err
		case old.IsDir() && e.IsDir():
			below, err := planMoves(dir, staging, name)
			if err != nil {
				return nil, err
			}
			moves = append(moves, below...)
		case old.IsDir() || e.IsDir():
			return nil, refuse(name, "a directory and something else meet")
		default:
			moves = append(moves, name)
		}
	}
	return moves, nil
}

func requireAbsent(parent *os.Root, name string) error {
	_, err := parent.Lstat(name)
	if err == nil {
		return fmt.Errorf("%q: %w", name, fs.ErrExist)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeAll removes a tree whose directories may lack write permission.
func removeAll(parent *os.Root, name string) error {
	err := parent.RemoveAll(name)
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		return err
	}
	walk := fs.WalkDir(rootfs.New(parent), name, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = parent.Chmod(p, 0o700)
		}
		return err
	})
	return errors.Join(walk, parent.RemoveAll(name))
}
