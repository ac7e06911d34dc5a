// Package tree maps the kernel's node numbers to names below one mount.
//
// [Tree] has the nodes, their names and the references to them (tree.go, on the store
// of nodes.go). It caches decisions of the rules for each node (decisions.go).
// [Backing] accesses the files of the backing directory by path (backing.go). The
// package reads no requests and no rules.
package tree

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Tree maps kernel node numbers to names below the mount.
type Tree struct {
	// Moves is locked shared while a path is evaluated and used, and exclusively by
	// rename. So a path cannot change its meaning between evaluation and use.
	Moves sync.RWMutex
	Host  Host
	// CoarseTimes says that two changes of a file within a timer tick give it the same
	// time. It is set before the tree is used.
	CoarseTimes bool

	mu   sync.Mutex
	root *Node
	nodes
	spare   []*extra       // for reuse
	notices map[uint64]int // on their way to the kernel, by node
	changes atomic.Uint64  // of what the kernel is told, see [Moment]

	settling map[uint64]int // names that were lost and that the kernel may still use, by node
	absences absences
	askers   askers

	released func(id uint64, path string, removed bool) // see [Host.OnRelease]
	lost     func(LostName)                             // see [Host.OnLost]
}

// New returns the tree of a mount whose root has these attributes.
func New(st *unix.Stat_t) *Tree {
	t := &Tree{nodes: newNodes(), lost: func(LostName) {}}
	t.Host = Host{t}
	t.changes.Add(1) // the first moment is not 0
	t.root = t.add(inodeOf(st), st.Mode&unix.S_IFMT)
	t.root.lookups = 1
	return t
}

// Node returns the node with a number of the kernel, or nil.
func (t *Tree) Node(id uint64) *Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.get(id)
}

// Paths returns the names of n relative to the mount. The root is "". A node without a
// name, or below a directory without one, has no paths.
func (t *Tree) Paths(n *Node) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pathsLocked(n)
}

func (t *Tree) pathsLocked(n *Node) []string {
	if n == t.root {
		return []string{""}
	}
	if n.Parent == nil {
		return nil
	}
	out := make([]string, 0, 1)
	if p, ok := t.join(n.Link); ok {
		out = append(out, p)
	}
	if n.more != nil {
		for _, l := range n.more.links {
			if p, ok := t.join(l); ok {
				out = append(out, p)
			}
		}
	}
	return out
}

// Bindings returns the paths whose rules apply to n. These are its names. For a node
// that was hard linked in this mount they include all former names, and for an
// unlinked node the last one. An open file below a directory that the host has moved or
// removed has its last path.
func (t *Tree) Bindings(n *Node) (names, all []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	names = t.pathsLocked(n)
	if n.more == nil || len(n.more.former) == 0 {
		if n.more != nil && n.more.handles > 0 && len(names) == 0 {
			if path, ok := last(t, n); ok {
				return nil, []string{path}
			}
		}
		return names, names
	}
	return names, slices.Concat(names, n.more.former)
}

// join builds the path of a name from the last element to the first.
func (t *Tree) join(l Link) (string, bool) {
	size, depth := len(l.Name), 1
	for p := l.Parent; p != t.root; p = p.Parent {
		if p.Parent == nil {
			return "", false
		}
		size += len(p.Name) + 1
		depth++
	}
	if depth == 1 {
		return l.Name, true
	}
	buf := make([]byte, size)
	at := size
	for {
		at -= len(l.Name)
		copy(buf[at:], l.Name)
		if l.Parent == t.root {
			return string(buf), true
		}
		at--
		buf[at] = '/'
		l = l.Parent.Link
	}
}

// Adopt returns the node for an entry that was just found in the backing or added to
// it. It counts one more reference of the kernel.
func (t *Tree) Adopt(parent *Node, name string, st *unix.Stat_t) *Node {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.place(parent, name, st)
	if n.lookups < manyLookups {
		n.lookups++
	}
	return n
}

