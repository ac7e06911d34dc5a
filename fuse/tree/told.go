package tree

import "golang.org/x/sys/unix"

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
	toldUnknown = 1 // the node has got another file
)

// fingerprint returns a number that differs, in practice always, if one of the
// attributes differs that the kernel caches. The access time is not one of them.
func fingerprint(st *unix.Stat_t) uint64 {
	h := st.Ino
	for _, v := range [...]uint64{
		uint64(st.Size), uint64(st.Mtim.Nano()), uint64(st.Ctim.Nano()), uint64(st.Mode)<<32 | uint64(uint32(st.Nlink)),
		uint64(st.Uid)<<32 | uint64(st.Gid),
	} {
		h = (h ^ v) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return max(h, toldUnknown+1)
}

// Moment is a time in the sequence of changes that a tree has recorded. A caller takes
// it before it reads attributes. So the tree detects that they are older than those
// that another caller has recorded meanwhile.
type Moment uint64

// Latest is the moment for attributes that count as the newest.
const Latest Moment = 1<<64 - 1

// Now returns the present moment.
func (h Host) Now() Moment { return Moment(h.t.changes.Load()) }

// outdated reports whether attributes that were read after a moment, and differ from
// those that are recorded, may be the older ones. The caller holds mu.
func outdated(t *Tree, at Moment) bool { return at != Latest && Moment(t.changes.Load()) != at }

// record stores what the kernel is told. The caller holds mu.
func record(t *Tree, n *Node, now uint64, st *unix.Stat_t) {
	if n.told != now && n.told != toldNothing {
		t.changes.Add(1)
	}
	n.told = now
	n.flags &^= isDropped
	t.setSmall(n, st)
}

// Answer says how attributes that the kernel is about to be told relate to what it was
// told before.
type Answer struct {
	Changed     bool // the kernel was told other attributes before, and may ignore these: see [Host.Sure]
	Passing     bool // the kernel must not keep these: a notice is on its way, or it was told newer ones meanwhile
	NameWatched bool // a change of the name is noticed
	Watched     bool // a change of the attributes is noticed
}

// Tell records that a thread is about to be told the attributes st of n, as an entry of
// parent. They were read after the moment at. parent is nil if the answer is about no name.
// The thread is 0 if it is not known.
func (h Host) Tell(parent, n *Node, st *unix.Stat_t, at Moment, thread uint32) Answer {
	t := h.t
	now, young := fingerprint(st), h.young(st)
	t.mu.Lock()
	defer t.mu.Unlock()
	a := Answer{
		Changed:     n.told != toldNothing && n.told != now,
		NameWatched: parent != nil && parent.flags&isWatched != 0,
	}
	switch {
	case n.kind == unix.S_IFDIR || n == t.root:
		a.Watched = n.flags&isWatched != 0
	case st.Nlink == 1 && n.Parent != nil: // a second name can be outside the watched directories
		a.Watched = n.Parent.flags&isWatched != 0
	}
	alone := n.kind == unix.S_IFDIR && t.askers.alone(n.id, thread)
	if a.Changed && outdated(t, at) {
		a.Changed, a.Passing = false, true
		return a
	}
	a.Changed = a.Changed && !alone
	if young || n.told != now && n.flags&hasPages != 0 { // the kernel keeps pages if size and time are as before
		n.flags |= isYoung
	}
	record(t, n, now, st)
	if a.Changed {
		n.flags |= isUnsure
	}
	a.Passing = n.flags&isUnsure != 0 || t.notices[uint64(n.id)] > 0
	return a
}

// Difference says how a file relates to what the kernel was told of it.
type Difference struct {
	// Differs: the kernel may cache other attributes or pages, or may ignore attributes
	// because a notice is on its way.
	Differs bool
	// Tell: the kernel has to be told now. The caller sends a notice, and later calls
	// [Host.Noticed].
	Tell bool
	// Outdated: the kernel was told newer attributes meanwhile. The caller reads them again.
	Outdated bool
	// Directory: the node is one.
	Directory bool
	// Pages: the kernel may have pages of the file.
	Pages bool
}

// Differs compares the attributes st of a file, which were read after the moment at, with
// what the kernel was told. opens says that the kernel drops the file's pages if they
// differ. Until a notice is sent, the caller lets nobody else call Differs or Sure.
func (h Host) Differs(n *Node, st *unix.Stat_t, at Moment, opens bool) Difference {
	t := h.t
	now, young := fingerprint(st), h.young(st)
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.told != now && outdated(t, at) {
		return Difference{Outdated: true}
	}
	d := Difference{Differs: young || n.flags&isYoung != 0 || t.notices[uint64(n.id)] > 0}
	switch {
	case young:
		n.flags |= isYoung
	case opens:
		n.flags &^= isYoung | isDoubted
	}
	if n.told == now && n.flags&(isUnsure|isDropped) == 0 {
		return d
	}
	record(t, n, now, st)
	n.flags &^= isUnsure // the kernel ignores all answers that are on their way
	notice(t, n)
	return Difference{Differs: true, Tell: true}
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

// Drop is [Host.Differs] for a caller that makes the kernel drop a node's attributes and
// pages, and that answers no request. It says so once until the kernel asks again.
// Differs without Tell means that the pages alone may be outdated, and that the
// attributes are too young to know it: the caller compares again after [Settling]. written
// says that a write has ended: pages that were read meanwhile may have the times of that write,
// and not its data.
func (h Host) Drop(n *Node, st *unix.Stat_t, at Moment, written bool) Difference {
	now, young := fingerprint(st), h.young(st)
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case n.flags&isDropped != 0 || n.told == toldNothing:
		return Difference{}
	case n.told != now && outdated(t, at):
		return Difference{Outdated: true}
	case n.told == now && young:
		return Difference{Differs: true}
	case n.told == now && written && n.flags&hasPages != 0:
		n.flags |= isYoung | isDoubted // a notice now would reach a read that is on its way
		return Difference{Differs: true}
	case n.told == now && n.flags&isYoung == 0:
		return Difference{}
	}
	n.flags &^= isYoung | isDoubted
	if young {
		n.flags |= isYoung
	}
	n.flags |= isDropped
	notice(t, n)
	return Difference{Differs: true, Tell: true, Directory: n.kind == unix.S_IFDIR, Pages: n.flags&hasPages != 0 || n.kind != unix.S_IFREG}
}

// Sure reports whether the kernel may have ignored an answer with changed attributes. The
// caller then tells it to ask again. Until that is sent, the caller lets nobody else call
// Differs or Sure.
func (h Host) Sure(id uint64) (ask bool) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.get(id)
	if n == nil || n.flags&isUnsure == 0 {
		return false
	}
	n.flags &^= isUnsure
	if n.kind == unix.S_IFDIR {
		t.askers.none(n.id)
	}
	return true
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

// Child returns the known node of an entry and its number, or nil. The number is for
// callers that answer no request: the kernel may forget the node meanwhile.
func (h Host) Child(parent *Node, name string) (*Node, uint64) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.child(parent, name)
	if n == nil {
		return nil, 0
	}
	return n, uint64(n.id)
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

// LostName is a name that the host has taken from a file. The file and the directory are
// given by number.
type LostName struct {
	ID, Parent uint64
	Name       string
	// Used: the kernel may use the name without a request that finds out. That is so for
	// directories and links, whose entries and text it caches, and for an open file, which
	// may get another name.
	Used bool
}

// OnLost sets the function that is called when a node loses a name, which does not lead to
// the node in the backing any more. The kernel may still use the name for the node, until
// [Host.Settled] is called. The function is called under the tree's lock.
func (h Host) OnLost(f func(LostName)) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = f
}

