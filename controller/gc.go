package controller

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/statedir"
)

// keepRecords is how long the record of a finished run is kept.
const keepRecords = 30 * 24 * time.Hour

// Collected is what [Collect] removed.
type Collected struct {
	RunID   string `json:"run_id"`
	Sandbox string `json:"sandbox,omitempty"`
	Run     bool   `json:"run"` // the host files of a run that was not finished
}

// Collect removes what killed controllers left: sandboxes with their
// processes, host files of runs, results that were never published. Runs that
// are going on are not touched. Records of runs that ended more than 30 days
// ago go too.
func Collect(ctx context.Context, state statedir.Dir, backend sandbox.Backend) ([]Collected, error) {
	left, err := backend.Collect(ctx)
	var found []Collected
	var errs []error
	if err != nil {
		errs = append(errs, err)
	}
	for _, l := range left {
		if l.Err != nil {
			errs = append(errs, fmt.Errorf("sandbox %s: %w", l.ID, l.Err))
			continue
		}
		found = append(found, Collected{RunID: l.RunID, Sandbox: l.ID})
	}
	runs, err := abandonedRuns(state)
	if err != nil {
		errs = append(errs, err)
	}
	for _, d := range runs {
		unfinished, err := d.collect(state)
		if err != nil {
			errs = append(errs, fmt.Errorf("run %s: %w", filepath.Base(d.path), err))
		}
		if unfinished {
			found = append(found, Collected{RunID: filepath.Base(d.path), Run: true})
		}
	}
	return found, errors.Join(errs...)
}

// abandonedRuns takes the locks of the runs whose controller is gone, finished
// or not.
func abandonedRuns(state statedir.Dir) ([]*recordDir, error) {
	unlock, err := state.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	entries, err := os.ReadDir(state.Runs())
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	var out []*recordDir
	for _, e := range entries {
		d := &recordDir{path: filepath.Join(state.Runs(), e.Name())}
		if !e.IsDir() {
			continue
		}
		if d.lock, err = statedir.TakeLock(filepath.Join(d.path, "lock"), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			out = append(out, d)
		}
	}
	return out, nil
}

// collect cleans up after one run whose lock it holds, and gives the lock back.
// It reports whether the run had not been finished.
func (d *recordDir) collect(state statedir.Dir) (bool, error) {
	r, err := readRecord(d.path)
	if errors.Is(err, fs.ErrNotExist) { // the first record was never written: there is nothing else
		return true, errors.Join(d.remove(state), d.lock.Close())
	}
	if err != nil {
		return false, errors.Join(err, d.lock.Close())
	}
	if r.Status != StatusRunning {
		if r.Ended != nil && time.Since(*r.Ended) > keepRecords {
			err = d.remove(state)
		}
		return false, errors.Join(err, d.lock.Close())
	}
	err = nil
	if r.Staging != "" {
		err = removeStaging(r.Staging, r.RunID)
	}
	for _, name := range []string{"record.json", KeptResult, KeptChanges} {
		err = errors.Join(err, statedir.RemoveUnfinished(filepath.Join(d.path, name)))
	}
	err = errors.Join(err, statedir.RemoveUnfinished(filepath.Join(r.Out, resultName)))
	now := time.Now().UTC()
	r.Status, r.Ended, r.ExitCode = StatusAbandoned, &now, exitSignalBase+int(unix.SIGKILL)
	return true, errors.Join(err, d.removeWork(), removeDoor(d.path), d.write(r), d.lock.Close())
}

// remove deletes a run's directory under the state's lock, so that no other
// collector makes a new lock file in it.
func (d *recordDir) remove(state statedir.Dir) error {
	unlock, err := state.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	return statedir.RemoveTree(d.path)
}
