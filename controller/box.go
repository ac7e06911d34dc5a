package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"agentsh/controller/agenthost"
	"agentsh/controller/attach"
	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
)

// box is the sandbox of a run, with the goroutines that depend on it.
type box struct {
	sandbox  sandbox.Sandbox
	side     *agenthost.Side // of an agent's program on the host, set by agent_host; nil: there is none
	hello    wire.Hello      // of the supervisor
	attached *attach.Server  // nil: operators cannot attach
	events   chan struct{}   // closed after the event stream has ended; nil: not started
	deleted  chan error      // receives the result of the deletion; nil: not started
	stopping atomic.Bool     // the end of the event stream is expected
	unforce  func() bool     // cancels endOnForce; nil: it was not called

	working sync.WaitGroup // what [box.background] started
	unwork  []context.CancelFunc
}

// forcedStop is the time that a supervisor has to end by itself after a second
// interruption.
const forcedStop = time.Second

// endOnForce ends the sandbox when forced ends. Everything that waits for its
// supervisor then fails.
func (b *box) endOnForce(forced context.Context) {
	b.unforce = context.AfterFunc(forced, func() {
		ctx, cancel := context.WithTimeout(context.Background(), forcedStop)
		defer cancel()
		b.stopping.Store(true)
		_ = b.sandbox.Stop(ctx) // the deletion calls it again and reports the error
	})
}

// ready waits until the supervisor answers.
func (b *box) ready(ctx context.Context, limit time.Duration) (wire.Hello, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the sandbox did not answer within %s", limit))
	defer cancel()
	hello, err := b.sandbox.Ready(ctx)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(cause, err)
		}
		return hello, fmt.Errorf("sandbox %s: %w", b.sandbox.ID(), err)
	}
	return hello, nil
}

// follow counts events until the supervisor is gone; stop waits for it. Events
// after an early end of the stream are not missed: they are counted from the
// audit log at the end.
func (b *box) follow(ctx context.Context, c *counts, p progress) {
	b.events = make(chan struct{})
	go func() {
		defer close(b.events)
		err := b.sandbox.Events(ctx, wire.EventRequest{}, func(e wire.Event) error {
			c.add(e)
			return nil
		})
		if err != nil && !b.stopping.Load() && b.gone() == nil {
			p.warn("the event stream ended early: %v", err)
		}
	}()
}

// listen lets operators attach to the sandbox, if its backend supports that.
func (b *box) listen(ctx context.Context, dir string, c *control) (err error) {
	if to, ok := b.sandbox.(attach.Relayer); ok {
		b.attached, err = attach.Listen(context.WithoutCancel(ctx), dir, to, c.stopRun)
	}
	return err
}

// gone returns the reason if the supervisor ended by itself. The connection
// breaks shortly before the reason is known, so gone waits up to one second. It
// may be called on a nil box.
func (b *box) gone() error {
	if b == nil || b.stopping.Load() {
		return nil
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-b.sandbox.Gone():
		return b.sandbox.Cause()
	case <-t.C:
		return nil
	}
}

// stop ends everything in the sandbox. A second call is no error.
func (b *box) stop(ctx context.Context) error {
	b.stopping.Store(true)
	b.attached.Stop()
	b.endWork()
	err := b.sandbox.Stop(ctx)
	if b.events != nil {
		<-b.events
	}
	return errors.Join(err, b.attached.Close())
}

// background works for the sandbox until the box stops it.
func (b *box) background(ctx context.Context, work func(context.Context)) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.unwork = append(b.unwork, cancel)
	b.working.Go(func() { work(ctx) })
}

// endWork ends what works for the sandbox.
func (b *box) endWork() {
	for _, cancel := range b.unwork {
		cancel()
	}
	b.working.Wait()
}

// keep leaves the sandbox to other controllers, and returns the end of its lease.
func (b *box) keep(ctx context.Context) (time.Time, error) {
	b.stopping.Store(true)
	if b.unforce != nil {
		b.unforce()
	}
	b.attached.Stop()
	b.endWork()
	until, err := b.sandbox.Keep(ctx)
	if b.events != nil {
		<-b.events
	}
	return until, errors.Join(err, b.attached.Close())
}

// startDelete deletes the stopped sandbox in the background; waitDeleted returns
// its end.
func (b *box) startDelete(ctx context.Context) {
	b.deleted = make(chan error, 1)
	go func() { b.deleted <- b.sandbox.Delete(context.WithoutCancel(ctx)) }()
}

func (b *box) waitDeleted() error {
	err := <-b.deleted
	if b.unforce != nil {
		b.unforce()
	}
	return err
}