// Lost removes a name that does not lead to n in the backing any more, and returns the
// number of the node. It reports false if n does not have the name, or if the name has
// another path by now.
func (h Host) Lost(n *Node, at NamedPath) (id uint64, ok bool) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.id == 0 || t.child(at.Parent, at.Name) != n {
		return 0, false
	}
	if path, ok := t.join(at.Link); !ok || path != at.Path {
		return 0, false
	}
	id = uint64(n.id)
	t.lose(n, at.Link)
	return id, true
}

// lose removes a name of n. Until [Host.Settled] the kernel may still use it.
func (t *Tree) lose(n *Node, l Link) {
	open := n.more != nil && n.more.handles > 0
	if t.settling == nil {
		t.settling = map[uint64]int{}
	}
	t.settling[uint64(n.id)]++
	t.lost(LostName{uint64(n.id), uint64(l.Parent.id), l.Name, open || n.kind != unix.S_IFREG})
	if len(n.names()) == 1 {
		if path, ok := lastPath(t, l); ok {
			n.extras().lostAt = path
		}
		n.flags |= isLost
		n.told = toldNothing
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
	n.key, n.told, n.allowed = inodeOf(st), toldUnknown, 0
	t.changes.Add(1)
	t.hash(n)
	t.setSmall(n, st)
	return true
}

// Settled records that the kernel does not use a name any more that [Host.OnLost] was told
// of. A name that the node lost later may still be in use.
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
}

// Former returns the path at which the kernel may still use a file or directory that the
// host has moved or removed, or that lies below such a directory.
func (h Host) Former(n *Node) (path string, ok bool) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	top := n
	for top.Parent != nil {
		top = top.Parent
	}
	if top == t.root || top.flags&isLost == 0 {
		return "", false
	}
	return last(t, n)
}

// Last returns the path that a node had when the host moved or removed it, or a directory
// above it. It stays known after the kernel has dropped the name.
func (h Host) Last(n *Node) (path string, ok bool) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	return last(t, n)
}

func last(t *Tree, n *Node) (path string, ok bool) {
	if n.Parent != nil {
		return lastPath(t, n.Link)
	}
	if n.more == nil || n.more.lostAt == "" {
		return "", false
	}
	return n.more.lostAt, true
}

// lastPath returns the present path of a name, or the last one.
func lastPath(t *Tree, l Link) (path string, ok bool) {
	path = l.Name
	for p := l.Parent; p != t.root; p = p.Parent {
		if p.Parent == nil {
			if p.more == nil || p.more.lostAt == "" {
				return "", false
			}
			return Join(p.more.lostAt, path), true
		}
		path = Join(p.Name, path)
	}
	return path, true
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
