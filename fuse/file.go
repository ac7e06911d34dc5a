package fuse

import (
	"errors"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// fmodeExec marks the open of an execve. User space cannot set it. See
// __FMODE_EXEC in include/linux/fs.h.
const fmodeExec = 0x20

// keptFlags are the open(2) flags that matter to the backing.
const keptFlags = unix.O_ACCMODE | unix.O_APPEND | unix.O_SYNC | unix.O_DSYNC | unix.O_NOATIME

// openOps are the operations an open asks for.
func openOps(flags uint32) []policy.FileOp {
	var ops []policy.FileOp
	switch {
	case flags&fmodeExec != 0:
		ops = []policy.FileOp{policy.OpExecute}
	case flags&unix.O_ACCMODE == unix.O_WRONLY:
		ops = []policy.FileOp{policy.OpWrite}
	case flags&unix.O_ACCMODE == unix.O_RDONLY:
		ops = []policy.FileOp{policy.OpRead}
	default:
		ops = []policy.FileOp{policy.OpRead, policy.OpWrite}
	}
	if flags&unix.O_TRUNC != 0 && flags&unix.O_ACCMODE == unix.O_RDONLY {
		ops = append(ops, policy.OpWrite)
	}
	return ops
}

// Open judges on every path that binds the file and opens it.
func (m *mount) Open(_ <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	reads := in.Flags&(unix.O_ACCMODE|unix.O_TRUNC|fmodeExec) == unix.O_RDONLY
	n, at := m.tree.standing(in.NodeId, policy.OpRead)
	if reads && at.allowed && at.small && m.beginLate(n, in.Flags, out) {
		return gofuse.OK
	}
	if n == nil || m.tree.stale(n) {
		return gofuse.Status(syscall.ESTALE)
	}
	names, all := m.tree.bindings(n)
	if len(all) == 0 {
		return gofuse.Status(syscall.ESTALE)
	}
	v := m.weigh(in.Pid, product(all, openOps(in.Flags)...)...)
	if reads && v.dec.Effect == policy.Allow {
		m.tree.allow(n, policy.OpRead, at.era)
	}
	soft := v.op == policy.OpWrite && v.dec.Effect == policy.SoftDelete
	switch {
	case v.dec.Effect == policy.Redirect:
		if code := m.writeAway(in.Pid, v, n, in.Flags&unix.O_TRUNC == 0); !code.Ok() {
			return code
		}
	case !soft:
		if code := m.settle(in.Pid, "", v); !code.Ok() {
			return code
		}
	}
	if writes(in.Flags) && m.repos.guardsNode(names) {
		return m.repos.openExisting(n, names, in.Flags, out)
	}
	if in.Flags&(unix.O_ACCMODE|unix.O_TRUNC) == unix.O_RDONLY && at.small && m.beginLate(n, in.Flags, out) {
		return gofuse.OK
	}
	fd, err := m.openNode(n, in.Flags)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	if soft {
		if err := m.keepContent(in.Pid, v, fd); err != nil {
			closeFD(fd)
			return gofuse.Status(errno(err))
		}
	}
	h := m.newHandle(n, fd, in.Flags)
	if err := m.prepare(h, in); err != nil {
		closeFD(fd)
		return gofuse.Status(errno(err))
	}
	h.cached = h.before.Size >= directMin && !writes(in.Flags) && m.repos.guardsNode(names)
	m.beginIO(h, &h.before, out)
	return gofuse.OK
}

// keepContent saves what an open file holds before it is written to.
func (m *mount) keepContent(tid uint32, v verdict, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Size == 0 {
		return err
	}
	_, err := m.softDelete(tid, v, place{dirfd: fd})
	return err
}

// openNode opens a regular file by one of its names, or by descriptor when it
// has none, and makes sure it is that file.
func (m *mount) openNode(n *node, flags uint32) (int, error) {
	keep := int(flags & keptFlags)
	for _, rel := range m.tree.paths(n) {
		p, err := m.backing.locate(rel)
		if err != nil {
			continue
		}
		fd, err := p.open(keep|unix.O_NONBLOCK, 0)
		p.close()
		if err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ELOOP) {
				continue
			}
			return -1, err
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil && (inodeOf(&st) == n.key || n == m.tree.root) {
			return fd, nil
		}
		closeFD(fd)
	}
	fd, err := m.nameless(n)
	if err != nil {
		return -1, err
	}
	defer closeFD(fd)
	return reopen(fd, keep)
}

