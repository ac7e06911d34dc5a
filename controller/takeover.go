package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/attach"
	"agentsh/controller/git"
	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// TakeOver ends the run of a controller that was killed, as that would have ended it after a
// signal: it stops the agent, takes its work out and deletes the sandbox. An agent that had
// ended before is not run again. o are the options of the run. If the run cannot be taken over,
// nothing changes; the error is a [*Failure] that says what to do.
func TakeOver(ctx context.Context, o Options, runID string) (Result, error) {
	o.AllowDirty = true // the first controller has looked
	o.KeepSandbox = 0   // the sandbox ends with the run
	ctx, r := newRun(ctx, o)
	defer r.control.close()
	t := &takeover{run: r}
	if err := t.begin(ctx, runID); err != nil {
		if r.journal != nil {
			err = errors.Join(err, r.journal.dir.Close())
		}
		failed := asFailure(ctx, "attach", err)
		refused := newResult(o)
		refused.RunID = runID
		refused.end(failed)
		return refused, failed
	}
	r.observe()
	r.failed = failureOf(t.before)
	if slices.ContainsFunc(t.before, isIterations) {
		take := func(_ *run, ctx context.Context) error { return t.takeWork(ctx) }
		if err := r.step(ctx, step{name: "take_work", do: take, salvage: true}); r.failed == nil {
			r.failed = err
		}
	}
	after := slices.IndexFunc(steps, func(s step) bool { return s.name == stepIterations }) + 1
	return r.finish(ctx, r.steps(ctx, steps[after:]))
}

// stepIterations is the step that runs the agent.
const stepIterations = "iterations"

func isIterations(s record.Step) bool { return s.Name == stepIterations }

// takeover is a run that another controller began.
type takeover struct {
	run    *run
	before []record.Step // of that controller
}

// failureOf is the failure of a run whose controller was killed; nil: its agent had ended
// without one.
func failureOf(before []record.Step) error {
	for _, s := range before {
		switch {
		case s.Ended == nil:
			return &Failure{
				Step: s.Name, Code: exitSignalBase + int(unix.SIGKILL),
				Err: errors.New("the controller of the run was killed; another one has taken it over"),
			}
		case s.Error != "":
			return &Failure{Step: s.Name, Code: s.Code, Err: errors.New(s.Error)}
		case s.Name == stepIterations:
			return nil
		}
	}
	return nil
}

// begin makes this process the controller of a run.
func (t *takeover) begin(ctx context.Context, runID string) error {
	r := t.run
	dir, rec, err := record.Take(r.o.State, runID)
	if used := (*record.InUse)(nil); errors.As(err, &used) {
		return fail(ExitSandbox, "end that one first: its first SIGINT or SIGTERM ends the run", fmt.Errorf("run %s: %w", runID, err))
	}
	if err != nil {
		return err
	}
	r.journal, t.before = &journal{dir: dir, record: rec}, slices.Clone(rec.Steps)
	switch {
	case rec.Status != record.StatusRunning:
		return badConfig("'agentctl runs show "+runID+"' shows it", "run %s has ended: %s", runID, rec.Status)
	case rec.Sandbox == "":
		return fail(ExitSandbox, collectHint+"; start the run again", errors.New("its controller was killed before it had a sandbox"))
	case rec.Staging == "": // create_sandbox has recorded it
		return fail(ExitSandbox, collectHint, fmt.Errorf("its results were delivered to %s before its controller was killed", rec.Out))
	}
	known, err := r.journal.readUnfinished()
	if err != nil {
		return fail(ExitSandbox, collectHint, fmt.Errorf("what its controller knew: %w", err))
	}
	r.result = known.Result
	if err := t.prepare(ctx); err != nil {
		return err
	}
	r.program.canary = known.Canary
	return t.enter(ctx)
}

// collectHint is the hint for a run that nobody can take over.
const collectHint = "'agentctl gc' removes what is left of it"

// prepare repeats the steps that need no sandbox.
func (t *takeover) prepare(ctx context.Context) error {
	r := t.run
	if err := r.load(ctx); err != nil {
		return err
	}
	if _, can := r.o.Backend.(sandbox.Taker); !can {
		return fail(ExitSandbox, collectHint,
			fmt.Errorf("a sandbox of backend %s cannot be taken over", r.o.Backend.Name()))
	}
	if err := r.expand(ctx); err != nil {
		return err
	}
	dir := r.journal.dir
	err := errors.Join(git.Undo(dir.Delivery()), statedir.RemoveTree(filepath.Join(dir.Work(), cloneName)), attach.Remove(dir.Path))
	if err != nil {
		return err
	}
	if err := checkAll(ctx, r); err != nil {
		return err
	}
	if err := r.cloneRepo(ctx); err != nil {
		return err
	}
	return r.fetchCredentials(ctx)
}

