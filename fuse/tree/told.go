package tree

import (
	"time"

	"golang.org/x/sys/unix"
)

// The tree holds, for each node, a fingerprint of the attributes that the kernel was
// last told. So the server detects a file that the host changed behind the mount. The
// tree also knows which directories are watched, and which nodes lost their name on
// the host.

// Host is the part of a tree that follows the host. Its methods are safe for concurrent
// use.
type Host struct{ t *Tree }

// Fingerprints that are not computed from attributes.
const (
	toldNothing = 0
	toldYoung   = 1 // the file changed so recently that its next change may have the same time
)

// youngFor is longer than the granularity of file times. Kernels before 6.13 set them
// by the timer tick.
const youngFor = 20 * time.Millisecond

// fingerprint returns a number that differs, in practice always, if one of the
// attributes differs that the kernel caches. The access time is not one of them.
func fingerprint(st *unix.Stat_t) uint64 {
	if age := time.Since(time.Unix(st.Ctim.Unix())); age > -youngFor && age < youngFor {
		return toldYoung
	}
	h := st.Ino
	for _, v := range [...]uint64{
		uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano()), uint64(st.Mode)<<32 | uint64(uint32(st.Nlink)),
		uint64(st.Uid)<<32 | uint64(st.Gid),
	} {
		h = (h ^ v) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return max(h, toldYoung+1)
}

// Answer says how attributes that the kernel is about to be told relate to what it was
// told before.
type Answer struct {
	Changed     bool // the kernel was told other attributes before, or may have been
	NameWatched bool // a change of the name is noticed
	Watched     bool // a change of the attributes is noticed
}

// Tell records that the kernel is about to be told the attributes st of n, as an entry
// of parent. parent is nil if the answer is about no name.
func (h Host) Tell(parent, n *Node, st *unix.Stat_t) Answer {
	t := h.t
	now := fingerprint(st)
	t.mu.Lock()
	defer t.mu.Unlock()
	before := n.told
	n.told = now
	t.setSmall(n, st)
	a := Answer{
		Changed:     before != toldNothing && (before != now || now == toldYoung),
		NameWatched: parent != nil && parent.flags&isWatched != 0,
	}
	switch {
	case n.kind == unix.S_IFDIR || n == t.root:
		a.Watched = n.flags&isWatched != 0
	case st.Nlink == 1 && n.Parent != nil: // a second name can be outside the watched directories
		a.Watched = n.Parent.flags&isWatched != 0
	}
	return a
}

// Differs reports whether the kernel may have been told other attributes than st.
func (h Host) Differs(n *Node, st *unix.Stat_t) bool {
	t := h.t
	now := fingerprint(st)
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.told != now || now == toldYoung
}

// SetWatched records whether changes of the host in a directory are noticed: of its
// names, of its own attributes, and of the files in it. Names and attributes that are
// told below a watched directory are cached for long. The caller sets it before the
// first answer below the directory. The node loses the mark when its directory loses
// its name.
func (h Host) SetWatched(id uint64, watched bool) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.get(id)
	if n == nil {
		return
	}
	n.flags &^= isWatched
	if watched {
		n.flags |= isWatched
	}
}

// Watched reports whether changes of the host in a directory are noticed.
func (h Host) Watched(n *Node) bool {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.flags&isWatched != 0
}

// Child returns the known node of an entry, or nil.
func (t *Tree) Child(parent *Node, name string) *Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.child(parent, name)
}

// NamedPath is a name of a node with its path relative to the mount.
type NamedPath struct {
	Link
	Path string
}

// Names returns the names of n with their paths. The root has none.
func (t *Tree) Names(n *Node) []NamedPath {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []NamedPath
	for _, l := range n.names() {
		if p, ok := t.join(l); ok {
			out = append(out, NamedPath{l, p})
		}
	}
	return out
}

// Aliased reports whether n has more than one known name.
func (t *Tree) Aliased(n *Node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.more != nil && len(n.more.links) > 0
}

// Lost removes a name that does not lead to n in the backing any more. Until
// [Host.Settled] the kernel may still use the name for n. Lost reports false if n
// does not have the name.
func (h Host) Lost(n *Node, l Link) bool {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.id == 0 || t.child(l.Parent, l.Name) != n {
		return false
	}
	t.lose(n, l)
	return true
}

func (t *Tree) lose(n *Node, l Link) {
	if len(n.names()) == 1 {
		n.flags |= isLost
		n.told = toldNothing
		open := n.more != nil && n.more.handles > 0
		if open && n.flags&isLinked == 0 {
			t.remember(n, l)
		}
		if !open || n.kind == unix.S_IFDIR {
			t.unhash(n) // the inode number may be used again
		}
		n.flags &^= isWatched
	}
	t.dropLink(n, l)
}

// Settled records that the kernel does not use the lost names of a node any more.
func (h Host) Settled(id uint64) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.get(id); n != nil {
		n.flags &^= isLost
	}
}

// Missing returns the error for a node that has no path. ESTALE makes the kernel look
// the path up again. ENOENT is for the users of a descriptor or of a working
// directory, after the kernel has dropped the name.
func (h Host) Missing(n *Node) unix.Errno {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; n != nil; n = n.Parent {
		if n.flags&(isLost|isReplaced) != 0 {
			return unix.ESTALE
		}
	}
	return unix.ENOENT
}
