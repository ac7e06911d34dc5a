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
	"agentsh/controller/image"
	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/statedir"
)

// RecordAge is the time after which a new run removes the records of ended
// runs.
const RecordAge = 30 * 24 * time.Hour

// CollectOptions configure [Collect].
type CollectOptions struct {
	RunsOlderThan time.Duration // removes records of runs that ended at least this long ago
	Images        string        // directory of extracted images; those that were not used for that long are removed; empty: none
	DryRun        bool          // nothing is removed
}

// Collected is an item that [Collect] removed, or would remove.
type Collected struct {
	RunID   string `json:"run_id,omitempty"`
	Image   string `json:"image,omitempty"` // digest of an extracted image
	Sandbox string `json:"sandbox,omitempty"`
	Run     bool   `json:"run"`    // host files of an unfinished run
	Record  bool   `json:"record"` // the record of an ended run, with the files stored with it
}

// Collect cleans up after killed controllers: it removes sandboxes with their
// processes, host files of runs, and unpublished results. It does not touch
// running runs. It also removes old records, see [record.Sweep], and extracted images.
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
	if o.Images != "" {
		images, err := image.Collect(o.Images, image.CollectOptions{
			OlderThan: o.RunsOlderThan, Used: backend.UsesImage, DryRun: o.DryRun,
		})
		errs = append(errs, err)
		for _, digest := range images {
			found = append(found, Collected{Image: digest})
		}
	}
	return found, errors.Join(errs...)
}

// finishRun removes the attach socket of a run whose controller was killed, and
// its files outside the run's directory.
func finishRun(d *record.Dir, r *record.Record) error {
	errs := []error{git.Undo(d.Delivery())}
	if r.Staging != "" {
		errs = append(errs, removeStaging(r.Staging, r.RunID))
	}
	errs = append(errs, statedir.RemoveUnfinished(filepath.Join(r.Out, record.ResultFile)), attach.Remove(d.Path))
	r.ExitCode = exitSignalBase + int(unix.SIGKILL)
	return errors.Join(errs...)
}
