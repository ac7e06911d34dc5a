package controller

import (
	"context"
	"errors"
	"time"
)

// control ends a run early, after a signal or on the request of an attached
// operator.
type control struct {
	interrupt context.CancelCauseFunc // stops the run like a signal does
	forced    context.Context         // its end stops the extraction of the agent's work
	force     context.CancelFunc
}

// errForced is the cause of the end of work that a second interruption stopped.
var errForced = errors.New("stopped by a second signal, or by an operator with --force")

// newControl returns the context of the run. The caller calls close.
func newControl(ctx, forced context.Context) (context.Context, *control) {
	c := &control{}
	ctx, c.interrupt = context.WithCancelCause(ctx)
	if forced == nil {
		forced = context.Background()
	}
	c.forced, c.force = context.WithCancel(forced)
	return ctx, c
}

func (c *control) close() {
	c.force()
	c.interrupt(nil)
}

// stopRun ends the run for an operator. A running run is stopped as by a
// signal. With force, the extraction of the agent's work is stopped, too.
func (c *control) stopRun(by string, force bool) {
	c.interrupt(Interrupted{Signal: operatorSignal, By: by})
	if force {
		c.force()
	}
}

// cleanupTime bounds the work after the end of a run.
const cleanupTime = 2 * time.Minute

// salvage returns a context for work after the end of the run's context. A
// second interruption ends it.
func (c *control) salvage(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	ctx, end := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTime, errors.New(what+" took too long"))
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.forced, func() { cancel(errForced) })
	return ctx, func() {
		stop()
		cancel(nil)
		end()
	}
}
