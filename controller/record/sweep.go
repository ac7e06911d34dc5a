package record

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/statedir"
)

// SweepOptions configure [Sweep].
type SweepOptions struct {
	OlderThan time.Duration // records of runs that ended at least this long ago
	DryRun    bool          // nothing is removed
	// Finish removes everything that the killed controller of an unfinished run
	// left outside its directory, and completes the record.
	Finish func(*Dir, *Record) error
}

// Swept is a run whose files [Sweep] removed, or would remove.
type Swept struct {
	RunID  string
	Record bool // the record; otherwise files of an unfinished run
}

// Sweep cleans up after runs whose controller is gone. The record of an
// unfinished run stays, with [StatusAbandoned]. Records of runs that ended long
// ago are removed, and so are unreadable records of that age. The error names
// each run that could not be cleaned up.
func Sweep(state statedir.Dir, o SweepOptions) ([]Swept, error) {
	dirs, err := unlocked(state)
	if err != nil {
		return nil, err
	}
	var found []Swept
	var errs []error
	for _, d := range dirs {
		s, err := d.sweep(state, o)
		if err = errors.Join(err, d.Close()); err != nil {
			errs = append(errs, fmt.Errorf("run %s: %w", filepath.Base(d.Path), err))
		}
		if s != nil {
			found = append(found, *s)
		}
	}
	return found, errors.Join(errs...)
}

// unlocked locks the directories of runs whose controller is gone, whether they
// are finished or not.
func unlocked(state statedir.Dir) ([]*Dir, error) {
	unlock, err := state.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := named(state).Names()
	if err != nil {
		return nil, err
	}
	var out []*Dir
	for _, name := range all {
		d := &Dir{Path: filepath.Join(state.Runs(), name)}
		if d.lock, err = statedir.TakeLock(filepath.Join(d.Path, lockFile), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			out = append(out, d)
		}
	}
	return out, nil
}

// sweep cleans up after one run. It returns what it removed, or nil. The caller
// has locked d.
func (d *Dir) sweep(state statedir.Dir, o SweepOptions) (*Swept, error) {
	s := &Swept{RunID: filepath.Base(d.Path)}
	r, err := read(d.Path)
	unfinished := false
	switch {
	case errors.Is(err, fs.ErrNotExist): // the first record was never written, so there is nothing else
	case err != nil:
		info, statErr := os.Stat(filepath.Join(d.Path, File))
		if statErr != nil || time.Since(info.ModTime()) < o.OlderThan {
			return nil, errors.Join(err, statErr)
		}
		s.Record = true
	case r.Status == StatusRunning:
		unfinished = true
	case r.Ended != nil && time.Since(*r.Ended) >= o.OlderThan:
		s.Record = true
	default:
		return nil, nil
	}
	switch {
	case o.DryRun:
		return s, nil
	case unfinished:
		return s, d.abandon(r, o.Finish)
	}
	return s, d.remove(state)
}

// abandon cleans up after an unfinished run and marks its record as abandoned.
func (d *Dir) abandon(r Record, finish func(*Dir, *Record) error) error {
	errs := []error{finish(d, &r)}
	for _, name := range []string{File, ResultFile, ChangesFile} {
		errs = append(errs, statedir.RemoveUnfinished(filepath.Join(d.Path, name)))
	}
	// The backend moved the audit log of a removed sandbox here, see [sandbox.Backend].
	if info, err := os.Stat(filepath.Join(d.Path, AuditFile)); err == nil && len(r.Stored) == 0 {
		r.Stored = []Stored{{Name: AuditFile, Bytes: info.Size(), Of: info.Size()}}
	}
	now := time.Now().UTC()
	r.Status, r.Ended = StatusAbandoned, &now
	return errors.Join(errors.Join(errs...), d.RemoveWork(), d.Write(r))
}

// remove deletes a run's directory. It locks the state directory, so that no
// other process creates a new lock file in the run's directory.
func (d *Dir) remove(state statedir.Dir) error {
	unlock, err := state.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	return statedir.RemoveTree(d.Path)
}
