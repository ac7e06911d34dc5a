package fuse

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/fuse/changes"
	"agentsh/fuse/follow"
	"agentsh/fuse/tree"
)

// nodeFiles opens the file of a node by one of its names. If the file has no name, it
// uses a stored descriptor. It checks that a name still leads to the node's file: the
// host may have changed the backing.
type nodeFiles struct {
	tree    *tree.Tree
	files   *files
	handles *openFiles
	kernel  *kernel
	follow  *follow.Mount
	retries *retries
}

// open opens a regular file by its names, or by descriptor if it has none, and returns
// its attributes in st. If a name does not lead to the file any more, open returns
// ESTALE: the kernel looks the path up again and opens what it leads to.
func (f *nodeFiles) open(n *tree.Node, flags uint32, st *unix.Stat_t) (fd int, err error) {
	keep := int(flags & backingFlags)
	if f.tree.IsRoot(n) {
		if fd, err = f.files.openFile("", keep|unix.O_NONBLOCK); err == nil {
			err = unix.Fstat(fd, st)
		}
		return fd, err
	}
	names := f.tree.Names(n)
	if len(names) == 0 {
		return f.openNameless(n, keep, st)
	}
	fd, lost := -1, false
	for _, at := range names {
		leads := false
		if fd < 0 {
			fd, leads, err = f.openName(n, at, keep, st)
		} else {
			var other unix.Stat_t
			leads, err = f.leads(n, at.Path, &other)
		}
		if err != nil {
			break
		}
		if !leads {
			f.lost(n, at)
			lost = true
		}
	}
	if err == nil && lost {
		err = unix.ESTALE
	}
	if err != nil && fd >= 0 {
		tree.CloseFD(fd)
	}
	return fd, err
}

// openTries bounds how often a name is opened that first led elsewhere, and then to its
// file again.
const openTries = 100

// openName opens the file of n by a name. It reports false if the name leads to none,
// or to another file that n cannot represent.
func (f *nodeFiles) openName(n *tree.Node, at tree.NamedPath, flags int, st *unix.Stat_t) (fd int, leads bool, err error) {
	for range openTries {
		if fd, err = f.files.openFile(at.Path, flags|unix.O_NONBLOCK); err == nil {
			break
		}
		if leads, other := f.leads(n, at.Path, st); !leads {
			return -1, false, other
		}
		if !tree.Absent(err) && err != unix.ELOOP { //nolint:errorlint // openFile returns bare numbers
			break
		}
	}
	if err != nil {
		return -1, false, err
	}
	if err = unix.Fstat(fd, st); err == nil && (f.tree.Same(n, st) || f.tree.Host.Take(n, at, st)) {
		return fd, true, nil
	}
	tree.CloseFD(fd)
	return -1, false, err
}

// openNameless opens a file that has no name.
func (f *nodeFiles) openNameless(n *tree.Node, flags int, st *unix.Stat_t) (int, error) {
	if f.tree.Host.Missing(n) == unix.ESTALE {
		return -1, unix.ESTALE // the path may lead to another file
	}
	return f.openAgain(n, flags, st)
}

// openAgain opens the file of a node that has no name and that is open already. The kernel
// has looked the path up once more and come to the same node: the path is that of a
// descriptor in proc(5).
func (f *nodeFiles) openAgain(n *tree.Node, flags int, st *unix.Stat_t) (int, error) {
	path, err := f.nameless(n)
	if err != nil {
		return -1, err
	}
	defer tree.CloseFD(path)
	fd, err := tree.Reopen(path, flags)
	if err == nil {
		err = unix.Fstat(fd, st)
	}
	return fd, err
}

// leads reports whether a name leads to n, and returns the attributes of n in st.
func (f *nodeFiles) leads(n *tree.Node, rel string, st *unix.Stat_t) (bool, error) {
	p, err := f.files.locate(rel)
	if err == nil {
		err = p.Stat(st)
		p.Close()
	}
	if err != nil && !tree.Absent(err) {
		return false, err
	}
	return err == nil && f.tree.Same(n, st), nil
}

// lost removes a name that does not lead to n any more. The kernel looks up again what
// it caches about the name.
func (f *nodeFiles) lost(n *tree.Node, at tree.NamedPath) {
	if id, ok := f.tree.Host.Lost(n, at); ok {
		f.kernel.NotifyAttributes(id)
	}
}

// expire makes the kernel look up a name again that a node has lost. The tree is locked.
func (f *nodeFiles) expire(lost tree.LostName) {
	taken := func() {}
	if lost.Used {
		taken = f.follow.Expiring(lost.Parent)
	}
	f.kernel.ExpireLater(lost.Parent, lost.Name, func() {
		taken()
		time.AfterFunc(settleTime, func() { f.tree.Host.Settled(lost.ID) })
	})
}

// settleTime is longer than a call takes from the use of a cached name to the last
// request that follows from it.
const settleTime = time.Second

// adopt returns the node for an entry that was found in the backing. It counts one
// more reference of the kernel. Names that the host gave to other files are lost.
func (f *nodeFiles) adopt(at tree.NamedPath, st *unix.Stat_t) *tree.Node {
	parent, name := at.Parent, at.Name
	if old := f.tree.Child(parent, name); old != nil && (!f.tree.Same(old, st) || old.Kind() != st.Mode&unix.S_IFMT) {
		f.lost(old, at)
	}
	f.loseFormer(at, st)
	return f.tree.Adopt(parent, name, st)
}

