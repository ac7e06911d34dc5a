package fuse

import (
	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
)

// The host may change a backing behind its mount. Whoever notices that calls
// hostChanged, from a goroutine that answers no request. A mount whose directories are
// marked by [tree.Host.SetWatched] depends on these calls.

// hostChanged compares an entry of a directory with what the kernel was last told and
// makes the kernel drop what is outdated. dir is the directory's node number. name is
// empty if the directory itself changed. The kernel may take the notices about names
// later.
func (m *mount) hostChanged(dir uint64, name string) {
	m.tree.Moves.RLock()
	defer m.tree.Moves.RUnlock()
	parent := m.tree.Node(dir)
	if parent == nil {
		return
	}
	m.compare(parent)
	if name == "" {
		return
	}
	paths := m.tree.Paths(parent)
	if parent.Kind() != unix.S_IFDIR || len(paths) == 0 {
		return
	}
	child := m.tree.Child(parent, name)
	if child == nil {
		m.kernel.ExpireLater(dir, name, nil) // the kernel may cache its absence
		return
	}
	m.compare(child)
	if at := (tree.Link{Parent: parent, Name: name}); m.tree.Child(parent, name) == child {
		var st unix.Stat_t
		if leads, err := m.nodes.leads(child, tree.Join(paths[0], name), &st); err == nil && !leads {
			m.nodes.lost(child, at)
		}
	}
}

// compare makes the kernel drop the attributes, pages or listing of a node if they
// differ from the backing. A name that does not lead to the node is lost.
func (m *mount) compare(n *tree.Node) {
	id := n.ID()
	var st unix.Stat_t
	if m.nodes.stat(n, &st) != nil || !m.tree.Host.Differs(n, &st) {
		return
	}
	m.tree.Host.Tell(nil, n, &st)
	m.kernel.NotifyAttributes(id)
	m.kernel.InodeLater(id)
}

// hostChangedEverything makes the kernel drop all that it caches, because it is unknown
// what the host changed.
func (m *mount) hostChangedEverything() {
	if !m.kernel.NotifyEpoch() {
		m.kernel.invalidate("")
		return
	}
	for _, known := range m.tree.Below(m.tree.Root()) {
		m.kernel.NotifyInode(known.ID)
	}
}
