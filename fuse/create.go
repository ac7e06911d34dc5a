package fuse

import (
	"errors"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

const suidBits = unix.S_ISUID | unix.S_ISGID

const (
	suidMessage   = "set-user-id and set-group-id bits are not given to files in a session"
	deviceMessage = "device files are not made in a session"
)

// adopted gives a new entry its owner, takes it into the tree and the change
// record, and answers with it. On failure the entry is removed again.
func (m *mount) adopted(parent *node, rel string, p made, out *gofuse.EntryOut) (*node, unix.Stat_t, error) {
	var st unix.Stat_t
	err := m.own(p, &st)
	if err != nil {
		flags := 0
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			flags = unix.AT_REMOVEDIR
		}
		_ = unix.Unlinkat(p.dirfd, p.name, flags) // the failure of own is what the caller hears
		return nil, st, err
	}
	n := m.tree.adopt(parent, p.name, &st)
	m.changes.created(rel)
	m.fillEntry(out, n, &st, m.decide(ask{policy.OpStat, rel}).dec.Effect == policy.Allow)
	return n, st, nil
}

// made is an entry just made, with a descriptor if it was opened, else -1.
type made struct {
	place
	fd int
}

func (p made) stat(st *unix.Stat_t) error {
	if p.fd >= 0 {
		return unix.Fstat(p.fd, st)
	}
	return p.place.stat(st)
}

