package fuse

import (
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// tree maps kernel node numbers to names below the mount.
type tree struct {
	// moves is held shared while a path is judged and used, and exclusively
	// by rename: a path cannot change its meaning between the two.
	moves sync.RWMutex

	mu   sync.Mutex
	root *node
	nodes
	spare []*extra // to be used again
}

func newTree(st *unix.Stat_t) *tree {
	t := &tree{nodes: newNodes()}
	t.root = t.add(inodeOf(st), st.Mode&unix.S_IFMT)
	t.root.lookups = 1
	return t
}

// node returns the node of a kernel number, or nil.
func (t *tree) node(id uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.get(id)
}

// paths returns the names of n relative to the mount; the root is "". An
// unlinked node, or one below an unlinked directory, has none.
func (t *tree) paths(n *node) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pathsLocked(n)
}

func (t *tree) pathsLocked(n *node) []string {
	if n == t.root {
		return []string{""}
	}
	if n.parent == nil {
		return nil
	}
	out := make([]string, 0, 1)
	if p, ok := t.join(n.link); ok {
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

// bindings are the paths whose rules hold for n: its names, for a node that was
// hard linked here also those it had, and for an unlinked one the last.
func (t *tree) bindings(n *node) (names, all []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	names = t.pathsLocked(n)
	if n.more == nil || len(n.more.former) == 0 {
		return names, names
	}
	return names, slices.Concat(names, n.more.former)
}

// join builds the path of a name, last element first.
func (t *tree) join(l link) (string, bool) {
	size, depth := len(l.name), 1
	for p := l.parent; p != t.root; p = p.parent {
		if p.parent == nil {
			return "", false
		}
		size += len(p.name) + 1
		depth++
	}
	if depth == 1 {
		return l.name, true
	}
	buf := make([]byte, size)
	at := size
	for {
		at -= len(l.name)
		copy(buf[at:], l.name)
		if l.parent == t.root {
			return string(buf), true
		}
		at--
		buf[at] = '/'
		l = l.parent.link
	}
}

// adopt returns the node for an entry just seen in or added to the backing,
// with one kernel reference more.
func (t *tree) adopt(parent *node, name string, st *unix.Stat_t) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, kind := inodeOf(st), uint16(st.Mode&unix.S_IFMT)
	n := t.findInode(key)
	if n != nil && n.kind != kind {
		t.unhash(n) // the number was used again
		n = nil
	}
	if n == t.root {
		n = nil
	}
	if old := t.child(parent, name); old != nil && old != n {
		t.dropLink(old, link{parent, name})
	}
	if n == nil {
		n = t.add(key, uint32(kind))
	}
	if n.lookups < manyLookups {
		n.lookups++
	}
	t.setSmall(n, st)
	t.addLink(n, link{parent, name})
	return n
}

// smallFile reports files that are read through the page cache of the mount and
// may be opened in the backing when something is really read: every name they
// have from now on is one the tree knows.
func smallFile(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&unix.S_IRUSR != 0 && st.Size < directMin && st.Nlink == 1
}

func (t *tree) setSmall(n *node, st *unix.Stat_t) {
	n.flags &^= isSmall
	if smallFile(st) {
		n.flags |= isSmall
	}
}

// seen takes the present attributes of n in.
func (t *tree) seen(n *node, st *unix.Stat_t) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.setSmall(n, st)
}

// open counts a handle of n, which keeps it.
func (t *tree) open(n *node) *ioState {
	t.mu.Lock()
	defer t.mu.Unlock()
	if last := len(t.spare) - 1; n.more == nil && last >= 0 {
		n.more, t.spare = t.spare[last], t.spare[:last]
	}
	x := n.extras()
	x.handles++
	return &x.io
}

// close takes back what open counted.
func (t *tree) close(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x := n.more
	x.handles--
	if x.handles == 0 && x.gone == 0 && len(x.links)+len(x.former) == 0 && x.io == (ioState{}) {
		if n.more = nil; len(t.spare) < keptHandles {
			*x = extra{}
			t.spare = append(t.spare, x)
		}
	}
	t.release(n)
}

// around reports whether a file that is opened now must be read around the
// server, as it is already.
func (t *tree) around(n *node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.more != nil && (n.more.io.direct > 0 || n.more.io.mapped)
}

// gone returns the descriptor of a file whose last name went, or 0. t.mu is held.
func (t *tree) gone(n *node) int {
	if n.more == nil {
		return 0
	}
	return n.more.gone
}

// dupGone returns a copy of that descriptor, or 0.
func (t *tree) dupGone(n *node) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fd := t.gone(n)
	if fd == 0 {
		return 0, nil
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
}