// enter connects to the sandbox.
func (t *takeover) enter(ctx context.Context) error {
	r := t.run
	s, err := r.o.Backend.(sandbox.Taker).Take(ctx, r.journal.record.Sandbox)
	if err != nil {
		return fail(ExitSandbox, collectHint+", if the place has no such sandbox; else try again", err)
	}
	r.box = &box{sandbox: s}
	r.box.endOnForce(r.control.forced)
	if err := r.step(ctx, step{name: "attach", do: (*run).waitReady}); err != nil {
		_ = r.box.stop(ctx, r.progress) // Collect removes the sandbox
		if errors.Is(err, sandbox.ErrGone) {
			err = fail(ExitSandbox, collectHint, errors.New("its sandbox had ended when its controller was killed"))
		}
		return err
	}
	return nil
}

// takeWork takes out what the agent has done. An iteration in which the controller was killed
// has no end.
func (t *takeover) takeWork(ctx context.Context) error {
	r := t.run
	r.control.space = newSpace(r)
	if err := r.control.do(ctx, takingOut, func(context.Context) error { return r.results.adopt() }); err != nil {
		return fmt.Errorf("results of the killed controller: %w", err)
	}
	all := slices.Clone(r.result.Iterations)
	if t.before[slices.IndexFunc(t.before, isIterations)].Ended == nil || len(all) == 0 {
		all = append(all, IterationResult{
			Number: len(all) + 1, Exit: wire.Exit{Kind: wire.ExitLost, Message: "the controller of the run was killed"},
		})
	}
	n, x, in, s := len(all), newExtraction(r), r.program.invocation, r.box.sandbox
	in.Iteration = n
	var skipped []string
	all[n-1].Transcripts, skipped = x.transcripts(ctx, programLogs{s, s.Cause, layout.Sandbox, r.program.runtime.Transcripts(in)}, n)
	w, err := x.run(ctx, work{}, n, r.failed != nil)
	r.work = w
	r.result.took(w, all, skipped)
	return err
}

// Held is a sandbox without an agent, as [Hold] makes it.
type Held struct {
	ID    string
	Box   sandbox.Sandbox
	Hello wire.Hello // of its supervisor
	Dir   string     // where commands start
	Path  string     // directory of its record
	// Idle is how long no operator has been connected; 0: one is.
	Idle func() time.Duration
}

// HoldOptions are the inputs of [Hold] besides those of a run.
type HoldOptions struct {
	Labels map[string]string // of the record, for people and programs
	Lease  time.Duration     // after which its holder ends it if nobody uses it; shown in lists
}

// Hold makes a sandbox as [Run] does, without an agent, and deletes it when use returns. It has
// a record, and operators connect to it. The context of use ends when an operator ends the
// sandbox. The error is a [*Failure].
func Hold(ctx context.Context, o Options, more HoldOptions, use func(context.Context, Held) error) error {
	o.Out, o.Agent.Outside = "", func(context.Context, Workplace) error { return nil } // no agent works
	o.Environ = slices.DeleteFunc(slices.Clone(o.Environ), func(v string) bool { return strings.HasPrefix(v, "GITHUB_OUTPUT=") })
	ctx, r := newRun(ctx, o)
	defer r.control.close()
	err := r.open(ctx)
	if err == nil {
		r.journal.record.Kind, r.journal.record.Labels = record.KindSandbox, more.Labels
		r.journal.record.LeaseSeconds = int64(more.Lease / time.Second)
		err = r.steps(ctx, holdSteps(use))
	}
	_, err = r.finish(ctx, err)
	return err
}

// holdSteps are the steps of a run up to its agent, and the use of the sandbox.
func holdSteps(use func(context.Context, Held) error) []step {
	end := slices.IndexFunc(steps, func(s step) bool { return s.name == stepIterations })
	out := slices.DeleteFunc(slices.Clone(steps[:end]), func(s step) bool { return s.name == stepAgentHost })
	return append(out, step{name: "hold", do: func(r *run, ctx context.Context) error {
		if r.result.skipped() {
			return fail(ExitConfiguration, "", errors.New("pre_script asked that the run be skipped"))
		}
		held := Held{
			ID: r.box.sandbox.ID(), Box: r.box.sandbox, Hello: r.box.hello, Dir: r.checkout.start, Path: r.journal.dir.Path,
			Idle: r.box.attached.Idle,
		}
		err := use(ctx, held)
		if cause := r.box.gone(); cause != nil && err == nil && ctx.Err() == nil {
			err = cause
		}
		return err
	}})
}
