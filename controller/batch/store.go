package batch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/record"
	"agentsh/internal/statedir"
)

// Files of the directory of a batch.
const (
	specFile    = "batch.json"
	journalFile = "journal.jsonl"
	lockFile    = "lock" // locked by the process that works on the batch
	socketFile  = "socket"
	workDir     = "work" // of the process that works on it
)

// startFile, beside the directories, is locked while a batch is made: two that start together see each other.
const startFile = "start"

// Stored is what is stored of a batch when it is made.
type Stored struct {
	Version int       `json:"version"` // 1
	ID      string    `json:"id"`
	Created time.Time `json:"created"`
	File    string    `json:"file"`    // of the batch, as it was given
	Digest  string    `json:"digest"`  // of the file
	Command []string  `json:"command"` // arguments of the command line
	Dir     string    `json:"dir"`     // current directory
	Spec
}

// maxSpec bounds what is stored of a batch, in bytes: JSON makes six of some.
const maxSpec = 8 * maxTexts

// ErrNone reports that there is no batch with the name.
var ErrNone = errors.New("no such batch")

// idPrefix begins the ids of batches, so that they are not those of runs.
const idPrefix = "b"

// makeDir makes the directory of a batch and locks it.
func makeDir(state statedir.Dir, s Stored) (path string, lock *os.File, err error) {
	unlock, err := state.Lock()
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	path = filepath.Join(state.Batches(), s.ID)
	if err := os.MkdirAll(path, 0o700); err != nil {
		return "", nil, fmt.Errorf("make batch: %w", err)
	}
	if lock, err = statedir.TakeLock(filepath.Join(path, lockFile), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return "", nil, fmt.Errorf("make batch: %w", err)
	}
	if err := statedir.WriteJSON(filepath.Join(path, specFile), s); err != nil {
		return "", nil, errors.Join(fmt.Errorf("make batch: %w", err), statedir.RemoveTree(path), lock.Close())
	}
	return path, lock, nil
}

// InUse is the error of [Resume] if another process works on the batch.
type InUse struct{ Process int }

func (e *InUse) Error() string { return fmt.Sprintf("process %d works on it", e.Process) }

// takeDir locks the directory of a batch whose process has ended.
func takeDir(state statedir.Dir, id string) (string, *os.File, error) {
	unlock, err := state.Lock()
	if err != nil {
		return "", nil, err
	}
	defer unlock()
	path := filepath.Join(state.Batches(), id)
	if _, err := os.Stat(filepath.Join(path, specFile)); err != nil {
		return "", nil, fmt.Errorf("batch %s: %w", id, err)
	}
	lock, err := statedir.TakeLock(filepath.Join(path, lockFile), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return "", nil, &InUse{lastProcess(path)}
	}
	if err != nil {
		return "", nil, fmt.Errorf("batch %s: %w", id, err)
	}
	return path, lock, nil
}

// lastProcess is the process that began to work on a batch last; 0: not known.
func lastProcess(path string) int {
	all, _ := readJournal(filepath.Join(path, journalFile)) // without it the process has no number
	for _, e := range slices.Backward(all) {
		if e.Kind == entryOpen {
			return e.Process
		}
	}
	return 0
}

// readStored reads what is stored of a batch.
func readStored(path string) (Stored, error) {
	var s Stored
	file := filepath.Join(path, specFile)
	data, err := record.ReadFile(file, maxSpec)
	if err != nil {
		return s, fmt.Errorf("read batch: %w", err)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("read batch %s: %w", file, err)
	}
	if s.Version != 1 || s.ID != filepath.Base(path) {
		return s, fmt.Errorf("read batch %s: it is version %d of batch %.64q", file, s.Version, s.ID)
	}
	return s, nil
}

// List lists the batches, the newest first. It leaves out those that cannot be read; the error
// names each of them.
func List(state statedir.Dir) ([]*View, error) { return named(state).List() }

// Find finds a batch by its id, by a unique beginning of it, or by the name [statedir.Latest].
func Find(state statedir.Dir, name string) (*View, error) { return named(state).Find(name) }

func named(state statedir.Dir) statedir.Named[*View] {
	return statedir.Named[*View]{
		Dir: state.Batches(), Many: "batches", None: ErrNone,
		Open:  func(name string) (*View, error) { return open(state, name) },
		Newer: func(a, b *View) int { return cmp.Or(b.Created.Compare(a.Created), strings.Compare(b.ID, a.ID)) },
	}
}

// OfFile finds the newest batch of a file with a digest, in a directory; nil: there is none. Another file with the same
// text is another batch: its paths lead elsewhere.
func OfFile(state statedir.Dir, file, dir, digest string) (*View, error) {
	all, err := List(state)
	return ofFile(all, Stored{File: file, Dir: dir, Digest: digest}), err
}

// ofFile is the first of some batches with the file of another one; nil: there is none.
func ofFile(all []*View, s Stored) *View {
	for _, v := range all {
		if v.Digest == s.Digest && v.absolute(v.File) == s.absolute(s.File) {
			return v
		}
	}
	return nil
}

// absolute is a path of a batch.
func (s Stored) absolute(path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(s.Dir, path)
}

// Sweep removes the directories of batches that ended at least a time ago, and returns their ids. With
// dryRun nothing is removed. A batch that can be resumed ended when its process did.
func Sweep(state statedir.Dir, olderThan time.Duration, dryRun bool) ([]string, error) {
	all, err := named(state).Names()
	if err != nil {
		return nil, err
	}
	var out []string
	var errs []error
	for _, name := range all {
		removed, err := sweep(state, name, olderThan, dryRun)
		if err != nil {
			errs = append(errs, err)
		}
		if removed {
			out = append(out, name)
		}
	}
	return out, errors.Join(errs...)
}

func sweep(state statedir.Dir, name string, olderThan time.Duration, dryRun bool) (bool, error) {
	path := filepath.Join(state.Batches(), name)
	unlock, err := state.Lock()
	if err != nil {
		return false, err
	}
	defer unlock()
	lock, err := statedir.TakeLock(filepath.Join(path, lockFile), unix.LOCK_EX|unix.LOCK_NB)
	if err != nil {
		return false, nil // somebody works on it
	}
	defer lock.Close()
	changed := time.Time{}
	for _, file := range []string{specFile, journalFile} {
		if info, err := os.Stat(filepath.Join(path, file)); err == nil && info.ModTime().After(changed) {
			changed = info.ModTime()
		}
	}
	if time.Since(changed) < olderThan {
		return false, nil
	}
	if dryRun {
		return true, nil
	}
	return true, statedir.RemoveTree(path)
}
