package remote

import (
	"context"
	"time"

	"agentsh/internal/wire"
)

// reached is a stream to agentsh serve at the place that was opened before a sandbox was asked for.
type reached struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the rest is set
	stream Stream
	err    error
	at     time.Time
}

// reachedWait is how long such a stream waits for its request. The place waits for a minute.
const reachedWait = 30 * time.Second

// Reach implements [sandbox.Reacher].
func (b *Backend) Reach(ctx context.Context, runID string) {
	ctx, cancel := context.WithCancel(ctx)
	r := &reached{cancel: cancel, done: make(chan struct{})}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reached[runID] != nil {
		cancel()
		return
	}
	if b.reached == nil {
		b.reached = map[string]*reached{}
	}
	b.reached[runID] = r
	go func() { // ends with the stream or with ctx
		defer close(r.done)
		r.stream, r.err = b.arrive(ctx)
		r.at = time.Now()
	}()
}

// Forget implements [sandbox.Reacher].
func (b *Backend) Forget(runID string) {
	if r := b.taken(runID); r != nil {
		r.drop()
	}
}

// taken returns what Reach began for a run, once; nil: nothing.
func (b *Backend) taken(runID string) *reached {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := b.reached[runID]
	delete(b.reached, runID)
	return r
}

// drop closes the stream, and waits until nothing is left of it.
func (r *reached) drop() {
	r.cancel()
	<-r.done
	if r.err == nil {
		r.stream.Kill()
	}
}

// stream returns a stream to agentsh serve at the place for a request.
func (b *Backend) stream(ctx context.Context, req wire.PlaceRequest) (Stream, error) {
	var r *reached
	if req.Op == wire.PlaceServe {
		r = b.taken(req.ID)
	}
	if r == nil {
		return b.arrive(ctx)
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		r.drop()
		return nil, ctx.Err()
	}
	if r.err != nil {
		r.cancel()
		return nil, r.err
	}
	over := time.Since(r.at) > reachedWait
	select {
	case <-r.stream.Gone():
		over = true
	default:
	}
	if over {
		r.drop()
		return b.arrive(ctx)
	}
	r.cancel() // the stream is open: it ends otherwise
	return r.stream, nil
}
