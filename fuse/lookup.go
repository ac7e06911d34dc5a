package fuse

import (
	"errors"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// dirPath resolves a directory the kernel named. The caller holds tree.moves.
func (m *mount) dirPath(id uint64) (*node, string, gofuse.Status) {
	n := m.tree.node(id)
	if n == nil {
		return nil, "", gofuse.Status(syscall.ESTALE)
	}
	if n.kind != unix.S_IFDIR {
		return nil, "", gofuse.ENOTDIR
	}
	paths := m.tree.paths(n)
	if len(paths) == 0 {
		return nil, "", gofuse.ENOENT
	}
	return n, paths[0], gofuse.OK
}

// validName refuses what the kernel never sends, so that no name can climb.
func validName(name string) gofuse.Status {
	switch {
	case name == "" || name == "." || name == "..":
		return gofuse.EINVAL
	case len(name) > 255:
		return gofuse.Status(syscall.ENAMETOOLONG)
	}
	for i := range len(name) {
		if name[i] == '/' || name[i] == 0 {
			return gofuse.EINVAL
		}
	}
	return gofuse.OK
}

// child resolves a name in a directory the kernel named.
func (m *mount) child(id uint64, name string) (parent *node, rel string, code gofuse.Status) {
	if code := validName(name); !code.Ok() {
		return nil, "", code
	}
	parent, dir, code := m.dirPath(id)
	if !code.Ok() {
		return nil, "", code
	}
	return parent, joinPath(dir, name), gofuse.OK
}

// Lookup finds an entry. See fuse(4) for the meaning of a zero node number.
func (m *mount) Lookup(_ <-chan struct{}, h *gofuse.InHeader, name string, out *gofuse.EntryOut) gofuse.Status {
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	parent, rel, code := m.child(h.NodeId, name)
	if !code.Ok() {
		return code
	}
	v := m.decide(ask{policy.OpStat, rel})
	if code := m.settle(h.Pid, "", v); !code.Ok() {
		return code
	}
	p, err := m.backing.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.close()
	var st unix.Stat_t
	switch err := p.stat(&st); {
	case err == nil:
	case errors.Is(err, unix.ENOENT):
		if v.dec.Effect == policy.Allow {
			out.SetEntryTimeout(m.cache)
			return gofuse.OK
		}
		return gofuse.ENOENT
	default:
		return gofuse.Status(errno(err))
	}
	if m.folds(p, rel, &st) {
		return m.refuseFolding(h.Pid, rel)
	}
	n := m.tree.adopt(parent, name, &st)
	m.fillEntry(out, n, &st, v.dec.Effect == policy.Allow)
	return gofuse.OK
}

// fillEntry answers with a node. Without cache the kernel asks at every use,
// as an audited stat needs.
func (m *mount) fillEntry(out *gofuse.EntryOut, n *node, st *unix.Stat_t, cache bool) {
	out.NodeId = uint64(n.id)
	out.Generation = 1
	m.fillAttr(&out.Attr, st)
	if cache {
		out.SetEntryTimeout(m.cache)
		out.SetAttrTimeout(m.cache)
	}
}

// fillAttr shows the backing's owner as the sandbox's user.
func (m *mount) fillAttr(a *gofuse.Attr, st *unix.Stat_t) {
	*a = gofuse.Attr{
		Ino: st.Ino, Size: uint64(st.Size), Blocks: uint64(st.Blocks),
		Atime: uint64(st.Atim.Sec), Atimensec: uint32(st.Atim.Nsec),
		Mtime: uint64(st.Mtim.Sec), Mtimensec: uint32(st.Mtim.Nsec),
		Ctime: uint64(st.Ctim.Sec), Ctimensec: uint32(st.Ctim.Nsec),
		Mode: st.Mode, Nlink: uint32(st.Nlink),
		Owner:   gofuse.Owner{Uid: st.Uid, Gid: st.Gid},
		Rdev:    uint32(st.Rdev),
		Blksize: uint32(st.Blksize),
	}
	a.Uid = shownID(st.Uid, m.owner.OutsideUID, m.owner.InsideUID)
	a.Gid = shownID(st.Gid, m.owner.OutsideGID, m.owner.InsideGID)
}

// nobody is the id of an owner the sandbox has no name for.
const nobody = 65534

// shownID maps an id of the backing. Another's id that happens to be the inside
// user's must not make that user the owner.
func shownID(id, outside, inside uint32) uint32 {
	switch id {
	case outside:
		return inside
	case inside:
		return nobody
	}
	return id
}

// Forget takes references back.
func (m *mount) Forget(id, count uint64) { m.tree.forget(id, count) }

// statNode returns the attributes of a node by any of its names, or of the file
// whose last name went.
func (m *mount) statNode(n *node, names []string, st *unix.Stat_t) error {
	for _, rel := range names {
		p, err := m.backing.locate(rel)
		if err != nil {
			continue
		}
		err = p.stat(st)
		p.close()
		if err == nil && (inodeOf(st) == n.key || n == m.tree.root) {
			return nil
		}
	}
	fd, err := m.nameless(n)
	if err != nil {
		return err
	}
	defer closeFD(fd)
	return unix.Fstat(fd, st)
}

// nameless returns a descriptor of a file that none of its known names leads
// to any more.
func (m *mount) nameless(n *node) (int, error) {
	if fd, err := m.tree.dupGone(n); fd > 0 || err != nil {
		return fd, err
	}
	if h := m.anyHandle(n); h != nil {
		defer m.putHandle(h)
		return unix.FcntlInt(uintptr(h.opened()), unix.F_DUPFD_CLOEXEC, 3)
	}
	return -1, unix.ESTALE
}

// GetAttr answers stat.
func (m *mount) GetAttr(_ <-chan struct{}, in *gofuse.GetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	n, at := m.tree.standing(in.NodeId, policy.OpStat)
	if n == nil {
		return gofuse.Status(syscall.ESTALE)
	}
	names, all := m.tree.bindings(n)
	if len(all) == 0 {
		return gofuse.Status(syscall.ESTALE)
	}
	cache := true
	if at.allowed {
		all = nil
	}
	for _, rel := range all {
		v := m.decide(ask{policy.OpStat, rel})
		if code := m.settle(in.Pid, "", v); !code.Ok() {
			return code
		}
		cache = cache && v.dec.Effect == policy.Allow
	}
	if cache && !at.allowed {
		m.tree.allow(n, policy.OpStat, at.era)
	}
	var st unix.Stat_t
	if err := m.statNode(n, names, &st); err != nil {
		return gofuse.Status(errno(err))
	}
	m.tree.seen(n, &st)
	m.fillAttr(&out.Attr, &st)
	if !m.repos.staged(n, &out.Attr) && cache {
		out.SetTimeout(m.cache)
	}
	return gofuse.OK
}

// Readlink answers with the text of a symbolic link; following it is the
// kernel's work, inside the sandbox.
func (m *mount) Readlink(_ <-chan struct{}, h *gofuse.InHeader) ([]byte, gofuse.Status) {
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	n := m.tree.node(h.NodeId)
	if n == nil {
		return nil, gofuse.Status(syscall.ESTALE)
	}
	if code := m.permitNode(h.Pid, n, policy.OpStat); !code.Ok() {
		return nil, code
	}
	p, err := m.reach(n)
	if err != nil {
		return nil, gofuse.Status(errno(err))
	}
	defer p.close()
	buf := make([]byte, unix.PathMax)
	size, err := unix.Readlinkat(p.dirfd, p.name, buf)
	if err != nil {
		return nil, gofuse.Status(errno(err))
	}
	return buf[:size], gofuse.OK
}

// reach opens the directory of a name that still leads to n.
func (m *mount) reach(n *node) (place, error) {
	for _, rel := range m.tree.paths(n) {
		p, err := m.backing.locate(rel)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		if err := p.stat(&st); err == nil && (inodeOf(&st) == n.key || n == m.tree.root) {
			return p, nil
		}
		p.close()
	}
	return place{}, unix.ESTALE
}

// StatFs answers with the figures of the backing's filesystem. A mount of which
// nothing but names is shown is no place to keep anything: it has none, as those
// of the kernel, and df leaves it out.
func (m *mount) StatFs(_ <-chan struct{}, _ *gofuse.InHeader, out *gofuse.StatfsOut) gofuse.Status {
	var st unix.Statfs_t
	if err := unix.Fstatfs(m.backing.fd, &st); err != nil {
		return gofuse.Status(errno(err))
	}
	if m.namesOnly(m.rules.now().policy) {
		st.Blocks, st.Bfree, st.Bavail, st.Files, st.Ffree = 0, 0, 0, 0, 0
	}
	out.Blocks, out.Bfree, out.Bavail = st.Blocks, st.Bfree, st.Bavail
	out.Files, out.Ffree = st.Files, st.Ffree
	out.Bsize, out.Frsize, out.NameLen = uint32(st.Bsize), uint32(st.Frsize), uint32(st.Namelen)
	return gofuse.OK
}

// namesOnly reports a mount of which only attributes are shown, if anything.
func (m *mount) namesOnly(r Rules) bool {
	if m.backing.dir {
		v := r.Tree(m.path, policy.OpAll&^policy.OpStat)
		return v.Uniform && v.Effect == policy.Deny
	}
	for op := policy.OpRead; op < policy.OpAll; op <<= 1 {
		if dec, _ := r.Evaluate(&policy.FileRequest{Path: m.path, Op: op}); op != policy.OpStat && dec.Effect != policy.Deny {
			return false
		}
	}
	return true
}
