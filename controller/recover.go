package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/attach"
	"agentsh/controller/git"
	"agentsh/controller/image"
	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/statedir"
)

// Outcome says what became of a run whose controller was killed.
type Outcome string

// The outcomes of [Recover].
const (
	OutcomeNone  Outcome = "none"  // it delivered nothing, and can be started again
	OutcomeAgent Outcome = "agent" // its agent has ended, and [TakeOver] can deliver the work
	OutcomeEnded Outcome = "ended" // it has the result
)

// postScript is the name of the step that runs post_script.
const postScript = "post_script"

// Recover finds out what became of a run whose controller was killed, so that nobody does
// it twice. o are its options. For [OutcomeNone] it removes the branch that the run may have made
// before its results were published. The error is a [*record.InUse] if its controller is alive.
func Recover(ctx context.Context, o Options, runID string) (Outcome, Result, error) {
	dir, rec, err := record.Take(o.State, runID)
	if errors.Is(err, fs.ErrNotExist) {
		return OutcomeNone, Result{}, nil // it was killed before its first record
	}
	if err != nil {
		return "", Result{}, fmt.Errorf("run %s: %w", runID, err)
	}
	defer func() { _ = dir.Close() }() // releases the lock; there is nothing to flush
	one := record.Run{Record: rec, Path: dir.Path}
	if rec.Status != record.StatusRunning && rec.Status != record.StatusAbandoned {
		var r Result
		err := one.ReadJSON(record.ResultFile, &r)
		return OutcomeEnded, r, err
	}
	r, found, err := published(rec)
	if err != nil {
		return "", r, err
	}
	if found {
		return OutcomeEnded, cutOff(r, rec), nil
	}
	if rec.Status == record.StatusRunning && rec.Sandbox != "" && agentEnded(rec) && canTake(o) {
		return OutcomeAgent, Result{}, nil
	}
	return OutcomeNone, Result{}, removeBranches(ctx, dir, rec)
}

// published reads the results that a run has published; found is false without them.
func published(rec record.Record) (r Result, found bool, err error) {
	data, err := record.ReadFile(filepath.Join(rec.Out, resultName), 256<<20)
	if errors.Is(err, fs.ErrNotExist) {
		return r, false, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, false, fmt.Errorf("results of run %s: %w", rec.RunID, err)
	}
	return r, r.RunID == rec.RunID && r.Delivered, nil
}

// cutOff is the result of a run whose controller was killed after it had delivered. Its
// post_script is not run again: nobody knows what it has done.
func cutOff(r Result, rec record.Record) Result {
	i := slices.IndexFunc(rec.Steps, func(s record.Step) bool { return s.Name == postScript })
	if r.ExitCode != ExitDone || i < 0 && !rec.PostScript {
		return r
	}
	text := "agentctl was killed before it ran"
	if i >= 0 && rec.Steps[i].Ended != nil {
		if text = rec.Steps[i].Error; text == "" {
			return r
		}
	} else if i >= 0 {
		text = "agentctl was killed while it ran"
	}
	r.fail(&Failure{
		Step: postScript, Code: ExitPostScriptFailed, Err: errors.New(text),
		Hint: "look at what it has done, and run it by hand; the results are in " + r.Out,
	})
	return r
}

// agentEnded reports whether the agent of a run has ended without a failure.
func agentEnded(rec record.Record) bool {
	i := slices.IndexFunc(rec.Steps, isIterations)
	return i >= 0 && rec.Steps[i].Ended != nil && rec.Steps[i].Error == ""
}

// canTake reports whether sandboxes of a run outlive its controller.
func canTake(o Options) bool {
	_, b, err := loadHarness(o.Harness, o.Load, o.Images, o.Backend, nil)
	if err != nil {
		return false
	}
	_, can := b.(sandbox.Taker)
	return can
}

// removeBranches removes the branches of a run that has not published its results. Their
// names have its id.
func removeBranches(ctx context.Context, dir *record.Dir, rec record.Record) error {
	if rec.Agent == "" || rec.Repo == "" {
		return nil // it ended before it had a repository
	}
	err := os.MkdirAll(dir.Work(), 0o700)
	if err == nil {
		var tool git.Tool
		if tool, err = git.New(dir.Work()); err == nil {
			err = tool.RemoveBranches(ctx, rec.Repo, branchName(rec.Agent, rec.RunID))
		}
	}
	if rec.Status == record.StatusAbandoned { // else Collect does it
		err = errors.Join(err, dir.RemoveWork())
	}
	if err != nil {
		return fmt.Errorf("run %s: branches without results: %w", rec.RunID, err)
	}
	return nil
}

// Forget removes the branches of a run whose controller was killed and whose results were not
// published, when nobody can take it over: its work will come from another run. A run that has
// published its results, or has ended, stays as it is.
func Forget(ctx context.Context, o Options, runID string) error {
	dir, rec, err := record.Take(o.State, runID)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("run %s: %w", runID, err)
	}
	defer func() { _ = dir.Close() }() // releases the lock; there is nothing to flush
	if rec.Status != record.StatusRunning && rec.Status != record.StatusAbandoned {
		return nil
	}
	if _, found, err := published(rec); err != nil || found {
		return err
	}
	return removeBranches(ctx, dir, rec)
}

// branchName is the branch with the commits of a run.
func branchName(agent, runID string) string { return "agentctl/" + agent + "/" + runID }

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
	// Elsewhere is the backend of a sandbox of which only what is on this machine was found: it may go on at its place.
	Elsewhere string `json:"elsewhere,omitempty"`
	File      string `json:"file,omitempty"` // temporary file or directory of a command that was killed
	Run       bool   `json:"run"`            // host files of an unfinished run
	Record    bool   `json:"record"`         // the record of an ended run, with the files stored with it
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
		c := Collected{RunID: l.RunID, Sandbox: l.ID}
		if r, err := record.Find(state, l.RunID); err == nil && r.Backend != backend.Name() && r.Backend != local.Name {
			c.Elsewhere = r.Backend
		}
		found = append(found, c)
	}
	swept, err := record.Sweep(state, record.SweepOptions{OlderThan: o.RunsOlderThan, DryRun: o.DryRun, Finish: finishRun})
	if err != nil {
		errs = append(errs, err)
	}
	for _, x := range swept {
		found = append(found, Collected{RunID: x.RunID, Run: !x.Record, Record: x.Record})
	}
	files, err := state.SweepTemporary(o.DryRun)
	errs = append(errs, err)
	for _, name := range files {
		found = append(found, Collected{File: name})
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
