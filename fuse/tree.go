package fuse

import (
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// inode identifies a file of the backing.
type inode struct{ dev, ino uint64 }

func inodeOf(st *unix.Stat_t) inode { return inode{st.Dev, st.Ino} }

// link is one name of a node.
type link struct {
	parent *node
	name   string
}

// node is one file the kernel knows, or knew and that something still needs.
// All fields but the first three are guarded by tree.mu.
type node struct {
	id   uint64
	key  inode
	kind uint32 // S_IFMT bits

	lookups  uint64           // references of the kernel
	links    []link           // known names; none: unlinked. The root has none either
	children map[string]*node // known entries of a directory
	small    bool             // as [isSmall] saw it last
	linked   bool             // has got a name by link(2) here: all its names bind it for the session
	former   []string         // lost names that still bind: of a linked node all, else the last
	gone     int              // O_PATH descriptor once the last name went; 0: none
	io       ioState
}

// tree maps kernel node numbers to names below the mount.
type tree struct {
	// moves is held shared while a path is judged and used, and exclusively
	// by rename: a path cannot change its meaning between the two.
	moves sync.RWMutex

	mu     sync.Mutex
	root   *node
	byID   map[uint64]*node
	byKey  map[inode]*node
	nextID uint64
}

func newTree(st *unix.Stat_t) *tree {
	root := &node{id: 1, key: inodeOf(st), kind: st.Mode & unix.S_IFMT, lookups: 1}
	return &tree{
		root:   root,
		byID:   map[uint64]*node{1: root},
		byKey:  map[inode]*node{root.key: root},
		nextID: 2,
	}
}

// node returns the node of a kernel number, or nil.
func (t *tree) node(id uint64) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.byID[id]
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
	if len(n.links) == 1 {
		if p, ok := t.join(n.links[0]); ok {
			return []string{p}
		}
		return nil
	}
	out := make([]string, 0, len(n.links))
	for _, l := range n.links {
		if p, ok := t.join(l); ok {
			out = append(out, p)
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
	if len(n.former) == 0 {
		return names, names
	}
	return names, append(append([]string(nil), names...), n.former...)
}

// join builds the path of a name, last element first.
func (t *tree) join(l link) (string, bool) {
	size, depth := len(l.name), 1
	for p := l.parent; p != t.root; p = p.links[0].parent {
		if len(p.links) == 0 {
			return "", false
		}
		size += len(p.links[0].name) + 1
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
		l = l.parent.links[0]
	}
}

// adopt returns the node for an entry just seen in or added to the backing,
// with one kernel reference more.
func (t *tree) adopt(parent *node, name string, st *unix.Stat_t) *node {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := inodeOf(st)
	n := t.byKey[key]
	if n != nil && (n.kind != st.Mode&unix.S_IFMT || n == t.root) {
		n = nil // the number was used again
	}
	if old := parent.children[name]; old != nil && old != n {
		t.dropLink(old, link{parent, name})
	}
	if n == nil {
		n = &node{id: t.nextID, key: key, kind: st.Mode & unix.S_IFMT}
		t.nextID++
		t.byID[n.id], t.byKey[key] = n, n
	}
	n.lookups++
	n.small = isSmall(st)
	t.addLink(n, link{parent, name})
	return n
}

// isSmall reports files that are read through the page cache of the mount and
// may be opened in the backing when something is really read: every name they
// have from now on is one the tree knows.
func isSmall(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&unix.S_IRUSR != 0 && st.Size < directMin && st.Nlink == 1
}

// seen takes the present attributes of n in.
func (t *tree) seen(n *node, st *unix.Stat_t) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.small = isSmall(st)
}

func (t *tree) isSmall(n *node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.small
}

func (t *tree) addLink(n *node, l link) {
	if l.parent.children[l.name] == n {
		return
	}
	if n.kind == unix.S_IFDIR {
		for _, old := range append([]link(nil), n.links...) {
			t.dropLink(n, old) // a directory has one name
		}
	}
	if l.parent.children == nil {
		l.parent.children = map[string]*node{}
	}
	l.parent.children[l.name] = n
	n.links = append(n.links, l)
}

// dropLink removes a name of n. The node stays for as long as the kernel
// refers to it.
func (t *tree) dropLink(n *node, l link) {
	if n.linked {
		t.remember(n, l)
	}
	for i, have := range n.links {
		if have == l {
			n.links = append(n.links[:i], n.links[i+1:]...)
			break
		}
	}
	delete(l.parent.children, l.name)
	t.release(n)
	t.release(l.parent)
}

// remember keeps a name that n is about to lose as one that binds it.
func (t *tree) remember(n *node, l link) {
	if p, ok := t.join(l); ok && len(n.former) < maxFormerNames {
		n.former = append(n.former, p)
	}
}

// release forgets nodes nothing needs any more, upwards.
func (t *tree) release(n *node) {
	for n != t.root && n.lookups == 0 && len(n.children) == 0 && (!n.linked || len(n.links) == 0) {
		delete(t.byID, n.id)
		if t.byKey[n.key] == n {
			delete(t.byKey, n.key)
		}
		if n.gone != 0 {
			closeFD(n.gone)
			n.gone = 0
		}
		if len(n.links) == 0 {
			return
		}
		l := n.links[0]
		for _, l := range n.links {
			delete(l.parent.children, l.name)
		}
		n.links = nil
		n = l.parent
	}
}

// forget takes count references of the kernel back.
func (t *tree) forget(id, count uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.byID[id]
	if n == nil || n == t.root {
		return
	}
	n.lookups -= min(count, n.lookups)
	t.release(n)
}

// unlink records that a name is gone. When it was the last, gone is an O_PATH
// descriptor of the file, for what the kernel still does with it; it is taken
// over.
func (t *tree) unlink(parent *node, name string, gone int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := parent.children[name]
	if n == nil || n.gone != 0 {
		if gone != 0 {
			closeFD(gone)
		}
		return
	}
	if gone != 0 {
		n.gone = gone
		if !n.linked {
			t.remember(n, link{parent, name})
		}
		if t.byKey[n.key] == n {
			delete(t.byKey, n.key) // the number may be used again at once
		}
	}
	t.dropLink(n, link{parent, name})
}

// hardLinked marks n as bound by all its names.
func (t *tree) hardLinked(n *node) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n.linked = true
}

// move renames an entry; what the new name referred to must be unlinked first.
// The caller holds moves exclusively.
func (t *tree) move(from, to link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := from.parent.children[from.name]
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
	x, y := a.parent.children[a.name], b.parent.children[b.name]
	t.swapEntry(x, a, b)
	t.swapEntry(y, b, a)
	setChild(a, y)
	setChild(b, x)
}

func (t *tree) swapEntry(n *node, from, to link) {
	if n == nil {
		return
	}
	for i := range n.links {
		if n.links[i] == from {
			n.links[i] = to
			return
		}
	}
}

func setChild(l link, n *node) {
	if n == nil {
		delete(l.parent.children, l.name)
		return
	}
	if l.parent.children == nil {
		l.parent.children = map[string]*node{}
	}
	l.parent.children[l.name] = n
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
		next := n.children[name]
		if next == nil {
			return n, name
		}
		n = next
	}
	return n, ""
}

// below returns copies of n and the known nodes below it, deepest first.
func (t *tree) below(n *node) []node {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []node
	var visit func(*node)
	visit = func(n *node) {
		for _, child := range n.children {
			visit(child)
		}
		out = append(out, node{id: n.id, kind: n.kind, links: append([]link(nil), n.links...)})
	}
	visit(n)
	return out
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
