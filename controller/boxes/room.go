package boxes

import (
	"context"
	"fmt"
	"sync"
)

// Bounds of what the answers of all calls hold in memory at a time.
const (
	callRoom  = 2 * defaultOutput // bytes that each call may hold in any case: the default of its two outputs
	allRoom   = 256 << 20         // bytes beyond these, of all calls together
	maxLarge  = 4                 // calls that hold a file of more than smallFile bytes
	smallFile = 1 << 20
)

// errRoom refuses a call whose answer does not fit.
var errRoom = fmt.Errorf("the answers of the requests that run have more than %d MiB together: wait for an answer, and ask again; "+
	"or set a smaller max_output_bytes, or write the output into a file and copy it with copy_out", allRoom>>20)

// rooms count what answers hold in memory. It is safe for concurrent use.
type rooms struct {
	most  int           // bytes, without callRoom of each call
	large chan struct{} // has an element for each call that holds a large file

	mu   sync.Mutex
	used int // of most
}

func newRooms() *rooms { return &rooms{most: allRoom, large: make(chan struct{}, maxLarge)} }

// room is that of one answer, until leave. It is safe for concurrent use.
type room struct {
	of    *rooms
	held  int // bytes; of.mu guards it
	turns int // of large
}

// take counts bytes that the answer holds from now on. It does not wait, as a call that waits holds what it has.
func (r *room) take(n int) error {
	r.of.mu.Lock()
	defer r.of.mu.Unlock()
	more := max(r.held+n-callRoom, 0) - max(r.held-callRoom, 0)
	if r.of.used+more > r.of.most {
		return errRoom
	}
	r.of.used += more
	r.held += n
	return nil
}

// turn waits until the answer may hold a large file. The caller holds nothing yet.
func (r *room) turn(ctx context.Context) error {
	select {
	case r.of.large <- struct{}{}:
		r.turns++
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave gives the room back. A second call does nothing.
func (r *room) leave() {
	r.of.mu.Lock()
	r.of.used -= max(r.held-callRoom, 0)
	r.held = 0
	r.of.mu.Unlock()
	for ; r.turns > 0; r.turns-- {
		<-r.of.large
	}
}

// entryRoom is what an entry of a list holds besides its names and lines, in bytes.
const entryRoom = 200

// changes adds changes to a list that the answer holds.
func (r *room) changes(list *[]Change) func(Change) error {
	return func(c Change) error {
		*list = append(*list, c)
		return r.take(entryRoom + len(c.Path) + len(c.From) + len(c.Lines) + len(c.Without))
	}
}
