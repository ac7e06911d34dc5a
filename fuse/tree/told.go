package tree

import (
	"strings"
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
func (h Host) fingerprint(st *unix.Stat_t) uint64 {
	if !h.t.CoarseTimes {
		return hashOf(st)
	}
	if age := time.Since(time.Unix(st.Ctim.Unix())); age > -youngFor && age < youngFor {
		return toldYoung
	}
	return hashOf(st)
}

func hashOf(st *unix.Stat_t) uint64 {
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
	Changed     bool // the kernel was told other attributes before, or may have been: see [Host.Sure]
	NameWatched bool // a change of the name is noticed
	Watched     bool // a change of the attributes is noticed
}

// Tell records that the kernel is about to be told the attributes st of n, as an entry
// of parent. parent is nil if the answer is about no name.
func (h Host) Tell(parent, n *Node, st *unix.Stat_t) Answer {
	t := h.t
	now := h.fingerprint(st)
	t.mu.Lock()
	defer t.mu.Unlock()
	before := n.told
	n.told = now
	n.flags &^= isDropped
	t.setSmall(n, st)
	changed := before != toldNothing && (before != now || now == toldYoung)
	if changed {
		n.flags |= isUnsure
	}
	a := Answer{
		Changed:     changed,
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

// Differs reports whether the kernel may have been told other attributes than st, or may
// ignore them because a notice is on its way. tell says that the kernel has to be told now:
// the caller sends a notice, and later calls [Host.Noticed].
func (h Host) Differs(n *Node, st *unix.Stat_t) (differs, tell bool) {
	t := h.t
	now := h.fingerprint(st)
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.told == now && now != toldYoung && n.flags&(isUnsure|isDropped) == 0 {
		return t.notices[uint64(n.id)] > 0, false
	}
	n.told = now
	n.flags &^= isDropped
	t.setSmall(n, st)
	notice(t, n)
	return true, true
}

// notice counts a notice that is on its way. The caller holds mu.
func notice(t *Tree, n *Node) {
	if t.notices == nil {
		t.notices = map[uint64]int{}
	}
	t.notices[uint64(n.id)]++
}

// Noticed records that the kernel has received a notice about a node.
func (h Host) Noticed(id uint64) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.notices[id]--; t.notices[id] <= 0 {
		delete(t.notices, id)
	}
}

// Drop reports whether the kernel has to drop what it was told of n, because that may
// differ from st. It reports it once until the kernel asks again. The caller calls
// [Host.Noticed] when the kernel has been told.
func (h Host) Drop(n *Node, st *unix.Stat_t) bool {
	now := h.fingerprint(st)
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.flags&isDropped != 0 || n.told == toldNothing || n.told == now && now != toldYoung {
		return false
	}
	n.flags |= isDropped
	notice(t, n)
	return true
}

// Sure records that the kernel was told to ask again for attributes that had changed.
// It may have ignored the answer with the change.
func (h Host) Sure(id uint64) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := t.get(id); n != nil {
		n.flags &^= isUnsure
	}
}

// Made removes every name of a node whose inode number was given to a file that was
// just made: its own file does not exist any more.
func (h Host) Made(st *unix.Stat_t) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.findInode(inodeOf(st))
	if n == nil || n == t.root {
		return
	}
	t.unhash(n)
	for _, l := range n.names() {
		if t.child(l.Parent, l.Name) == n {
			t.lose(n, l)
		}
	}
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

// Lost removes a name that does not lead to n in the backing any more. Until
// [Host.Settled] the kernel may still use the name for n. Lost reports false if n
// does not have the name, or if the name has another path by now.
func (h Host) Lost(n *Node, at NamedPath) bool {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.id == 0 || t.child(at.Parent, at.Name) != n {
		return false
	}
	if path, ok := t.join(at.Link); !ok || path != at.Path {
		return false
	}
	if t.settling == nil {
		t.settling = map[uint64]int{}
	}
	t.settling[uint64(n.id)]++
	t.lose(n, at.Link)
	return true
}

func (t *Tree) lose(n *Node, l Link) {
	if len(n.names()) == 1 {
		if path, ok := t.join(l); ok && n.kind == unix.S_IFDIR {
			n.extras().lostAt = path
		}
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

// Take makes a node represent the file with the attributes st, which has replaced its
// own file under its only name. It reports false if something else still refers to
// either file. Otherwise every open would first find another file, for as long as the
// host replaces it again and again.
func (h Host) Take(n *Node, at NamedPath, st *unix.Stat_t) bool {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	single := n.id != 0 && n.Link == at.Link && (n.more == nil || len(n.more.links)+len(n.more.former)+n.more.handles+n.more.gone == 0)
	if !single || n.flags&(isLinked|isReplaced|isLost) != 0 || uint32(n.kind) != st.Mode&unix.S_IFMT || n.kind != unix.S_IFREG {
		return false
	}
	if path, ok := t.join(at.Link); !ok || path != at.Path || t.findInode(inodeOf(st)) != nil || st.Nlink != 1 {
		return false
	}
	t.unhash(n)
	n.key, n.told, n.allowed = inodeOf(st), toldYoung, 0
	t.hash(n)
	t.setSmall(n, st)
	return true
}

// Settled records that the kernel does not use a name of a node any more for which
// [Host.Lost] returned true. A name that was lost later may still be in use.
func (h Host) Settled(id uint64) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settling[id]--; t.settling[id] > 0 {
		return
	}
	delete(t.settling, id)
	if n := t.get(id); n != nil {
		t.settle(n)
	}
}

func (t *nodes) settle(n *Node) {
	n.flags &^= isLost
	if n.more != nil {
		n.more.lostAt = ""
	}
}

// Former returns the path at which the kernel may still use a directory that the host
// has moved or removed, or that lies below such a directory.
func (h Host) Former(n *Node) (path string, ok bool) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for ; n != nil && n != t.root; n = n.Parent {
		if n.Parent == nil {
			if n.flags&isLost == 0 || n.more == nil || n.more.lostAt == "" {
				return "", false
			}
			return strings.TrimSuffix(Join(n.more.lostAt, path), "/"), true
		}
		path = strings.TrimSuffix(Join(n.Name, path), "/")
	}
	return "", false
}

// Place returns the node of a directory that was just found in the backing. It counts
// no reference of the kernel: the node stays while an entry below it is referred to.
func (h Host) Place(parent *Node, name string, st *unix.Stat_t) *Node {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.place(parent, name, st)
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
