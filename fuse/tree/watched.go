package tree

import "golang.org/x/sys/unix"

// OnRelease sets the function that is called when the kernel has forgotten a directory.
// path is its last name, empty if it has none any more; removed says that the session
// removed it. The function is called under the tree's lock.
func (h Host) OnRelease(f func(id uint64, path string, removed bool)) {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	t.released = f
}

// announce calls the function of [Host.OnRelease] for a node that is about to be
// removed.
func (h Host) announce(n *Node) {
	t := h.t
	if t.released == nil || n.kind != unix.S_IFDIR {
		return
	}
	path := ""
	if n.Parent != nil {
		path, _ = t.join(n.Link)
	}
	t.released(uint64(n.id), path, n.more != nil && n.more.gone != 0)
}

// UnwatchAll removes the mark of [Host.SetWatched] from every directory.
func (h Host) UnwatchAll() {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, chunk := range t.chunks {
		for i := range chunk {
			chunk[i].flags &^= isWatched
		}
	}
}

// Elsewhere returns the node that has the inode number of st, if it has another name than
// l. Otherwise it returns nil.
func (h Host) Elsewhere(l Link, st *unix.Stat_t) *Node {
	t := h.t
	t.mu.Lock()
	defer t.mu.Unlock()
	n := t.findInode(inodeOf(st))
	if n == nil || n == t.root || n.Link == l && (n.more == nil || len(n.more.links) == 0) {
		return nil
	}
	return n
}