// loseFormer removes the names of the node with the inode number of st that lead elsewhere:
// the host has renamed the file, or the number was used again for another one. The kernel
// may use such a name for a while. So the node gets no other name before: an open would
// open that file.
func (f *nodeFiles) loseFormer(at tree.NamedPath, st *unix.Stat_t) {
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return
	}
	n := f.tree.Host.Elsewhere(at.Link, st)
	if n == nil {
		return
	}
	for _, other := range f.tree.Names(n) {
		if other.Link == at.Link || f.files.redirected(other.Path) { // the rules of a redirected name stay with the file
			continue
		}
		var now unix.Stat_t
		leads, err := f.leads(n, other.Path, &now)
		if err == nil && !leads {
			f.lost(n, other)
		}
		if leads && st.Nlink > 1 {
			return // the node has the file; a file can have many names
		}
	}
}

// present returns n, or the directory that the path of n leads to, if the host has moved or
// removed n while the kernel may still use its name. It returns ENOENT if there is none.
func (f *nodeFiles) present(n *tree.Node) (*tree.Node, error) {
	if len(f.tree.Paths(n)) > 0 {
		return n, nil
	}
	rel, ok := f.tree.Host.Former(n)
	if !ok {
		return nil, unix.ENOENT
	}
	now, err := f.place(rel)
	if err == nil && now.Kind() != unix.S_IFDIR || tree.Absent(err) {
		err = unix.ENOENT
	}
	return now, err
}

// standIn is [nodeFiles.present] for a request that has no name, about any node. The kernel
// looks up again what can only be meant by its path: files that are not open, and links.
func (f *nodeFiles) standIn(n *tree.Node) (*tree.Node, error) {
	switch n.Kind() {
	case unix.S_IFDIR:
		return f.present(n)
	case unix.S_IFREG, unix.S_IFLNK:
		return nil, f.tree.Host.Missing(n)
	}
	return nil, unix.ENOENT // the kernel opens pipes itself
}

// place returns the node of the directory at rel as it is now in the backing. The caller
// adopts an entry of it next.
func (f *nodeFiles) place(rel string) (*tree.Node, error) {
	n, path := f.tree.Root(), ""
	for rest := rel; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		path = tree.Join(path, name)
		p, err := f.files.locate(path)
		if err != nil {
			return nil, err
		}
		var st unix.Stat_t
		err = p.Stat(&st)
		p.Close()
		if err != nil {
			return nil, err
		}
		child := f.tree.Child(n, name)
		if child != nil && !f.tree.Same(child, &st) {
			f.lost(child, tree.NamedPath{Link: tree.Link{Parent: n, Name: name}, Path: path})
			child = nil
		}
		if child == nil {
			child = f.tree.Host.Place(n, name, &st)
		}
		n = child
	}
	return n, nil
}

// stat returns the attributes of a node by its names. For a file without a name it
// uses a stored descriptor.
func (f *nodeFiles) stat(n *tree.Node, st *unix.Stat_t) error {
	if f.tree.IsRoot(n) {
		return tree.Entry{DirFD: f.files.backing.FD}.Stat(st)
	}
	for _, at := range f.tree.Names(n) {
		leads, err := f.leads(n, at.Path, st)
		if err != nil || leads {
			return err
		}
		f.lost(n, at)
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
		return unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 3)
	}
	return -1, f.tree.Host.Missing(n)
}

// reach opens the directory of a name that still leads to n. If a name does not lead
// there any more, it returns ESTALE: the kernel looks the path up again.
func (f *nodeFiles) reach(n *tree.Node) (tree.Entry, error) {
	if f.tree.IsRoot(n) {
		return f.files.locate("")
	}
	names := f.tree.Names(n)
	if len(names) == 0 {
		return tree.Entry{}, f.tree.Host.Missing(n)
	}
	p, err := f.files.locate(names[0].Path)
	var st unix.Stat_t
	if err == nil {
		if err = p.Stat(&st); err == nil && f.tree.Same(n, &st) {
			return p, nil
		}
		p.Close()
	}
	if err != nil && !tree.Absent(err) {
		return tree.Entry{}, err
	}
	f.lost(n, names[0])
	return tree.Entry{}, unix.ESTALE
}

// pin returns a descriptor of the node itself, for a request of a thread, and whether the
// caller must close it. The calls that take a descriptor are not repeated after ESTALE. So
// they use the file of an open node even if the host has given its name to another one.
func (f *nodeFiles) pin(tid uint32, n *tree.Node, h *handle) (fd int, own bool, err error) {
	if h != nil && h.fd >= 0 {
		return h.fd, false, nil
	}
	p, err := f.reach(n)
	if err != nil {
		if err == unix.ENOENT || err == unix.ESTALE && !f.retries.byPath(tid, n) { //nolint:errorlint // reach returns bare numbers
			fd, err = f.nameless(n)
		}
		if err == unix.ESTALE && n.Kind() != unix.S_IFREG { //nolint:errorlint // likewise
			return f.pinStandIn(n)
		}
		return fd, true, err
	}
	defer p.Close()
	fd, err = p.Pin()
	return fd, true, err
}

// pinStandIn is pin for a node that the host has moved or removed a moment ago.
func (f *nodeFiles) pinStandIn(n *tree.Node) (fd int, own bool, err error) {
	n, err = f.standIn(n)
	if err != nil {
		return -1, true, err
	}
	p, err := f.reach(n)
	if err != nil {
		return -1, true, err
	}
	defer p.Close()
	fd, err = p.Pin()
	return fd, true, err
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