// place returns the node for an entry of the backing, and gives it the entry's name.
func (t *Tree) place(parent *Node, name string, st *unix.Stat_t) *Node {
	key, kind := inodeOf(st), uint16(st.Mode&unix.S_IFMT)
	n := t.findInode(key)
	if n != nil && n.kind != kind {
		t.unhash(n) // the inode number was used again
		n = nil
	}
	if n == t.root {
		n = nil
	}
	if n != nil && above(n, parent) { // the host has moved n below a directory of its former name
		t.unhash(n)
		n = nil
	}
	if old := t.child(parent, name); old != nil && old != n {
		t.lose(old, Link{parent, name})
	}
	if n == nil {
		n = t.add(key, uint32(kind))
	}
	t.setSmall(n, st)
	t.addLink(n, Link{parent, name})
	return n
}

// DirectMin is the size in bytes from which a file that is only read bypasses the
// server. Smaller files are read once and served from the page cache. That saves the
// attribute refresh that a bypassed read costs.
const DirectMin = 128 << 10

// maxSpare bounds the extras that are stored for reuse.
const maxSpare = 64

// smallFile reports whether a file is read through the page cache of the mount. Such a
// file may be opened in the backing at the first real read: the tree knows every name
// that the file gets from now on.
func smallFile(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&unix.S_IRUSR != 0 && st.Size < DirectMin && st.Nlink == 1
}

func (t *Tree) setSmall(n *Node, st *unix.Stat_t) {
	n.flags &^= isSmall
	if smallFile(st) {
		n.flags |= isSmall
	}
}

// Seen updates n with the present attributes of its file.
func (t *Tree) Seen(n *Node, st *unix.Stat_t) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setSmall(n, st)
}

// Open counts one more handle of n. n stays in the tree while it has handles.
func (t *Tree) Open(n *Node) *IO {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := len(t.spare) - 1; n.more == nil && last >= 0 {
		n.more, t.spare = t.spare[last], t.spare[:last]
	}
	x := n.extras()
	x.handles++
	if n.flags&isStale != 0 {
		x.io.Stale = true
		n.flags &^= isStale
	}
	return &x.io
}

// Paged records that the kernel may have pages of n from now on. It reports whether it had
// none before.
func (t *Tree) Paged(n *Node) (first bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	first = n.flags&hasPages == 0
	n.flags |= hasPages
	return first
}

// Close counts one handle less, after Open.
func (t *Tree) Close(n *Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := n.more
	x.handles--
	if x.handles == 0 && x.io.Stale {
		x.io.Stale = false
		n.flags |= isStale
	}
	if x.handles == 0 && x.gone == 0 && len(x.links)+len(x.former)+len(x.lostAt) == 0 && x.io == (IO{}) {
		if n.more = nil; len(t.spare) < maxSpare {
			*x = extra{}
			t.spare = append(t.spare, x)
		}
	}
	t.release(n)
}

// gone returns the descriptor of a file whose last name was removed, or 0. The caller
// holds t.mu.
func (t *Tree) gone(n *Node) int {
	if n.more == nil {
		return 0
	}
	return n.more.gone
}

// DupUnlinked returns a copy of the descriptor of a file whose last name was removed,
// or 0.
func (t *Tree) DupUnlinked(n *Node) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fd := t.gone(n)
	if fd == 0 {
		return 0, nil
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
}

func (t *Tree) addLink(n *Node, l Link) {
	if t.child(l.Parent, l.Name) == n {
		return
	}
	if n.kind == unix.S_IFDIR && n.Parent != nil { // a directory has one name
		old := n.Link
		t.detach(n, old)
		defer t.release(old.Parent)
	}
	t.attach(n, l)
}

// dropLink removes a name of n. The node stays while the kernel refers to it.
func (t *Tree) dropLink(n *Node, l Link) {
	if n.flags&isLinked != 0 {
		t.remember(n, l)
	}
	t.detach(n, l)
	t.release(n)
	t.release(l.Parent)
}

// remember stores a removed name of n whose rules still apply to n.
func (t *Tree) remember(n *Node, l Link) {
	if p, ok := t.join(l); ok && len(n.extras().former) < maxFormerNames {
		n.more.former = append(n.more.former, p)
	}
}

// needed reports whether n is referred to by anything but its names.
func (t *Tree) needed(n *Node) bool {
	return n == t.root || n.lookups > 0 || n.children > 0 || n.more != nil && n.more.handles > 0 ||
		n.flags&isLinked != 0 && n.Parent != nil
}

