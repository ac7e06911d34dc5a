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

// Move renames an entry; what the new name referred to must be unlinked first.
// The caller holds Moves exclusively.
func (t *Tree) Move(from, to Link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.child(from.Parent, from.Name)
	switch {
	case n == nil:
		return
	case above(n, to.Parent): // the backing has moved it; so the tree is wrong about one of the names
		t.unhash(n)
		t.lose(n, from)
		return
	}
	t.addLink(n, to)
	if n.kind != unix.S_IFDIR {
		t.dropLink(n, from)
	}
}

// Exchange exchanges two entries. The caller holds Moves exclusively.
func (t *Tree) Exchange(a, b Link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	x, y := t.child(a.Parent, a.Name), t.child(b.Parent, b.Name)
	if x != nil && above(x, b.Parent) || y != nil && above(y, a.Parent) { // as in Move
		for _, moved := range []*Node{x, y} {
			if moved != nil && moved.Parent != nil {
				t.unhash(moved)
				t.lose(moved, moved.Link)
			}
		}
		return
	}
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
	t.release(a.Parent)
	t.release(b.Parent)
}

// above reports whether n is dir or a directory above it. A name of n in dir would then
// close a circle, which the host can make believe by its moves.
func above(n, dir *Node) bool {
	for ; dir != nil; dir = dir.Parent {
		if dir == n {
			return true
		}
	}
	return false
}
