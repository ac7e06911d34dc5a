package fuse

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"agentsh/internal/wire"
)

// Control is the supervisor's end of a file server's control socket. It is safe for
// concurrent use.
type Control struct {
	ch      *channel
	onEvent func(wire.Event)
	onAsk   func(context.Context, wire.Question) wire.Answer
	done    chan struct{} // closed when the receiver has ended
	asks    sync.WaitGroup

	mu      sync.Mutex
	waiting map[uint64]chan reply
	cancels map[uint64]context.CancelFunc
	next    uint64
	replay  func(Replay)
	err     error // why the receiver ended
}

// ErrServerGone says that the file server has ended. Every operation on its mounts
// then fails.
var ErrServerGone = errors.New("the file server has ended")

// NewControl makes the supervisor's end of the control socket. It closes socket.
// onEvent is called for every event, in order and from one goroutine; it must not call
// c. onAsk is called for every approval request, each in its own goroutine. Its
// context ends when the waiting caller has ended. If onAsk is nil, no approvals are
// available.
func NewControl(socket *os.File, onEvent func(wire.Event), onAsk func(context.Context, wire.Question) wire.Answer) (*Control, error) {
	ch, err := newChannel(socket)
	if err != nil {
		return nil, err
	}
	c := &Control{
		ch:      ch,
		onEvent: onEvent,
		onAsk:   onAsk,
		done:    make(chan struct{}),
		waiting: map[uint64]chan reply{},
		cancels: map[uint64]context.CancelFunc{},
	}
	go c.receive() // Close waits for it
	return c, nil
}

