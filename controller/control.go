package controller

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// control ends a run from outside: for a signal, or for an operator that is
// attached to its sandbox.
type control struct {
	interrupt context.CancelCauseFunc // stops the run as a signal does
	forced    context.Context         // its end gives up what is not taken out yet
	force     context.CancelFunc
	keeping   atomic.Bool // the sandbox is kept for operators
	release   chan struct{}
	released  sync.Once // closes release
}

// newControl returns the context of the run. The caller calls close.
func newControl(ctx, forced context.Context) (context.Context, *control) {
	c := &control{release: make(chan struct{})}
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

// stopRun ends the run for an operator. A sandbox that is kept is given up; a
// running run is stopped as by a signal. force gives up the agent's work, too.
func (c *control) stopRun(by string, force bool) {
	c.released.Do(func() { close(c.release) })
	if !c.keeping.Load() {
		c.interrupt(Interrupted{Signal: operatorSignal, By: by})
	}
	if force {
		c.force()
	}
}

// serveFor waits until the sandbox is no longer kept: after d, when an operator ends
// the run, or when the supervisor is gone.
func (c *control) serveFor(ctx context.Context, d time.Duration, gone <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-c.release:
	case <-gone:
	}
}

// cleanupTime bounds the work after the end of a run.
const cleanupTime = 2 * time.Minute

// salvage is a context for work after the end of the run's own context. A second
// interruption ends it.
func (c *control) salvage(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTime, errors.New(what+" took too long"))
	stop := context.AfterFunc(c.forced, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
