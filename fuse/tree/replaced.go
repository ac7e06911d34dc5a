package tree

import "golang.org/x/sys/unix"

// Same reports whether n represents the file with these attributes. An inode number that
// was used again for another kind of file is not the same.
func (t *Tree) Same(n *Node, st *unix.Stat_t) bool {
	t.mu.Lock() // the kernel may forget the node meanwhile
	defer t.mu.Unlock()
	return n == t.root || n.key == inodeOf(st) && n.kind == uint16(st.Mode&unix.S_IFMT)
}

// Replace removes the name of a file that a copy has replaced. gone is an O_PATH
// descriptor of the file, which the tree takes over.
func (t *Tree) Replace(parent *Node, name string, gone int) {
	t.mu.Lock()
	if n := t.child(parent, name); n != nil {
		n.flags |= isReplaced
	}
	t.mu.Unlock()
	t.Unlink(parent, name, gone)
}

// Stale reports whether a copy has replaced a file under its name.
func (t *Tree) Stale(n *Node) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return n.flags&isReplaced != 0
}

// Rekey makes a node represent the file that replaced its own.
func (t *Tree) Rekey(n *Node, st *unix.Stat_t) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unhash(n)
	n.key, n.told = inodeOf(st), toldUnknown
	t.changes.Add(1)
	t.hash(n)
	t.setSmall(n, st)
}