func (c *Control) receive() {
	defer close(c.done)
	var err error
	for {
		var r reply
		if err = c.ch.receive(&r); err != nil {
			break
		}
		if r.Event != nil {
			showProcess(r.Event.Process)
			c.onEvent(*r.Event)
			if r.Number != 0 {
				_ = c.ch.send(request{Seen: r.Number}) // a broken socket ends the server
			}
			continue
		}
		if r.Ask != nil {
			c.ask(r.Ask)
			continue
		}
		if r.Replay != nil {
			c.mu.Lock()
			replay := c.replay
			c.mu.Unlock()
			replay(*r.Replay)
			continue
		}
		c.mu.Lock()
		answer := c.waiting[r.ID]
		c.mu.Unlock()
		if answer != nil {
			answer <- r
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
	for id, answer := range c.waiting {
		close(answer)
		delete(c.waiting, id)
	}
	for _, cancel := range c.cancels {
		cancel()
	}
}

// ask obtains the answer to an approval request, or cancels a pending request.
func (c *Control) ask(a *asked) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.Question == nil {
		if cancel := c.cancels[a.ID]; cancel != nil {
			cancel()
		}
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancels[a.ID] = cancel
	c.asks.Go(func() { // Close waits for it
		defer cancel()
		answer := wire.Answer{Reason: approveWords}
		if c.onAsk != nil {
			showProcess(a.Question.Process)
			answer = c.onAsk(ctx, *a.Question)
		}
		c.mu.Lock()
		delete(c.cancels, a.ID)
		c.mu.Unlock()
		_ = c.ch.send(request{Answer: &answered{a.ID, answer}}) // a broken socket ends the server
	})
}

// Done is closed when the server has ended or the socket was closed.
func (c *Control) Done() <-chan struct{} { return c.done }

// Malformed returns the error of a message that was not one; nil: there was none.
func (c *Control) Malformed() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(c.err, errMalformed) {
		return c.err
	}
	return nil
}

// Close ends the server and every mount that it serves. It waits for the last event.
func (c *Control) Close() {
	c.ch.close()
	<-c.done
	c.asks.Wait()
}

// Configure sends the configuration and returns when all mounts are served.
func (c *Control) Configure(ctx context.Context, cfg Config) error {
	return c.call(ctx, request{Configure: &cfg}, nil)
}

// SetInit sends the pid of the session's init, as the server sees it. Events identify
// processes below that pid. The server sends events only from then on: earlier
// requests come from the set-up of the session.
func (c *Control) SetInit(ctx context.Context, pid int) error {
	return c.call(ctx, request{Init: pid}, nil)
}

// Ping returns when the server has answered. A server that never answers is stopped or
// hangs, and so is every process that uses its mounts.
func (c *Control) Ping(ctx context.Context) error {
	return c.call(ctx, request{Ping: true}, nil)
}

// Replays makes the server announce changes of the host that the supervisor shall repeat
// through the mount, so that watchers inside the session see them. tid is the number of
// the repeating thread in the requests of the kernel. replay must not wait.
func (c *Control) Replays(ctx context.Context, tid uint32, replay func(Replay)) error {
	c.mu.Lock()
	c.replay = replay
	c.mu.Unlock()
	return c.call(ctx, request{Replayer: &tid}, nil)
}

// Drain returns after onEvent was called for every event of completed operations.
func (c *Control) Drain(ctx context.Context) error {
	return c.call(ctx, request{Drain: true}, nil)
}

// Changes returns the net changes of a mount since its start or the last Baseline.
// They are sorted by path.
func (c *Control) Changes(ctx context.Context, tag string) ([]wire.Change, error) {
	var out []wire.Change
	err := c.ChangeParts(ctx, tag, func(part []wire.Change) { out = append(out, part...) })
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ChangeParts calls fn with each part of the net changes of a mount. While the server
// works on a large record, it calls fn with an empty part every second.
func (c *Control) ChangeParts(ctx context.Context, tag string, fn func([]wire.Change)) error {
	return c.call(ctx, request{Changes: tag}, func(r reply) { fn(r.Changes) })
}

// Baseline makes the present state the start of the change record. A later write
// through a shared mapping is not detected if the mapping's descriptor was closed
// before. Call Baseline before commands run, or when no command is left.
func (c *Control) Baseline(ctx context.Context) error {
	return c.call(ctx, request{Baseline: true}, nil)
}

// Invalidate makes the kernel drop its caches at and below paths inside the sandbox.
// The supervisor calls it after it has written to a backing itself. Many paths share a
// message.
func (c *Control) Invalidate(ctx context.Context, paths ...string) error {
	names := make([]wire.Name, len(paths))
	for i, p := range paths {
		names[i] = wire.Name(p)
	}
	for len(names) > 0 {
		n := namesPart(names)
		if err := c.call(ctx, request{Forget: names[:n]}, nil); err != nil {
			return err
		}
		names = names[n:]
	}
	return nil
}

// namesPart returns how many of the names, at least one, fit in one message.
func namesPart(list []wire.Name) int {
	bytes := 0
	for n, name := range list {
		bytes += 6*len(name) + 8 // in JSON a byte of a name takes up to six bytes
		if n > 0 && bytes > messageBytes/2 {
			return n
		}
	}
	return len(list)
}

// Restore moves a file from the trash back to its original name. The name must be free
// unless force is set. The id is that of the manifest and of the event.
func (c *Control) Restore(ctx context.Context, id string, force bool) error {
	return c.call(ctx, request{Restore: &restoreRequest{id, force}}, nil)
}

// Freeze waits for running requests to end. Until Unfreeze nothing can be opened,
// created, renamed or removed. Open files can be read and written. Every other call
// except Drain and Ping fails meanwhile. If ctx ends before the answer, the freeze ends
// as soon as it begins.
func (c *Control) Freeze(ctx context.Context) error {
	frozen := make(chan error, 1)
	go func() { frozen <- c.call(context.WithoutCancel(ctx), request{Freeze: true}, nil) }() // ends with the answer or the server
	select {
	case err := <-frozen:
		return err
	case <-ctx.Done():
	}
	go func() { // ends like the one above
		if <-frozen == nil {
			_ = c.Unfreeze(context.WithoutCancel(ctx), "", nil) // fails only with the server
		}
	}()
	return ctx.Err()
}

// Unfreeze ends a freeze. list contains the changes that were written meanwhile behind
// the mount of the tag.
func (c *Control) Unfreeze(ctx context.Context, tag string, list []wire.Change) error {
	for n := changesPart(list); n < len(list); n = changesPart(list) {
		if err := c.call(ctx, request{Unfreeze: &unfreeze{Tag: tag, Changes: list[:n], More: true}}, nil); err != nil {
			// The last part ends the freeze, although some changes are missing.
			return errors.Join(err, c.call(ctx, request{Unfreeze: &unfreeze{Tag: tag}}, nil))
		}
		list = list[n:]
	}
	return c.call(ctx, request{Unfreeze: &unfreeze{Tag: tag, Changes: list}}, nil)
}

// Purge removes files from the trash permanently.
func (c *Control) Purge(ctx context.Context, ids ...string) error {
	return c.call(ctx, request{Purge: ids}, nil)
}

// call sends one request and calls each with every part of the answer.
func (c *Control) call(ctx context.Context, r request, each func(reply)) error {
	answer := make(chan reply, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return ErrServerGone
	}
	c.next++
	r.ID = c.next
	c.waiting[r.ID] = answer
	c.mu.Unlock()
	defer c.forget(r.ID, answer)
	if err := c.ch.send(r); err != nil {
		return fmt.Errorf("ask the file server: %w", err)
	}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case a, ok := <-answer:
			switch {
			case !ok:
				return ErrServerGone
			case a.Error != "":
				return errors.New(a.Error)
			}
			if each != nil {
				each(a)
			}
			if !a.More {
				return nil
			}
		}
	}
}

// forget ends the wait for an answer and discards replies that have already arrived.
func (c *Control) forget(id uint64, answer chan reply) {
	c.mu.Lock()
	delete(c.waiting, id)
	c.mu.Unlock()
	select {
	case <-answer:
	default:
	}
}
