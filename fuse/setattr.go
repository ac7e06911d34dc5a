package fuse

import (
	"errors"
	"sync"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/tree"
	"agentsh/policy"
)

// setattr answers SETATTR.
type setattr struct {
	tree     *tree.Tree
	files    *files
	access   *access
	nodes    *nodeFiles
	attrs    attributes
	handles  *openFiles
	repos    *repositories
	soft     *softDeletes
	redirect *redirector
}

// setAttr changes mode, owner, size or times. The size may also be set through a
// handle open for writing. The rules were evaluated when that handle was opened.
func (o *setattr) setAttr(in *gofuse.SetAttrIn, out *gofuse.AttrOut) gofuse.Status {
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	n, code := o.subject(in.NodeId)
	if !code.Ok() {
		return code
	}
	names, all := o.tree.Bindings(n)
	var h *handle
	if fh, ok := in.GetFh(); ok {
		if h = o.handles.get(fh); h != nil {
			defer o.handles.put(h)
		}
	}
	if h == nil && in.Valid&gofuse.FATTR_SIZE != 0 && o.repos.guardsMoved(n, names, all) {
		return gofuse.ENOENT
	}
	if code := o.repos.resize(in, n, h, names); !code.Ok() {
		return code
	}
	writable := h != nil && h.flags&unix.O_ACCMODE != unix.O_RDONLY
	if code := o.access.permit(in.Pid, "", product(all, setOps(in.Valid)...)...); !code.Ok() {
		return code
	}
	size := verdict{dec: policy.Decision{Effect: policy.Allow}}
	if in.Valid&gofuse.FATTR_SIZE != 0 && !writable {
		if size, code = o.permitSize(in.Pid, n, all); !code.Ok() {
			return code
		}
	}
	if code := o.checkSet(in, n, all); !code.Ok() {
		return code
	}
	fd, own, err := o.nodes.pin(in.Pid, n, h)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	if own {
		defer tree.CloseFD(fd)
	}
	if size.dec.Effect == policy.SoftDelete {
		if err := o.soft.saveContent(in.Pid, size, fd); err != nil {
			return gofuse.Status(errno(err))
		}
	}
	if in.Valid&gofuse.FATTR_SIZE != 0 {
		o.files.savePrevious(names, tree.Entry{DirFD: fd})
	}
	if err := o.applySet(fd, n, in); err != nil {
		return gofuse.Status(errno(err))
	}
	if in.Valid&(gofuse.FATTR_MODE|gofuse.FATTR_UID|gofuse.FATTR_GID|gofuse.FATTR_SIZE) != 0 {
		for _, rel := range names {
			o.files.modified(rel)
		}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return gofuse.Status(errno(err))
	}
	o.attrs.fillAttr(&out.Attr, &st)
	told := o.tree.Host.Tell(nil, n, &st, tree.Latest, in.Pid) // the kernel applies this answer whatever it was told before
	if !o.repos.staged(n, &out.Attr) {
		out.SetTimeout(o.attrs.age(told.Watched))
	}
	return gofuse.OK
}

// subject returns the node that a request changes.
func (o *setattr) subject(id uint64) (*tree.Node, gofuse.Status) {
	n := o.tree.Node(id)
	if n == nil {
		return nil, gofuse.Status(syscall.ESTALE)
	}
	if _, all := o.tree.Bindings(n); len(all) > 0 {
		return n, gofuse.OK
	}
	n, err := o.nodes.standIn(n)
	return n, gofuse.Status(errno(err))
}

// permitSize evaluates a truncation. The caller handles a soft_delete.
func (o *setattr) permitSize(tid uint32, n *tree.Node, all []string) (verdict, gofuse.Status) {
	v := o.access.strictest(tid, product(all, policy.OpWrite)...)
	switch v.dec.Effect {
	case policy.SoftDelete:
		return v, gofuse.OK
	case policy.Redirect:
		return v, o.redirect.write(tid, v, n, true)
	}
	return v, o.access.apply(tid, "", v)
}

// checkSet refuses changes that no policy may allow.
func (o *setattr) checkSet(in *gofuse.SetAttrIn, n *tree.Node, all []string) gofuse.Status {
	var rel string
	if len(all) > 0 {
		rel = all[0]
	}
	if mode, ok := in.GetMode(); ok && mode&suidBits != 0 && n.Kind() != unix.S_IFDIR {
		return o.access.refuse(in.Pid, query{policy.OpChmod, rel}, suidMessage, "leave the bits out")
	}
	uid, setUID := in.GetUID()
	gid, setGID := in.GetGID()
	if setUID && uid != o.files.owner.InsideUID || setGID && gid != o.files.owner.InsideGID {
		return o.access.refuse(in.Pid, query{policy.OpChown, rel}, "files in a session belong to its user", "leave the owner as it is")
	}
	return gofuse.OK
}

func (o *setattr) applySet(fd int, n *tree.Node, in *gofuse.SetAttrIn) error {
	if in.Valid&(gofuse.FATTR_UID|gofuse.FATTR_GID) != 0 && o.files.owner.User == 0 {
		uid, gid := -1, -1
		if _, ok := in.GetUID(); ok {
			uid = int(o.files.owner.OutsideUID)
		}
		if _, ok := in.GetGID(); ok {
			gid = int(o.files.owner.OutsideGID)
		}
		if err := unix.Fchownat(fd, "", uid, gid, unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	if mode, ok := in.GetMode(); ok {
		if n.Kind() == unix.S_IFLNK {
			return unix.EOPNOTSUPP
		}
		if err := unix.Chmod(tree.ProcPath(fd), mode); err != nil {
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

// setOps returns the operations of a SETATTR, without the change of size.
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

func truncate(fd int, size int64) error {
	if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBADF) {
		return err
	}
	return unix.Truncate(tree.ProcPath(fd), size) // not open for writing, or O_PATH
}

// keepsSuid reports whether a write of this process leaves the set-user-id bits of a file as
// they are. The kernel removes them for a process without CAP_FSETID, as that of an ordinary
// user. See setattr_should_drop_suidgid in fs/attr.c.
var keepsSuid = sync.OnceValue(func() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	return unix.Capget(&head, &have[0]) != nil || have[0].Effective&(1<<unix.CAP_FSETID) != 0
})

// stripSuid removes the mode bits that a write by an ordinary user removes. With
// HANDLE_KILLPRIV_V2 the kernel leaves that to the server.
func stripSuid(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	return unix.Chmod(tree.ProcPath(fd), st.Mode&0o7777&^(unix.S_ISUID|unix.S_ISGID))
}