// prepare truncates where asked and remembers what the file was.
func (m *mount) prepare(h *handle, in *gofuse.OpenIn) error {
	if err := unix.Fstat(h.fd, &h.before); err != nil {
		return err
	}
	if in.Flags&unix.O_ACCMODE == unix.O_RDONLY && in.Flags&unix.O_TRUNC == 0 {
		return nil
	}
	h.mayChange = true
	m.rememberBefore(m.tree.paths(h.node), place{dirfd: h.fd})
	if in.Flags&unix.O_TRUNC == 0 {
		return nil
	}
	if in.Mode&gofuse.OPEN_KILL_SUIDGID != 0 {
		if err := stripSuid(h.fd); err != nil {
			return err
		}
	}
	if err := truncate(h.fd, 0); err != nil {
		return err
	}
	m.markChanged(h.node)
	return unix.Fstat(h.fd, &h.before)
}

func truncate(fd int, size int64) error {
	if err := unix.Ftruncate(fd, size); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EBADF) {
		return err
	}
	return unix.Truncate(procPath(fd), size) // not open for writing, or O_PATH
}

// stripSuid takes the bits away that a write by an ordinary user would take:
// the kernel leaves that to the server with HANDLE_KILLPRIV_V2.
func stripSuid(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&(unix.S_ISUID|unix.S_ISGID) == 0 || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	return unix.Chmod(procPath(fd), st.Mode&0o7777&^(unix.S_ISUID|unix.S_ISGID))
}

// markChanged records a change of a file under its present names.
func (m *mount) markChanged(n *node) {
	for _, rel := range m.tree.paths(n) {
		m.changes.modified(rel)
	}
}

// noteWrites records what was written through h without passing here.
func (m *mount) noteWrites(h *handle) {
	if !h.mayChange {
		return
	}
	var now unix.Stat_t
	if unix.Fstat(h.fd, &now) != nil {
		return
	}
	m.tree.seen(h.node, &now)
	if stampOf(&now) != stampOf(&h.before) {
		m.markChanged(h.node)
		return
	}
	if h.direct && h.flags&unix.O_ACCMODE == unix.O_RDWR {
		// A mapping made around the server outlives the handle.
		for _, rel := range m.tree.paths(h.node) {
			m.changes.watched(rel, stampOf(&h.before))
		}
	}
}

// Release closes a handle.
func (m *mount) Release(_ <-chan struct{}, in *gofuse.ReleaseIn) {
	if m.repos.some.Load() > 0 {
		m.repos.flush(in.Fh, in.Pid) // nobody hears what comes of it but the log
	}
	m.tree.moves.RLock() // the change record is asked for under this lock: no write falls between
	defer m.tree.moves.RUnlock()
	if h := m.dropHandle(in.Fh); h != nil {
		m.noteWrites(h)
		if h.mayChange {
			m.seenAway(h.node)
		}
		m.putHandle(h)
	}
}

// Read reads through an open handle, which was judged when it was opened. What
// the backing does not have in memory is waited for beside the loop.
func (m *mount) Read(_ <-chan struct{}, in *gofuse.ReadIn, buf []byte) (gofuse.ReadResult, gofuse.Status) {
	size, code := m.read(in, buf)
	if !code.Ok() {
		return nil, code
	}
	return gofuse.ReadResultData(buf[:size]), gofuse.OK
}

func (m *mount) read(in *gofuse.ReadIn, buf []byte) (size int, code gofuse.Status) {
	h := m.handle(in.Fh)
	if h == nil {
		return 0, gofuse.EBADF
	}
	defer m.putHandle(h)
	if h.stage != nil {
		return h.stage.read(buf, int64(in.Offset)), gofuse.OK
	}
	fd, err := m.fdOf(h)
	if err != nil {
		return 0, gofuse.Status(errno(err))
	}
	for size < len(buf) {
		n, err := m.readSome(fd, buf[size:], int64(in.Offset)+int64(size))
		if err != nil && size == 0 {
			return 0, gofuse.Status(errno(err))
		}
		if err != nil || n == 0 {
			break
		}
		size += n
	}
	return size, gofuse.OK
}

// readSome reads what is in memory, or waits for the disk beside the loop.
func (m *mount) readSome(fd int, buf []byte, off int64) (int, error) {
	n, err := preadNow(fd, buf, off)
	if err == nil || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EOPNOTSUPP) {
		return n, err
	}
	m.loop.stepAside()
	return retry(func() (int, error) { return unix.Pread(fd, buf, off) })
}

