package tree

import "hash/maphash"

// absences remembers the names that the kernel may cache as absent, by a bit for the hash
// of each. Names that share a bit cost the kernel a lookup. It is guarded by tree.mu.
type absences struct {
	bits  *[absenceBits / 64]uint64 // nil: none
	asked Absences
}

const absenceBits = 1 << 16

// Absences is a time in the sequence of [Host.MaybeAbsent].
type Absences uint64

func (a *absences) bit(t *nodes, dir uint64, name string) (word *uint64, bit uint64) {
	if a.bits == nil {
		a.bits = new([absenceBits / 64]uint64)
	}
	h := (maphash.String(t.seed, name) + dir*0x9e3779b97f4a7c15) >> 20 % absenceBits
	return &a.bits[h/64], 1 << (h % 64)
}

// Absences returns the present time. A caller takes it before it looks for a name.
func (h Host) Absences() Absences {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.absences.asked
}

// TellAbsent records that the kernel is about to be told that a name is absent. It was
// looked for after the time since. It reports false if the kernel must not cache that,
// because the name may have been made meanwhile.
func (h Host) TellAbsent(parent *Node, name string, since Absences) bool {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.absences.asked != since {
		return false
	}
	word, bit := t.absences.bit(&t.nodes, uint64(parent.id), name)
	*word |= bit
	return true
}

// MaybeAbsent is called when a name was made on the host. It reports whether the kernel may
// cache that it is absent.
func (h Host) MaybeAbsent(dir uint64, name string) bool {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.absences.asked++
	if t.absences.bits == nil {
		return false
	}
	word, bit := t.absences.bit(&t.nodes, dir, name)
	return *word&bit != 0
}

// ForgetAbsences is called before the kernel drops every name.
func (h Host) ForgetAbsences() {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.absences.bits = nil
	t.absences.asked++
}
