package controller

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"agentsh/controller/record"
	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
)

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
		if r.skipped() {
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
