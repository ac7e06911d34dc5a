package fuse

import (
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// setOps are the operations a SETATTR asks for, but for the size.
func setOps(valid uint32) []policy.FileOp {
	var ops []policy.FileOp
	if valid&gofuse.FATTR_MODE != 0 {
		ops = append(ops, policy.OpChmod)
	}
	if valid&(gofuse.FATTR_UID|gofuse.FATTR_GID) != 0 {
		ops = append(ops, policy.OpChown)
	}
	if valid&(gofuse.FATTR_ATIME|gofuse.FATTR_MTIME|gofuse.FATTR_ATIME_NOW|gofuse.FATTR_MTIME_NOW) != 0 {
		ops = append(ops, policy.OpUtime)
	}
	return ops
}

// SetAttr changes mode, owner, size or times. The size may also be set through
// a handle open for writing, which was judged when it was opened.
func (m *mount) SetAttr(_ <-chan struct{}, in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	n := m.tree.node(in.NodeId)
	if n == nil {
		return gofuse.Status(syscall.ESTALE)
	}
	names, all := m.tree.bindings(n)
	if len(all) == 0 {
		return gofuse.Status(syscall.ESTALE)
	}
	var h *handle
	if fh, ok := in.GetFh(); ok {
		if h = m.handle(fh); h != nil {
			defer m.putHandle(h)
		}
	}
	if code := m.repos.resize(in, n, h, names); !code.Ok() {
		return code
	}
	writable := h != nil && h.flags&unix.O_ACCMODE != unix.O_RDONLY
	if code := m.permit(in.Pid, "", product(all, setOps(in.Valid)...)...); !code.Ok() {
		return code
	}
	size := verdict{dec: policy.Decision{Effect: policy.Allow}}
	if in.Valid&gofuse.FATTR_SIZE != 0 && !writable {
		var code gofuse.Status
		if size, code = m.permitSize(in.Pid, n, all); !code.Ok() {
			return code
		}
	}
	if code := m.checkSet(in, n, all); !code.Ok() {
		return code
	}
	fd, own, err := m.pinNode(n, h)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	if own {
		defer closeFD(fd)
	}
	if size.dec.Effect == policy.SoftDelete {
		if err := m.keepContent(in.Pid, size, fd); err != nil {
			return gofuse.Status(errno(err))
		}
	}
	if in.Valid&gofuse.FATTR_SIZE != 0 {
		m.rememberBefore(names, place{dirfd: fd})
	}
	if err := m.applySet(fd, n, in); err != nil {
		return gofuse.Status(errno(err))
	}
	if in.Valid&(gofuse.FATTR_MODE|gofuse.FATTR_UID|gofuse.FATTR_GID|gofuse.FATTR_SIZE) != 0 {
		for _, rel := range names {
			m.changes.modified(rel)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return gofuse.Status(errno(err))
	}
	m.tree.seen(n, &st)
	m.fillAttr(&out.Attr, &st)
	if !m.repos.staged(n, &out.Attr) {
		out.SetTimeout(m.cache)
	}
	return gofuse.OK
}

// permitSize judges a truncation. A soft_delete is left to the caller.
func (m *mount) permitSize(tid uint32, n *node, all []string) (verdict, gofuse.Status) {
	v := m.weigh(tid, product(all, policy.OpWrite)...)
	switch v.dec.Effect {
	case policy.SoftDelete:
		return v, gofuse.OK
	case policy.Redirect:
		return v, m.writeAway(tid, v, n, true)
	}
	return v, m.settle(tid, "", v)
}

// checkSet refuses what no policy may allow.
func (m *mount) checkSet(in *gofuse.SetAttrIn, n *node, all []string) gofuse.Status {
	var rel string
	if len(all) > 0 {
		rel = all[0]
	}
	if mode, ok := in.GetMode(); ok && mode&suidBits != 0 && n.kind != unix.S_IFDIR {
		return m.refuse(in.Pid, ask{policy.OpChmod, rel}, suidMessage, "leave the bits out")
	}
	uid, setUID := in.GetUID()
	gid, setGID := in.GetGID()
	if setUID && uid != m.owner.InsideUID || setGID && gid != m.owner.InsideGID {
		return m.refuse(in.Pid, ask{policy.OpChown, rel}, "files in a session belong to its user", "leave the owner as it is")
	}
	return gofuse.OK
}

// pinNode returns a descriptor of the node itself and whether it is to be closed.
func (m *mount) pinNode(n *node, h *handle) (fd int, own bool, err error) {
	if h != nil && h.opened() >= 0 {
		return h.opened(), false, nil
	}
	p, err := m.reach(n)
	if err != nil {
		fd, err := m.nameless(n)
		return fd, true, err
	}
	defer p.close()
	fd, err = p.pin()
	return fd, true, err
}

func (m *mount) applySet(fd int, n *node, in *gofuse.SetAttrIn) error {
	if in.Valid&(gofuse.FATTR_UID|gofuse.FATTR_GID) != 0 {
		uid, gid := -1, -1
		if _, ok := in.GetUID(); ok {
			uid = int(m.owner.OutsideUID)
		}
		if _, ok := in.GetGID(); ok {
			gid = int(m.owner.OutsideGID)
		}
		if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if mode, ok := in.GetMode(); ok {
		if n.kind == unix.S_IFLNK {
			return unix.EOPNOTSUPP
		}
		if err := unix.Chmod(procPath(fd), mode); err != nil {
			return err
		}
	}
	if size, ok := in.GetSize(); ok {
		if in.Valid&gofuse.FATTR_KILL_SUIDGID != 0 {
			if err := stripSuid(fd); err != nil {
				return err
			}
		}
		if err := truncate(fd, int64(size)); err != nil {
			return err
		}
	}
	return setTimes(fd, in)
}

func setTimes(fd int, in *gofuse.SetAttrIn) error {
	times := [2]unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	any := false
	switch {
	case in.Valid&gofuse.FATTR_ATIME_NOW != 0:
		times[0].Nsec, any = unix.UTIME_NOW, true
	case in.Valid&gofuse.FATTR_ATIME != 0:
		times[0], any = unix.Timespec{Sec: int64(in.Atime), Nsec: int64(in.Atimensec)}, true
	}
	switch {
	case in.Valid&gofuse.FATTR_MTIME_NOW != 0:
		times[1].Nsec, any = unix.UTIME_NOW, true
	case in.Valid&gofuse.FATTR_MTIME != 0:
		times[1], any = unix.Timespec{Sec: int64(in.Mtime), Nsec: int64(in.Mtimensec)}, true
	}
	if !any {
		return nil
	}
	return unix.UtimesNanoAt(fd, "", times[:], unix.AT_EMPTY_PATH)
}
