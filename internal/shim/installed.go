package shim

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// File identifies one state of a file. See stat(2).
type File struct{ Dev, Ino, Size, Mtime, Ctime uint64 }

// fileOf returns the identity of a file with this status.
func fileOf(st *unix.Stat_t) File {
	return File{st.Dev, st.Ino, uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano())}
}

// Installed remembers the manifest of this machine while no file that matters changes. It
// is safe for concurrent use.
type Installed struct {
	mu       sync.Mutex
	manifest File
	shells   map[string]installed // by absolute path; nil: their sessions are their own
}

// installed is a shim with its original.
type installed struct {
	program  File
	real     string
	original File
}

var errChanged = errors.New("a file of the shim has changed")

// Shares returns an error unless a program that runs is a shim, and the shells of the shims
// share a session. manifest is the manifest that the program has seen.
func (i *Installed) Shares(manifest, program File, path string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.manifest == manifest && i.shells[path].check(program, path) == nil {
		return nil
	}
	if err := i.read(); err != nil {
		return err
	}
	if i.manifest != manifest {
		return errChanged
	}
	if i.shells == nil {
		return errors.New("the shells share no session")
	}
	return i.shells[path].check(program, path)
}

// check compares a shim with what the disk has now.
func (s installed) check(program File, path string) error {
	if s.real == "" {
		return fmt.Errorf("%s is no shim", path)
	}
	if now, err := identify(path); err != nil || now != s.program || now != program {
		return errors.Join(err, errChanged)
	}
	if now, err := identify(s.real); err != nil || now != s.original {
		return errors.Join(err, errChanged)
	}
	return nil
}

// read reads the manifest, and the files that it names.
func (i *Installed) read() error {
	i.manifest, i.shells = File{}, nil
	before, err := identify("/" + manifest)
	if err != nil {
		return err
	}
	session, err := Session("/")
	if err != nil {
		return err
	}
	shells, err := Shells("/")
	if err != nil {
		return err
	}
	found := map[string]installed{}
	for _, s := range shells {
		one := installed{real: "/" + s.Real}
		if one.program, err = identify("/" + s.Path); err != nil {
			return err
		}
		if one.original, err = identify(one.real); err != nil {
			return err
		}
		found["/"+s.Path] = one
	}
	if after, err := identify("/" + manifest); err != nil || after != before {
		return errors.Join(err, errChanged)
	}
	i.manifest = before
	if session == Shared {
		i.shells = found
	}
	return nil
}

func identify(name string) (File, error) {
	var st unix.Stat_t
	if err := unix.Lstat(name, &st); err != nil {
		return File{}, fmt.Errorf("%s: %w", name, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return File{}, fmt.Errorf("%s is no file", name)
	}
	return fileOf(&st), nil
}
