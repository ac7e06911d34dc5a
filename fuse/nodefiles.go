package fuse

import (
	"errors"

	"golang.org/x/sys/unix"

	"agentsh/fuse/changes"
	"agentsh/fuse/tree"
)

// nodeFiles opens the file of a node by one of its names. If the file has no name, it
// uses a stored descriptor. It checks that the opened file is the node's file.
type nodeFiles struct {
	tree    *tree.Tree
	files   *files
	handles *openFiles
}

// open opens a regular file by one of its names, or by descriptor if it has no name.
// It checks that the opened file is the node's file.
func (f *nodeFiles) open(n *tree.Node, flags uint32) (int, error) {
	keep := int(flags & backingFlags)
	for _, rel := range f.tree.Paths(n) {
		p, err := f.files.locate(rel)
		if err != nil {
			continue
		}
		fd, err := p.Open(keep|unix.O_NONBLOCK, 0)
		p.Close()
		if err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
				continue
			}
			return -1, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil && f.tree.Same(n, &st) {
			return fd, nil
		}
		tree.CloseFD(fd)
	}
	fd, err := f.nameless(n)
	if err != nil {
		return -1, err
	}
	defer tree.CloseFD(fd)
	return tree.Reopen(fd, keep)
}

// stat returns the attributes of a node by any of its names. For a file without a name
// it uses the stored descriptor.
func (f *nodeFiles) stat(n *tree.Node, names []string, st *unix.Stat_t) error {
	for _, rel := range names {
		p, err := f.files.locate(rel)
		if err != nil {
			continue
		}
		err = p.Stat(st)
		p.Close()
		if err == nil && f.tree.Same(n, st) {
			return nil
		}
	}
	fd, err := f.nameless(n)
	if err != nil {
		return err
	}
	defer tree.CloseFD(fd)
	return unix.Fstat(fd, st)
}

// nameless returns a descriptor of a file that has none of its known names any more.
func (f *nodeFiles) nameless(n *tree.Node) (int, error) {
	if fd, err := f.tree.DupUnlinked(n); fd > 0 || err != nil {
		return fd, err
	}
	if h := f.handles.ofNode(n); h != nil {
		defer f.handles.put(h)
		return unix.FcntlInt(uintptr(h.opened()), unix.F_DUPFD_CLOEXEC, 3)
	}
	return -1, unix.ESTALE
}

// reach opens the directory of a name that still refers to n.
func (f *nodeFiles) reach(n *tree.Node) (tree.Entry, error) {
	for _, rel := range f.tree.Paths(n) {
		p, err := f.files.locate(rel)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if err := p.Stat(&st); err == nil && f.tree.Same(n, &st) {
			return p, nil
		}
		p.Close()
	}
	return tree.Entry{}, unix.ESTALE
}

// pin returns a descriptor of the node itself and whether the caller must close it.
func (f *nodeFiles) pin(n *tree.Node, h *handle) (fd int, own bool, err error) {
	if h != nil && h.opened() >= 0 {
		return h.opened(), false, nil
	}
	p, err := f.reach(n)
	if err != nil {
		fd, err := f.nameless(n)
		return fd, true, err
	}
	defer p.Close()
	fd, err = p.Pin()
	return fd, true, err
}

// fdOf returns the handle's descriptor. A caller that holds tree.Moves uses
// [handle.opened].
func (f *nodeFiles) fdOf(h *handle) (int, error) {
	if fd := h.opened(); fd >= 0 {
		return fd, nil
	}
	f.tree.Moves.RLock()
	defer f.tree.Moves.RUnlock()
	fd, err := f.open(h.node, h.flags)
	if err != nil {
		return -1, err
	}
	h.lateMu.Lock()
	defer h.lateMu.Unlock()
	if h.fd >= 0 { // another request has opened it meanwhile
		tree.CloseFD(fd)
		return h.fd, nil
	}
	h.fd = fd
	return fd, nil
}

// markChanged records a change of a file under its present names.
func (f *nodeFiles) markChanged(n *tree.Node) {
	for _, rel := range f.tree.Paths(n) {
		f.files.modified(rel)
	}
}

// recordWrites records writes through h that bypassed the server.
func (f *nodeFiles) recordWrites(h *handle) {
	if !h.mayChange {
		return
	}
	var now unix.Stat_t
	if unix.Fstat(h.fd, &now) != nil {
		return
	}
	f.tree.Seen(h.node, &now)
	if changes.StampOf(&now) != changes.StampOf(&h.before) {
		f.markChanged(h.node)
		return
	}
	if h.direct && h.flags&unix.O_ACCMODE == unix.O_RDWR {
		// A mapping that bypasses the server outlives the handle.
		for _, rel := range f.tree.Paths(h.node) {
			f.files.watched(rel, changes.StampOf(&h.before))
		}
	}
}

// recordOpenWrites records writes through handles that are still open.
func (f *nodeFiles) recordOpenWrites() {
	for _, h := range f.handles.writable() {
		f.recordWrites(h)
		f.handles.put(h)
	}
}