// release removes nodes that are not needed any more, from n upwards.
func (t *Tree) release(n *Node) {
	if n.id == 0 || t.needed(n) {
		return
	}
	t.Host.announce(n)
	if n.more != nil && n.more.gone != 0 {
		CloseFD(n.more.gone)
	}
	names := n.names()
	for _, l := range names {
		t.detach(n, l)
	}
	delete(t.askers.threads, n.id)
	t.remove(n)
	for _, l := range names {
		t.release(l.Parent)
	}
}

// Forget subtracts count from the references of the kernel.
func (t *Tree) Forget(id, count uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.get(id)
	if n == nil || n == t.root || n.lookups == manyLookups {
		return
	}
	n.lookups -= uint32(min(count, uint64(n.lookups)))
	t.release(n)
}

// Unlink records that a name was removed. If it was the last name, gone is an O_PATH
// descriptor of the file for later requests of the kernel. The tree takes gone over.
func (t *Tree) Unlink(parent *Node, name string, gone int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.child(parent, name)
	if n == nil || t.gone(n) != 0 {
		if gone != 0 {
			CloseFD(gone)
		}
		return
	}
	if gone != 0 {
		n.extras().gone = gone
		if n.flags&isLinked == 0 {
			t.remember(n, Link{parent, name})
		}
		t.unhash(n) // the inode number may be used again at once
	}
	t.dropLink(n, Link{parent, name})
}

// HardLinked records that the rules for all names of n apply to n.
func (t *Tree) HardLinked(n *Node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.flags |= isLinked
}

// Walk finds the node at a path relative to the mount. If an element is not known, it
// returns the deepest known directory and the unknown name.
func (t *Tree) Walk(rel string) (n *Node, unknown string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n = t.root
	for rel != "" {
		var name string
		name, rel, _ = strings.Cut(rel, "/")
		next := t.child(n, name)
		if next == nil {
			return n, name
		}
		n = next
	}
	return n, ""
}

// Known is a copy of the state of a node.
type Known struct {
	ID    uint64
	Kind  uint32
	Names []KnownName
	depth int
}

// KnownName is one name of a node. Its directory is given by number.
type KnownName struct {
	Parent uint64
	Name   string
}

// Below returns n and the known nodes below it, deepest first.
func (t *Tree) Below(n *Node) []Known {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []Known{describe(n, 0)}
	if n.children == 0 {
		return out
	}
	for _, chunk := range t.chunks {
		for i := range chunk {
			if depth := depthBelow(&chunk[i], n); depth > 0 {
				out = append(out, describe(&chunk[i], depth))
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Known) int { return b.depth - a.depth })
	return out
}

func describe(n *Node, depth int) Known {
	k := Known{ID: uint64(n.id), Kind: uint32(n.kind), depth: depth}
	for _, l := range n.names() {
		k.Names = append(k.Names, KnownName{uint64(l.Parent.id), l.Name})
	}
	return k
}

// depthBelow returns the distance of n below top by one of its names. 0 means that n
// is not below top.
func depthBelow(n, top *Node) int {
	for _, l := range n.names() {
		depth := 1
		for p := l.Parent; p != nil; p = p.Parent {
			if p == top {
				return depth
			}
			depth++
		}
	}
	return 0
}

// Join appends a name to a path relative to the mount.
func Join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// Split is the reverse of Join.
func Split(rel string) (dir, name string) {
	i := strings.LastIndexByte(rel, '/')
	if i < 0 {
		return "", rel
	}
	return rel[:i], rel[i+1:]
}

// Root returns the root of the mount.
func (t *Tree) Root() *Node { return t.root }

// IsRoot reports whether n is the root of the mount.
func (t *Tree) IsRoot(n *Node) bool { return n == t.root }

// Lock locks the tree for a request by path: exclusively if alone is set, otherwise
// shared.
func (t *Tree) Lock(alone bool) {
	if alone {
		t.Moves.Lock()
		return
	}
	t.Moves.RLock()
}

// Unlock releases the lock that Lock acquired.
func (t *Tree) Unlock(alone bool) {
	if alone {
		t.Moves.Unlock()
		return
	}
	t.Moves.RUnlock()
}
