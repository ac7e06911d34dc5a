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

	"agentsh/controller/git"
	"agentsh/controller/sandbox"
	"agentsh/internal/statedir"
)

// KeepRecords is how long a run keeps the records of earlier ones.
const KeepRecords = 30 * 24 * time.Hour

// CollectOptions say what [Collect] removes.
type CollectOptions struct {
	RunsOlderThan time.Duration // since a run ended; its record is removed then
	DryRun        bool          // nothing is removed
}

// Collected is what [Collect] removed, or would remove.
type Collected struct {
	RunID   string `json:"run_id"`
	Sandbox string `json:"sandbox,omitempty"`
	Run     bool   `json:"run"`    // the host files of a run that was not finished
	Record  bool   `json:"record"` // the record of a run that ended, with what was kept of it
}

// Collect removes what killed controllers left: sandboxes with their
// processes, host files of runs, results that were never published. Runs that
// are going on are not touched. Records of runs that ended before the time of
// the options go too, and records of that age that cannot be read.
func Collect(ctx context.Context, state statedir.Dir, backend sandbox.Backend, o CollectOptions) ([]Collected, error) {
	collect := backend.Collect
	if o.DryRun {
		collect = backend.Leftovers
	}
	left, err := collect(ctx)
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
		c, err := d.collect(state, o)
		if err = errors.Join(err, d.lock.Close()); err != nil {
			errs = append(errs, fmt.Errorf("run %s: %w", filepath.Base(d.path), err))
		}
		if c != nil {
			found = append(found, *c)
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

// collect cleans up after one run whose lock it holds, and returns what there
// was to remove.
func (d *recordDir) collect(state statedir.Dir, o CollectOptions) (*Collected, error) {
	c := &Collected{RunID: filepath.Base(d.path)}
	r, err := readRecord(d.path)
	unfinished := false
	switch {
	case errors.Is(err, fs.ErrNotExist): // the first record was never written: there is nothing else
		c.Run = true
	case err != nil:
		info, statErr := os.Stat(filepath.Join(d.path, recordName))
		if statErr != nil || time.Since(info.ModTime()) < o.RunsOlderThan {
			return nil, errors.Join(err, statErr)
		}
		c.Record = true
	case r.Status == StatusRunning:
		c.Run, unfinished = true, true
	case r.Ended != nil && time.Since(*r.Ended) >= o.RunsOlderThan:
		c.Record = true
	default:
		return nil, nil
	}
	switch {
	case o.DryRun:
		return c, nil
	case unfinished:
		return c, d.finish(r)
	}
	return c, d.remove(state)
}

// finish cleans up after a run that was not finished and says so in its record.
func (d *recordDir) finish(r Record) error {
	errs := []error{git.Undo(d.takeDir())}
	if r.Staging != "" {
		errs = append(errs, removeStaging(r.Staging, r.RunID))
	}
	for _, name := range []string{recordName, KeptResult, KeptChanges} {
		errs = append(errs, statedir.RemoveUnfinished(filepath.Join(d.path, name)))
	}
	errs = append(errs, statedir.RemoveUnfinished(filepath.Join(r.Out, resultName)))
	// The audit log of a sandbox that was collected was put here, see [sandbox.Backend].
	if info, err := os.Stat(filepath.Join(d.path, KeptAudit)); err == nil && len(r.Kept) == 0 {
		r.Kept = []Kept{{Name: KeptAudit, Bytes: info.Size(), Of: info.Size()}}
	}
	now := time.Now().UTC()
	r.Status, r.Ended, r.ExitCode = StatusAbandoned, &now, exitSignalBase+int(unix.SIGKILL)
	return errors.Join(errors.Join(errs...), d.removeWork(), removeDoor(d.path), d.write(r))
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
