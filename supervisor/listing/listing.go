// Package listing finds what changed in a directory by comparing two lists of its files. It
// stands for the change record of a file server in sessions that have none. It sees no
// renames, and nothing that was undone in between. Two changes that keep the size of a file, within
// one tick of the kernel's clock (1 to 10 ms), look like one.
package listing

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"agentsh/internal/wire"
)

// maxFiles bounds the files of one list.
const maxFiles = 1_000_000

// file is what tells a file from what it was. The kernel sets the time of the last change of
// an inode with every change of its content and attributes, and no call sets it back: inode(7).
type file struct {
	inode, device uint64
	size, changed int64
	mode          fs.FileMode
}

// same reports whether nothing happened to a file. The entries of a directory are listed
// themselves, so that its times do not count.
func (f file) same(old file) bool {
	if f.mode.IsDir() && old.mode.IsDir() {
		return f.mode == old.mode
	}
	return f == old
}

// Record is the change record of a directory. Safe for concurrent use.
type Record struct {
	root *os.Root

	mu   sync.Mutex
	base map[string]file // by path below the directory
}

// Open lists a directory. The record begins now. The caller closes it.
func Open(dir string) (*Record, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("change record: %w", err)
	}
	r := &Record{root: root}
	if r.base, err = r.list("."); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return r, nil
}

// Close ends the record. It may be called on a nil receiver.
func (r *Record) Close() error {
	if r == nil {
		return nil
	}
	return r.root.Close()
}

// list lists what is at a path and below it, without the directory itself. It follows no link.
func (r *Record) list(name string) (map[string]file, error) {
	out := map[string]file{}
	err := fs.WalkDir(r.root.FS(), name, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it has gone meanwhile
		}
		if err != nil {
			return err
		}
		info, err := r.root.Lstat(p)
		if errors.Is(err, fs.ErrNotExist) || err == nil && p == "." {
			return nil
		}
		if err != nil {
			return err
		}
		if len(out) >= maxFiles {
			return fmt.Errorf("there are more than %d files", maxFiles)
		}
		st := info.Sys().(*syscall.Stat_t)
		out[p] = file{inode: st.Ino, device: st.Dev, size: st.Size, changed: st.Ctim.Nano(), mode: info.Mode()}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("change record: list %s: %w", filepath.Join(r.root.Name(), name), err)
	}
	return out, nil
}

// Accept takes what is at a path now, and at the directories above it, for unchanged: the
// supervisor itself wrote it. The path is relative to the directory.
func (r *Record) Accept(name string) error {
	name = path.Clean(name)
	now, err := r.list(name)
	if err != nil {
		return err
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if info, err := r.root.Lstat(dir); err == nil && info.IsDir() {
			now[dir] = file{mode: info.Mode()}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.base, func(p string, _ file) bool {
		return name == "." || p == name || strings.HasPrefix(p, name+"/")
	})
	maps.Copy(r.base, now)
	return nil
}

// Changes are the files that were created, changed and deleted, sorted by path.
func (r *Record) Changes() ([]wire.Change, error) {
	now, err := r.list(".")
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []wire.Change
	for name, f := range now {
		old, was := r.base[name]
		switch {
		case !was:
			out = append(out, wire.Change{Path: wire.Name(name), Kind: wire.Created})
		case !f.same(old):
			out = append(out, wire.Change{Path: wire.Name(name), Kind: wire.Modified})
		}
	}
	for name := range r.base {
		if _, is := now[name]; !is {
			out = append(out, wire.Change{Path: wire.Name(name), Kind: wire.Deleted})
		}
	}
	slices.SortFunc(out, func(a, b wire.Change) int { return strings.Compare(string(a.Path), string(b.Path)) })
	return out, nil
}
