package tree

import (
	"time"

	"golang.org/x/sys/unix"
)

// Times do not always tell a change of a file from the next: where they are coarse, and while a
// write copies.

// youngFor is longer than the granularity of file times. Kernels before 6.13 set them
// by the timer tick.
const youngFor = 20 * time.Millisecond

// Settling is the time after which the last change of a file can be told from the next.
const Settling = 2 * youngFor

// young reports whether a file changed so recently that its next change may have the
// same time.
func (h Host) young(st *unix.Stat_t) bool {
	if !h.t.CoarseTimes {
		return false
	}
	age := time.Since(time.Unix(st.Ctim.Unix()))
	return age > -youngFor && age < youngFor
}

// Settles reports whether a file changed so recently that a write may not have copied all of
// its data: the kernel sets the times before.
func Settles(st *unix.Stat_t) bool {
	age := time.Since(time.Unix(st.Ctim.Unix()))
	return age > -Settling && age < Settling
}

// Doubt records that the kernel may have pages of n that are older than its attributes.
func (h Host) Doubt(n *Node) {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	n.flags |= isYoung | isDoubted
}

// Doubted returns the node with a number if its pages became doubtful after its last open
// looked at the file, else nil.
func (h Host) Doubted(id uint64) *Node {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	if n := h.t.get(id); n != nil && n.flags&isDoubted != 0 {
		return n
	}
	return nil
}

// OpenIO is the I/O state of n while it has open handles, else nil.
func (h Host) OpenIO(n *Node) *IO {
	h.t.mu.Lock()
	defer h.t.mu.Unlock()
	if n.more == nil || n.more.handles == 0 {
		return nil
	}
	return &n.more.io
}
