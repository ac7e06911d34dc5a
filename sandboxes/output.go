package sandboxes

import (
	"context"
	"io"
	"sync"
)

// window is how much output of one command may wait for its writers, in bytes. The command waits then.
const window = 1 << 20

// output writes the output of one command to the writers of the caller, which may be slow: other calls go on.
type output struct {
	stdout, stderr io.Writer // may be nil

	mu     sync.Mutex
	queue  []chunk
	closed bool          // nothing follows
	more   chan struct{} // has an element after a change
	done   chan struct{} // closed after the last write
	failed error         // of the writers; set before done is closed
}

// chunk is a part of an output.
type chunk struct {
	stderr bool
	data   []byte
}

func newOutput(stdout, stderr io.Writer) *output {
	return &output{stdout: stdout, stderr: stderr, more: make(chan struct{}, 1), done: make(chan struct{})}
}

// put adds a part.
func (o *output) put(part chunk) {
	o.change(func() { o.queue = append(o.queue, part) })
}

// end says that nothing follows.
func (o *output) end() {
	o.change(func() { o.closed = true })
}

func (o *output) change(do func()) {
	o.mu.Lock()
	do()
	o.mu.Unlock()
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// next are the parts that wait. last is true if nothing follows them.
func (o *output) next() (parts []chunk, last bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	parts, o.queue = o.queue, nil
	return parts, o.closed
}

// write writes until end, and says how much is written. It returns early when that fails.
func (o *output) write(taken func(bytes int) error) {
	defer close(o.done)
	bytes := 0
	for range o.more {
		parts, last := o.next()
		for _, part := range parts {
			to := o.stdout
			if part.stderr {
				to = o.stderr
			}
			if to != nil && o.failed == nil {
				_, o.failed = to.Write(part.data)
			}
			if bytes += len(part.data); bytes < window/4 {
				continue
			}
			if taken(bytes) != nil { // agentctl has ended
				return
			}
			bytes = 0
		}
		if last {
			return
		}
	}
}

// wait waits until all of a command that has ended is written, and returns the error of the writers.
func (o *output) wait(ctx context.Context) error {
	o.end()
	select {
	case <-o.done:
		return o.failed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
