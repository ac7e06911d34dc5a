package tools

import (
	"context"
	"fmt"
	"sync"
)

// Limits of what the calls of all clients hold in memory at a time.
const (
	maxArguments = 64 << 20 // bytes of the arguments of the calls that run or wait
	maxContents  = 4        // calls that hold the content of files of any size
)

// arguments counts the bytes of the arguments of calls. It is safe for concurrent use.
type arguments struct {
	mu   sync.Mutex
	held int
}

// hold counts the arguments of a call. The caller releases them. A call that does not fit is refused at once: a call
// that waits holds its arguments.
func (a *arguments) hold(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held > 0 && a.held+n > maxArguments {
		return fmt.Errorf("the calls that run have %d MiB of arguments, and with those of this call more than %d: "+
			"wait for a result, and call again", a.held>>20, maxArguments>>20)
	}
	a.held += n
	return nil
}

func (a *arguments) release(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held -= n
}

// limits bound what calls do at a time.
type limits struct {
	writing  chan struct{} // has an element while a tool changes files
	contents chan struct{} // has an element for each call that holds the content of files
	held     *arguments
	bodies   *arguments // of requests over HTTP, before their calls are read
}

func newLimits() limits {
	return limits{writing: make(chan struct{}, 1), contents: make(chan struct{}, maxContents), held: &arguments{}, bodies: &arguments{}}
}

// turn waits until a call with arguments of a size may go on. The caller leaves afterwards.
func (l limits) turn(ctx context.Context, about tool, size int) (leave func(), err error) {
	if err := l.held.hold(size); err != nil {
		return nil, err
	}
	of := l.contents
	switch {
	case about.writes:
		of = l.writing
	case !about.contents:
		return func() { l.held.release(size) }, nil
	}
	out, err := enter(ctx, of)
	if err != nil {
		l.held.release(size)
		return nil, err
	}
	return func() { out(); l.held.release(size) }, nil
}

// enter waits for an element of a channel whose capacity is a limit, and returns how to leave.
func enter(ctx context.Context, limit chan struct{}) (leave func(), err error) {
	select {
	case limit <- struct{}{}:
		return func() { <-limit }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