func (t *tree) addLink(n *node, l link) {
	if t.child(l.parent, l.name) == n {
		return
	}
	if n.kind == unix.S_IFDIR && n.parent != nil { // a directory has one name
		old := n.link
		t.detach(n, old)
		defer t.release(old.parent)
	}
	t.attach(n, l)
}

// dropLink removes a name of n. The node stays for as long as the kernel
// refers to it.
func (t *tree) dropLink(n *node, l link) {
	if n.flags&isLinked != 0 {
		t.remember(n, l)
	}
	t.detach(n, l)
	t.release(n)
	t.release(l.parent)
}

// remember keeps a name that n is about to lose as one that binds it.
func (t *tree) remember(n *node, l link) {
	if p, ok := t.join(l); ok && len(n.extras().former) < maxFormerNames {
		n.more.former = append(n.more.former, p)
	}
}

// needed reports whether something refers to n beside its names.
func (t *tree) needed(n *node) bool {
	return n == t.root || n.lookups > 0 || n.children > 0 || n.more != nil && n.more.handles > 0 ||
		n.flags&isLinked != 0 && n.parent != nil
}

// release forgets nodes nothing needs any more, upwards.
func (t *tree) release(n *node) {
	if n.id == 0 || t.needed(n) {
		return
	}
	if n.more != nil && n.more.gone != 0 {
		closeFD(n.more.gone)
	}
	names := n.names()
	for _, l := range names {
		t.detach(n, l)
	}
	t.remove(n)
	for _, l := range names {
		t.release(l.parent)
	}
}

// forget takes count references of the kernel back.
func (t *tree) forget(id, count uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.get(id)
	if n == nil || n == t.root || n.lookups == manyLookups {
		return
	}
	n.lookups -= uint32(min(count, uint64(n.lookups)))
	t.release(n)
}

// unlink records that a name is gone. When it was the last, gone is an O_PATH
// descriptor of the file, for what the kernel still does with it; it is taken
// over.
func (t *tree) unlink(parent *node, name string, gone int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.child(parent, name)
	if n == nil || t.gone(n) != 0 {
		if gone != 0 {
			closeFD(gone)
		}
		return
	}
	if gone != 0 {
		n.extras().gone = gone
		if n.flags&isLinked == 0 {
			t.remember(n, link{parent, name})
		}
		t.unhash(n) // the number may be used again at once
	}
	t.dropLink(n, link{parent, name})
}

// hardLinked marks n as bound by all its names.
func (t *tree) hardLinked(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.flags |= isLinked
}

// move renames an entry; what the new name referred to must be unlinked first.
// The caller holds moves exclusively.
func (t *tree) move(from, to link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.child(from.parent, from.name)
	if n == nil {
		return
	}
	t.addLink(n, to)
	if n.kind != unix.S_IFDIR {
		t.dropLink(n, from)
	}
}

// exchange swaps two entries. The caller holds moves exclusively.
func (t *tree) exchange(a, b link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x, y := t.child(a.parent, a.name), t.child(b.parent, b.name)
	if x != nil {
		t.detach(x, a)
	}
	if y != nil {
		t.detach(y, b)
		t.attach(y, a)
	}
	if x != nil {
		t.attach(x, b)
	}
	t.release(a.parent)
	t.release(b.parent)
}

// walk finds the node at a path relative to the mount. When an element is not
// known it returns the deepest known directory and the unknown name.
func (t *tree) walk(rel string) (n *node, unknown string) {
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

// known is a copy of what the tree knows of a node.
type known struct {
	id    uint64
	kind  uint16
	names []knownName
	depth int
}

type knownName struct {
	parent uint64
	name   string
}

// below returns n and the known nodes below it, deepest first.
func (t *tree) below(n *node) []known {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := []known{describe(n, 0)}
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
	slices.SortStableFunc(out, func(a, b known) int { return b.depth - a.depth })
	return out
}

func describe(n *node, depth int) known {
	k := known{id: uint64(n.id), kind: n.kind, depth: depth}
	for _, l := range n.names() {
		k.names = append(k.names, knownName{uint64(l.parent.id), l.name})
	}
	return k
}

// depthBelow is how far n lies below top by one of its names; 0: not below it.
func depthBelow(n, top *node) int {
	for _, l := range n.names() {
		depth := 1
		for p := l.parent; p != nil; p = p.parent {
			if p == top {
				return depth
			}
			depth++
		}
	}
	return 0
}

// joinPath appends a name to a path relative to the mount.
func joinPath(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// splitPath is the reverse of joinPath.
func splitPath(rel string) (dir, name string) {
	i := strings.LastIndexByte(rel, '/')
	if i < 0 {
		return "", rel
	}
	return rel[:i], rel[i+1:]
}
