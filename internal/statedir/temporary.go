package statedir

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Temporary is a file or a directory anywhere on this machine that its process makes for a time. After a process that was
// killed, [Dir.SweepTemporary] removes it.
type Temporary struct {
	Path string
	note *os.File // locked
}

// Temporary notes a file or a directory, before the caller makes it: path begins with prefix, and random letters follow.
func (s Dir) Temporary(prefix string) (*Temporary, error) {
	path, err := filepath.Abs(prefix + rand.Text())
	if err != nil {
		return nil, err
	}
	unlock, err := s.Lock() // else a sweep may come before the note has its lock
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := os.MkdirAll(s.state.Temporary(), 0o700); err != nil {
		return nil, err
	}
	note, err := TakeLock(filepath.Join(s.state.Temporary(), rand.Text()), unix.LOCK_EX)
	if err != nil {
		return nil, err
	}
	t := &Temporary{path, note}
	if _, err := note.WriteString(path + "\x00"); err != nil {
		return nil, errors.Join(fmt.Errorf("note a temporary file: %w", err), t.Keep())
	}
	return t, nil
}

// Keep says that the file stays, or is gone. A second call does nothing.
func (t *Temporary) Keep() error {
	if t.note == nil {
		return nil
	}
	err := errors.Join(os.Remove(t.note.Name()), t.note.Close())
	t.note = nil
	return err
}

// Remove removes the file, with everything below it. After Keep it does nothing.
func (t *Temporary) Remove() error {
	if t.note == nil {
		return nil
	}
	if err := RemoveTree(t.Path); err != nil {
		return err // a sweep tries again
	}
	return t.Keep()
}

// SweepTemporary removes the temporary files of processes that were killed, and returns their paths. With dryRun it
// removes nothing.
func (s Dir) SweepTemporary(dryRun bool) (found []string, err error) {
	notes, err := s.leftNotes()
	for _, note := range notes {
		path, failed := sweep(note, dryRun)
		if path != "" {
			found = append(found, path)
		}
		err = errors.Join(err, failed)
	}
	return found, err
}

// leftNotes locks the notes of processes that have gone.
func (s Dir) leftNotes() (left []*os.File, err error) {
	unlock, err := s.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	notes, err := os.ReadDir(s.state.Temporary())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, n := range notes {
		if note, err := TakeLock(filepath.Join(s.state.Temporary(), n.Name()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			left = append(left, note) // else its process goes on
		}
	}
	return left, err
}

// maxPath bounds a note.
const maxPath = 64 << 10

// sweep removes what a note names, and the note. path is empty if there was nothing.
func sweep(note *os.File, dryRun bool) (path string, err error) {
	defer func() { _ = note.Close() }() // releases the lock
	data, err := io.ReadAll(io.LimitReader(note, maxPath))
	if err != nil {
		return "", err
	}
	if len(data) > 0 && data[len(data)-1] == 0 { // else the note was not written, and nothing was made
		path = string(data[:len(data)-1])
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			path = ""
		}
	}
	if dryRun {
		return path, nil
	}
	if path != "" {
		if err := RemoveTree(path); err != nil {
			return "", err
		}
	}
	return path, os.Remove(note.Name())
}