// own makes the sandbox user's outside identity the owner of a new entry. A
// directory with the set-group-id bit passes its group on, which the kernel did
// when it made the entry.
func (m *mount) own(p made, st *unix.Stat_t) error {
	if err := p.stat(st); err != nil {
		return err
	}
	uid, gid := m.owner.OutsideUID, m.owner.OutsideGID
	if st.Uid == uid && st.Gid == gid {
		return nil
	}
	var dir unix.Stat_t
	if err := (place{dirfd: p.dirfd}).stat(&dir); err != nil {
		return err
	}
	if dir.Mode&unix.S_ISGID != 0 {
		gid = dir.Gid
	}
	if st.Uid == uid && st.Gid == gid {
		return nil
	}
	if err := unix.Fchownat(p.dirfd, p.name, int(uid), int(gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return p.stat(st)
}

// Create makes a regular file and opens it.
func (m *mount) Create(_ <-chan struct{}, in *gofuse.CreateIn, name string, out *gofuse.CreateOut) gofuse.Status {
	alone := m.repos.exclusive(name)
	m.tree.enter(alone)
	defer m.tree.leave(alone)
	parent, rel, code := m.child(in.NodeId, name)
	if !code.Ok() {
		return code
	}
	making := ask{policy.OpCreate, rel}
	v := m.weigh(in.Pid, append([]ask{making}, product([]string{rel}, openOps(in.Flags&^unix.O_TRUNC)...)...)...)
	if v.op != policy.OpWrite || v.dec.Effect != policy.SoftDelete { // a new file has nothing to keep
		if _, code := m.makeAway(in.Pid, v); !code.Ok() {
			return code
		}
	}
	if in.Mode&suidBits != 0 {
		return m.refuse(in.Pid, making, suidMessage, "create the file without the bits")
	}
	if code := m.repos.make(in.Pid, making, unix.S_IFREG); !code.Ok() {
		return code
	}
	p, err := m.backing.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.close()
	fd, err := p.open(int(in.Flags&keptFlags)|unix.O_CREAT|unix.O_EXCL, in.Mode&0o1777)
	if errors.Is(err, unix.EEXIST) && in.Flags&unix.O_EXCL == 0 {
		return gofuse.Status(syscall.ESTALE) // the supervisor made it: the kernel looks again and opens
	}
	if err != nil {
		return gofuse.Status(errno(err))
	}
	n, st, err := m.adopted(parent, rel, made{p, fd}, &out.EntryOut)
	if err != nil {
		closeFD(fd)
		return gofuse.Status(errno(err))
	}
	if m.repos.on() && m.repos.guards(rel) {
		return m.repos.open(n, fd, in.Flags, nil, &out.OpenOut)
	}
	h := m.newHandle(n, fd, in.Flags)
	h.before, h.mayChange = st, in.Flags&unix.O_ACCMODE != unix.O_RDONLY
	m.beginIO(h, &st, &out.OpenOut)
	return gofuse.OK
}

// maker judges what an entry is for a repository, then makes it.
type maker struct {
	judge func(ask) gofuse.Status
	make  func(place) error
}

// maker is that of an entry which is no link.
func (r *repositories) maker(tid, mode uint32, do func(place) error) maker {
	return maker{func(a ask) gofuse.Status { return r.make(tid, a, mode&unix.S_IFMT) }, do}
}

// make judges and makes an entry that is not opened.
func (m *mount) make(in *gofuse.InHeader, name string, mode uint32, out *gofuse.EntryOut, do maker) gofuse.Status {
	alone := m.repos.exclusive(name)
	m.tree.enter(alone)
	defer m.tree.leave(alone)
	parent, rel, code := m.child(in.NodeId, name)
	if !code.Ok() {
		return code
	}
	a := ask{createOp(mode), rel}
	away, code := m.makeAway(in.Pid, m.weigh(in.Pid, a))
	if !code.Ok() {
		return code
	}
	switch kind := mode & unix.S_IFMT; {
	case kind == unix.S_IFCHR || kind == unix.S_IFBLK:
		return m.refuse(in.Pid, a, deviceMessage, "use the devices in /dev")
	case kind == unix.S_IFREG && mode&suidBits != 0:
		return m.refuse(in.Pid, a, suidMessage, "create the file without the bits")
	}
	if code := do.judge(a); !code.Ok() {
		return code
	}
	p, err := m.backing.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer p.close()
	err = do.make(p)
	if errors.Is(err, unix.EEXIST) && away && mode&unix.S_IFMT == unix.S_IFDIR {
		err = nil // the target has it already
	}
	if err != nil {
		return gofuse.Status(errno(err))
	}
	if _, _, err := m.adopted(parent, rel, made{p, -1}, out); err != nil {
		return gofuse.Status(errno(err))
	}
	return gofuse.OK
}

// Mknod makes a regular file, FIFO or socket. Devices are refused.
func (m *mount) Mknod(_ <-chan struct{}, in *gofuse.MknodIn, name string, out *gofuse.EntryOut) gofuse.Status {
	mode := in.Mode
	if mode&unix.S_IFMT == 0 {
		mode |= unix.S_IFREG
	}
	return m.make(&in.InHeader, name, mode, out, m.repos.maker(in.Pid, mode, func(p place) error {
		return unix.Mknodat(p.dirfd, p.name, mode&(unix.S_IFMT|0o1777), 0)
	}))
}

// Mkdir makes a directory.
func (m *mount) Mkdir(_ <-chan struct{}, in *gofuse.MkdirIn, name string, out *gofuse.EntryOut) gofuse.Status {
	return m.make(&in.InHeader, name, in.Mode&0o7777|unix.S_IFDIR, out, m.repos.maker(in.Pid, unix.S_IFDIR, func(p place) error {
		return unix.Mkdirat(p.dirfd, p.name, in.Mode&0o3777)
	}))
}

// Symlink makes a symbolic link. Its text is judged only where git reads it: what
// it leads to is, when it is used.
func (m *mount) Symlink(_ <-chan struct{}, h *gofuse.InHeader, text, name string, out *gofuse.EntryOut) gofuse.Status {
	return m.make(h, name, unix.S_IFLNK, out, maker{
		func(a ask) gofuse.Status { return m.repos.link(h.Pid, a, text) },
		func(p place) error { return unix.Symlinkat(text, p.dirfd, p.name) },
	})
}

// Link gives a file a second name. Both names are judged now, and the stricter
// holds at every later use, whichever name is used. A name that permits more
// than the file's others is refused: a later session would not know of them.
func (m *mount) Link(_ <-chan struct{}, in *gofuse.LinkIn, name string, out *gofuse.EntryOut) gofuse.Status {
	alone := m.repos.exclusive(name)
	m.tree.enter(alone)
	defer m.tree.leave(alone)
	parent, rel, code := m.child(in.NodeId, name)
	if !code.Ok() {
		return code
	}
	n := m.tree.node(in.Oldnodeid)
	if n == nil || m.tree.stale(n) {
		return gofuse.Status(syscall.ESTALE)
	}
	_, all := m.tree.bindings(n)
	if len(all) == 0 {
		return gofuse.Status(syscall.ESTALE)
	}
	asks := []ask{{policy.OpLink, rel}, {policy.OpCreate, rel}}
	for _, old := range all {
		asks = append(asks, ask{policy.OpLink, old})
	}
	if code := m.permit(in.Pid, m.inside(rel), asks...); !code.Ok() {
		return code
	}
	for _, old := range all {
		if code := m.keepDenials(in.Pid, old, rel); !code.Ok() {
			return code
		}
	}
	if code := m.repos.hardLink(in.Pid, asks[0], n, all); !code.Ok() {
		return code
	}
	from, err := m.reach(n)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer from.close()
	to, err := m.backing.locate(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer to.close()
	if err := unix.Linkat(from.dirfd, from.name, to.dirfd, to.name, 0); err != nil {
		return gofuse.Status(errno(err))
	}
	var st unix.Stat_t
	if err := to.stat(&st); err != nil {
		return gofuse.Status(errno(err))
	}
	m.tree.hardLinked(n)
	linked := m.tree.adopt(parent, name, &st)
	m.changes.created(rel)
	m.fillEntry(out, linked, &st, true)
	return gofuse.OK
}
