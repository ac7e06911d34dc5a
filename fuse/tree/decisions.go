package tree

import (
	"math"

	"agentsh/policy"
)

// The tree caches, for a file with one name, which operations the rules allow without
// an event or an approval. The next request for such an operation needs neither the
// path nor the rules. An entry of the cache ends when a name of the file is added or
// removed, or when a directory above it is renamed. It also ends when the rules are
// replaced.

// Decision is the cached decision about one operation on a file.
type Decision struct {
	Allowed    bool   // the rules allow the operation
	Small      bool   // see [DirectMin]
	Generation uint32 // of the cache, for [Tree.CacheAllowed]
}

// Cached returns the node with a number of the kernel, or nil, and the cached decision
// for the operation. The caller holds [Tree.Moves].
func (t *Tree) Cached(id uint64, op policy.FileOp) (*Node, Decision) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.get(id)
	if n == nil {
		return nil, Decision{}
	}
	return n, Decision{
		Allowed:    n.allowedIn == t.generation && n.allowed&uint16(op) != 0,
		Small:      n.flags&isSmall != 0,
		Generation: t.generation,
	}
}

// CacheAllowed records that the rules allow an operation on a file with one name. The
// caller must have read the generation before it read the rules.
func (t *Tree) CacheAllowed(n *Node, op policy.FileOp, generation uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	named := n.Parent != nil || n == t.root
	onceOnly := n.more == nil || len(n.more.links)+len(n.more.former) == 0
	if generation != t.generation || generation == math.MaxUint32 || !named || !onceOnly {
		return
	}
	if n.allowedIn != generation {
		n.allowed, n.allowedIn = 0, generation
	}
	n.allowed |= uint16(op) // an operation with a higher bit is not cached
}

// ForgetAllowed empties the cache, because the rules were replaced.
func (t *Tree) ForgetAllowed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.newGeneration()
}

// newGeneration invalidates every entry of the cache. The last generation caches
// nothing, because no number is used twice.
func (t *nodes) newGeneration() {
	if t.generation < math.MaxUint32 {
		t.generation++
	}
}

// renamed forgets what was allowed under the names that n had. For a directory it
// forgets the names below it too.
func (t *nodes) renamed(n *Node) {
	n.allowed = 0
	if n.children > 0 {
		t.newGeneration()
	}
}
