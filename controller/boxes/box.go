package boxes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"agentsh/controller"
	"agentsh/controller/tools"
	"agentsh/internal/statedir"
)

// Box is a sandbox that this process holds. It is safe for concurrent use.
type Box struct {
	Held     controller.Held
	Commands Runner
	State    statedir.Dir

	end   context.CancelFunc
	over  chan struct{} // closed when it is going to be deleted
	done  chan struct{} // closed when it is deleted
	err   error         // of its end; set before done is closed
	ended error         // why it ended by itself; set before over is closed

	mu   sync.Mutex
	busy int // uses that go on
	used time.Time
	shut bool // by Close
}

// errIdle is why a sandbox ends that nobody uses.
var errIdle = errors.New("nobody has used the sandbox for its idle_seconds")

// Open makes a sandbox. It goes on until Close, until an operator ends it or until nobody has used it for the
// time of the specification. ctx is for the making only.
func Open(ctx context.Context, o controller.Options, s Spec) (*Box, error) {
	holding, end := context.WithCancel(context.WithoutCancel(ctx))
	b := &Box{State: o.State, end: end, over: make(chan struct{}), done: make(chan struct{}), used: time.Now()}
	ready := make(chan struct{})
	making := true // until ready is closed
	stop := context.AfterFunc(ctx, end)
	idle := time.Duration(s.IdleSeconds) * time.Second
	go func() { // ends with the sandbox
		defer close(b.done)
		more := controller.HoldOptions{Labels: s.Labels, Lease: idle}
		b.err = controller.Hold(holding, o, more, func(ctx context.Context, h controller.Held) error {
			if err := b.fill(ctx, h, s); err != nil {
				return err
			}
			if !stop() {
				return context.Cause(ctx)
			}
			making = false
			close(ready)
			return b.wait(ctx, idle)
		})
	}()
	select {
	case <-ready:
		return b, nil
	case <-b.done:
	}
	stop()
	end()
	if err := ctx.Err(); err != nil && making {
		return nil, errors.Join(context.Cause(ctx), b.err)
	}
	if b.err == nil {
		b.err = errors.New("the sandbox was ended while it was made")
	}
	return nil, b.err
}

// fill prepares a sandbox that was made.
func (b *Box) fill(ctx context.Context, h controller.Held, s Spec) error {
	if s.From != "" {
		if err := Load(ctx, h.Box, s.From); err != nil {
			return err
		}
	}
	refused, err := tools.NewRefused(ctx, h.Box)
	b.Held, b.Commands = h, Runner{Box: h.Box, Dir: h.Dir, Refused: refused}
	return err
}

// wait returns when the sandbox shall end.
func (b *Box) wait(ctx context.Context, idle time.Duration) error {
	defer close(b.over)
	var tick <-chan time.Time
	if idle > 0 {
		t := time.NewTicker(min(idle/4+time.Millisecond, time.Minute))
		defer t.Stop()
		tick = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.Held.Box.Gone():
			b.ended = b.Held.Box.Cause()
			return b.ended
		case <-tick:
			if b.idle() >= idle {
				b.ended = errIdle
				return nil
			}
		}
	}
}

// idle is how long nobody has used the sandbox, here or as an operator.
func (b *Box) idle() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy > 0 {
		return 0
	}
	return min(time.Since(b.used), b.Held.Idle())
}

// Use says that the sandbox is used until end is called.
func (b *Box) Use() (end func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy++
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.busy--
		b.used = time.Now()
	}
}

// explain is the error of a use that the end of the sandbox has ended: that it is over, and by whom.
func (b *Box) explain(err error) error {
	select {
	case <-b.over:
	default:
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case err == nil || errors.Is(err, errCanceled) || errors.Is(err, errEnded):
		return err
	case b.shut:
		return errDeletedHere
	case b.ended == nil:
		return errDeleted
	}
	return err
}

// Why a use of a sandbox has failed that somebody has deleted.
var (
	errDeletedHere = errors.New("the sandbox has ended: this client has deleted it")
	errDeleted     = errors.New("the sandbox has ended: an operator has deleted it; make another one with create")
)

// Done is closed when the sandbox is deleted.
func (b *Box) Done() <-chan struct{} { return b.done }

// Ended is why the sandbox has ended by itself, after Done; nil: it was deleted.
func (b *Box) Ended() error {
	if b.ended != nil {
		return b.ended
	}
	return b.err
}

// Close deletes the sandbox. A second call returns the same.
func (b *Box) Close(ctx context.Context) error {
	b.mu.Lock()
	b.shut = true
	b.mu.Unlock()
	b.end()
	select {
	case <-b.done:
		return b.err
	case <-ctx.Done():
		return fmt.Errorf("delete sandbox %s: %w", b.Held.ID, context.Cause(ctx))
	}
}
