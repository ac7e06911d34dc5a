package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/attach"
	"agentsh/controller/git"
	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/statedir"
)

// RecordAge is how long records of ended runs stay: a new run removes older ones.
const RecordAge = 30 * 24 * time.Hour

// CollectOptions say what [Collect] removes.
type CollectOptions struct {
	RunsOlderThan time.Duration // since a run ended; its record is removed then
	DryRun        bool          // nothing is removed
}

// Collected is what [Collect] removed, or would remove.
type Collected struct {
	RunID   string `json:"run_id"`
	Sandbox string `json:"sandbox,omitempty"`
	Run     bool   `json:"run"`    // the host files of an unfinished run
	Record  bool   `json:"record"` // the record of a run that ended, with the files beside it
}

// Collect removes what killed controllers left: sandboxes with their processes,
// host files of runs, unpublished results. It does not touch running runs. It
// also removes old records, see [record.Sweep].
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
	swept, err := record.Sweep(state, record.SweepOptions{OlderThan: o.RunsOlderThan, DryRun: o.DryRun, Finish: finishRun})
	if err != nil {
		errs = append(errs, err)
	}
	for _, x := range swept {
		found = append(found, Collected{RunID: x.RunID, Run: !x.Record, Record: x.Record})
	}
	return found, errors.Join(errs...)
}

// finishRun removes what the killed controller of a run left outside the run's
// directory, and its attach socket.
func finishRun(d *record.Dir, r *record.Record) error {
	errs := []error{git.Undo(d.Delivery())}
	if r.Staging != "" {
		errs = append(errs, removeStaging(r.Staging, r.RunID))
	}
	errs = append(errs, statedir.RemoveUnfinished(filepath.Join(r.Out, record.ResultFile)), attach.Remove(d.Path))
	r.ExitCode = exitSignalBase + int(unix.SIGKILL)
	return errors.Join(errs...)
}
