package fuse

import (
	"math"

	"agentsh/policy"
)

// What rules allow without a word is remembered for a file with one name: the
// next request for the same needs neither its path nor the rules. It is
// forgotten when the file gets or loses a name, when a directory does, and when
// the rules are exchanged.

// standing is what is remembered of a file.
type standing struct {
	allowed bool // of the operation that was asked for
	small   bool // see [smallFile]
	era     uint32
}

// standing returns the node of a kernel number, or nil, and what is remembered
// of it. [tree.moves] is held.
func (t *tree) standing(id uint64, op policy.FileOp) (*node, standing) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.get(id)
	if n == nil {
		return nil, standing{}
	}
	return n, standing{
		allowed: n.allowedIn == t.era && n.allowed&uint16(op) != 0,
		small:   n.flags&isSmall != 0,
		era:     t.era,
	}
}

// allow remembers that the rules of an era allow an operation on a file with one
// name. The era was read before the rules were.
func (t *tree) allow(n *node, op policy.FileOp, era uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if era != t.era || era == math.MaxUint32 || n.parent == nil && n != t.root || n.more != nil && len(n.more.links)+len(n.more.former) > 0 {
		return
	}
	if n.allowedIn != era {
		n.allowed, n.allowedIn = 0, era
	}
	n.allowed |= uint16(op) // what has a higher bit is not remembered
}

// forgetAllowed is for rules that were exchanged.
func (t *tree) forgetAllowed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.newEra()
}

// newEra forgets what was allowed for every file. In the last era nothing is
// remembered: numbers are not used twice.
func (t *nodes) newEra() {
	if t.era < math.MaxUint32 {
		t.era++
	}
}

// renamed forgets what was allowed under the names that n had, and for a
// directory under the names below it.
func (t *nodes) renamed(n *node) {
	n.allowed = 0
	if n.children > 0 {
		t.newEra()
	}
}