func retry(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Writev is never used: requests arrive in one piece.
func (m *mount) Writev(cancel <-chan struct{}, in *gofuse.WriteIn, data [][]byte) (uint32, gofuse.Status) {
	var sum uint32
	at := *in
	for _, part := range data {
		n, code := m.Write(cancel, &at, part)
		sum += n
		if !code.Ok() || int(n) < len(part) {
			if sum > 0 {
				code = gofuse.OK
			}
			return sum, code
		}
		at.Offset += uint64(n)
	}
	return sum, gofuse.OK
}

// Write writes through an open handle.
func (m *mount) Write(_ <-chan struct{}, in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	h := m.handle(in.Fh)
	if h == nil {
		return 0, gofuse.EBADF
	}
	defer m.putHandle(h)
	if h.stage != nil {
		size, err := h.stage.write(data, int64(in.Offset))
		return uint32(size), gofuse.Status(errno(err))
	}
	if in.WriteFlags&gofuse.WRITE_KILL_SUIDGID != 0 {
		if err := stripSuid(h.fd); err != nil {
			return 0, gofuse.Status(errno(err))
		}
	}
	size, err := retry(func() (int, error) { return unix.Pwrite(h.fd, data, int64(in.Offset)) })
	if err != nil {
		return 0, gofuse.Status(errno(err))
	}
	return uint32(size), gofuse.OK
}

// Flush answers close(2). The kernel asks for it only where a guarded file was
// written: all others have FOPEN_NOFLUSH.
func (m *mount) Flush(_ <-chan struct{}, in *gofuse.FlushIn) gofuse.Status {
	return m.repos.flush(in.Fh, in.Pid)
}

// Fsync makes a file durable. See FUSE_FSYNC_FDATASYNC in uapi/linux/fuse.h.
func (m *mount) Fsync(_ <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	h := m.handle(in.Fh)
	if h == nil {
		return gofuse.EBADF
	}
	defer m.putHandle(h)
	fd, err := m.fdOf(h)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	m.loop.stepAside()
	if in.FsyncFlags&1 != 0 {
		return gofuse.Status(errno(unix.Fdatasync(fd)))
	}
	return gofuse.Status(errno(unix.Fsync(fd)))
}

// Fallocate reserves or punches space through a handle open for writing.
func (m *mount) Fallocate(_ <-chan struct{}, in *gofuse.FallocateIn) gofuse.Status {
	h := m.handle(in.Fh)
	if h == nil {
		return gofuse.EBADF
	}
	defer m.putHandle(h)
	if h.stage != nil {
		return gofuse.Status(unix.EOPNOTSUPP)
	}
	if err := stripSuid(h.fd); err != nil {
		return gofuse.Status(errno(err))
	}
	return gofuse.Status(errno(unix.Fallocate(h.fd, in.Mode, int64(in.Offset), int64(in.Length))))
}

// Lseek finds data and holes.
func (m *mount) Lseek(_ <-chan struct{}, in *gofuse.LseekIn, out *gofuse.LseekOut) gofuse.Status {
	h := m.handle(in.Fh)
	if h == nil {
		return gofuse.EBADF
	}
	defer m.putHandle(h)
	fd, err := m.fdOf(h)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	if h.stage != nil {
		return gofuse.Status(unix.EINVAL) // no holes are told of
	}
	off, err := unix.Seek(fd, int64(in.Offset), int(in.Whence))
	if err != nil {
		return gofuse.Status(errno(err))
	}
	out.Offset = uint64(off)
	return gofuse.OK
}

// CopyFileRange copies between two handles, both judged when opened.
func (m *mount) CopyFileRange(_ <-chan struct{}, in *gofuse.CopyFileRangeIn) (uint32, gofuse.Status) {
	from, to := m.handle(in.FhIn), m.handle(in.FhOut)
	if from != nil {
		defer m.putHandle(from)
	}
	if to != nil {
		defer m.putHandle(to)
	}
	if from == nil || to == nil {
		return 0, gofuse.EBADF
	}
	if from.stage != nil || to.stage != nil {
		return 0, gofuse.Status(unix.EOPNOTSUPP) // the kernel reads and writes instead
	}
	source, err := m.fdOf(from)
	if err != nil {
		return 0, gofuse.Status(errno(err))
	}
	if err := stripSuid(to.fd); err != nil {
		return 0, gofuse.Status(errno(err))
	}
	m.loop.stepAside()
	offIn, offOut := int64(in.OffIn), int64(in.OffOut)
	size := int(min(in.Len, 1<<30))
	n, err := retry(func() (int, error) {
		return unix.CopyFileRange(source, &offIn, to.fd, &offOut, size, int(in.Flags))
	})
	if err != nil {
		return 0, gofuse.Status(errno(err))
	}
	return uint32(n), gofuse.OK
}
