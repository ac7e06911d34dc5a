package fuse

import (
	"errors"
	"sync"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/device"
	"agentsh/fuse/tree"
	"agentsh/policy"
)

// data answers requests about the content of files.
type data struct {
	tree     *tree.Tree
	files    *files
	access   *access
	nodes    *nodeFiles
	handles  *openFiles
	kernel   *kernel
	repos    *repositories
	soft     *softDeletes
	redirect *redirector
	locks    *locker
}

// fmodeExec marks the open of an execve. User space cannot set it. See
// __FMODE_EXEC in include/linux/fs.h.
const fmodeExec = 0x20

// backingFlags are the open(2) flags that are passed on to the backing.
const backingFlags = unix.O_ACCMODE | unix.O_APPEND | unix.O_SYNC | unix.O_DSYNC | unix.O_NOATIME

// openOps returns the operations that an open performs.
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

// open evaluates the rules on every path that applies to the file and opens the file.
func (o *data) open(in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	code := o.openChecked(in, out, nil)
	o.nodes.retries.answered(in.Pid, code)
	return code
}

// openChecked is open with a check, if not nil, of the descriptor before anything is
// changed. A file that guards a repository is then left to the kernel, by ESTALE.
func (o *data) openChecked(in *gofuse.OpenIn, out *gofuse.OpenOut, check func(fd int) error) gofuse.Status {
	o.tree.Moves.RLock()
	defer o.tree.Moves.RUnlock()
	reads := in.Flags&(unix.O_ACCMODE|unix.O_TRUNC|fmodeExec) == unix.O_RDONLY
	n, at := o.tree.Cached(in.NodeId, policy.OpRead)
	if n == nil || o.tree.Stale(n) {
		return gofuse.Status(syscall.ESTALE)
	}
	if reads && at.Allowed && at.Small {
		return o.openFile(n, in, out, check)
	}
	names, all := o.tree.Bindings(n)
	if all = o.nodes.retries.paths(in.Pid, n, all); len(all) == 0 {
		return gofuse.Status(o.tree.Host.Missing(n))
	}
	if writes(in.Flags) && o.repos.guardsMoved(n, names, all) {
		return gofuse.ENOENT
	}
	v := o.access.strictest(in.Pid, product(all, openOps(in.Flags)...)...)
	if reads && v.dec.Effect == policy.Allow {
		o.tree.CacheAllowed(n, policy.OpRead, at.Generation)
	}
	soft := v.op == policy.OpWrite && v.dec.Effect == policy.SoftDelete
	switch {
	case v.dec.Effect == policy.Redirect:
		if code := o.redirect.write(in.Pid, v, n, in.Flags&unix.O_TRUNC == 0); !code.Ok() {
			return code
		}
	case !soft:
		if code := o.access.apply(in.Pid, "", v); !code.Ok() {
			return code
		}
	}
	if writes(in.Flags) && o.repos.guardsNode(names) {
		if check != nil {
			return gofuse.Status(syscall.ESTALE)
		}
		return o.repos.openExisting(n, names, in.Flags, out)
	}
	before := check
	if soft {
		before = func(fd int) error {
			if check != nil {
				if err := check(fd); err != nil {
					return err
				}
			}
			return o.soft.saveContent(in.Pid, v, fd)
		}
	}
	return o.openFile(n, in, out, before)
}

// openFile opens a file after the rules were evaluated. It then calls before, if not
// nil. If the file is not as the kernel was told, the kernel drops what it caches of it.
func (o *data) openFile(n *tree.Node, in *gofuse.OpenIn, out *gofuse.OpenOut, before func(fd int) error) gofuse.Status {
	var st unix.Stat_t
	at := o.tree.Host.Now()
	kept := o.nodes.retries.take(in.Pid, n, true)
	defer kept.close()
	fd, err := o.nodes.open(n, in.Flags, &st)
	if err != nil && kept != nil {
		fd, err = kept.open(int(in.Flags&backingFlags), &st)
	}
	if err == unix.ESTALE && o.nodes.retries.refusals.repeats(in.Pid, in.NodeId) { //nolint:errorlint // open returns bare numbers
		fd, err = o.nodes.openAgain(n, int(in.Flags&backingFlags), &st)
	}
	if err != nil {
		return gofuse.Status(errno(err))
	}
	if before != nil {
		if err := before(fd); err != nil {
			tree.CloseFD(fd)
			return gofuse.Status(errno(err))
		}
		at = 0 // what it did may have taken long
	}
	h := o.handles.prepare(n, fd, in.Flags)
	if h.changed, err = o.changed(h, &st, at); err == nil {
		h.before = st
		err = o.prepare(h, in)
	}
	if err != nil {
		tree.CloseFD(fd)
		return gofuse.Status(errno(err))
	}
	h.cached = h.before.Size >= tree.DirectMin && !writes(in.Flags) && o.repos.on() && o.repos.guardsNode(o.tree.Paths(n))
	stored := o.handles.begin(h, &h.before, out)
	same := o.tree.Same(n, &st) // else the node took another file before it had this handle
	if stored && (!same || !unchanged(fd, &st)) {
		o.tree.Host.Doubt(n) // the size that a store gives the kernel may be the former one
	}
	if !same {
		o.handles.put(o.handles.drop(out.Fh))
		return gofuse.Status(syscall.ESTALE)
	}
	return gofuse.OK
}

// storedMost is the size of the largest file that is stored at its open.
const storedMost = 32 << 10

// stores are messages of [data.store].
var stores = sync.Pool{New: func() any { return new([device.StoreRoom + storedMost]byte) }}

// store gives the kernel the content of a file that is being opened for the first time, so
// that it asks for none, and reports whether it did. What is not in memory is read when it is
// asked for. The caller holds mu: no other handle of the file begins meanwhile, so that nothing
// in the cache is newer, and no page waits for this server.
func (f *openFiles) store(h *handle, st *unix.Stat_t) bool {
	if st.Size > storedMost || st.Size == 0 || older.cold || tree.Settles(st) {
		return false // a write sets the times before it copies
	}
	buf := stores.Get().(*[device.StoreRoom + storedMost]byte)
	defer stores.Put(buf)
	content := buf[device.StoreRoom:][:st.Size]
	read := device.ReadCached
	if f.tmpfs {
		read = unix.Pread // all is in memory, and the flag of ReadCached is refused
	}
	if n, err := read(h.fd, content, 0); err != nil || n < len(content) || !unchanged(h.fd, st) {
		return false // a read compares it with what the kernel was told
	}
	f.kernel.NotifyStore(h.node.ID(), 0, buf[:device.StoreRoom+len(content)])
	return true
}

// unchanged reports whether a file is as its attributes say.
func unchanged(fd int, st *unix.Stat_t) bool {
	var now unix.Stat_t
	return unix.Fstat(fd, &now) == nil && now.Size == st.Size && now.Mtim == st.Mtim && now.Ctim == st.Ctim
}

// prepare truncates the file if requested. It saves the previous content.
func (o *data) prepare(h *handle, in *gofuse.OpenIn) error {
	if in.Flags&unix.O_ACCMODE == unix.O_RDONLY && in.Flags&unix.O_TRUNC == 0 {
		return nil
	}
	h.mayChange = true
	o.files.savePrevious(o.tree.Paths(h.node), tree.Entry{DirFD: h.fd})
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
	o.nodes.markChanged(h.node)
	return unix.Fstat(h.fd, &h.before)
}

// flush handles the close of one descriptor of a handle.
func (o *data) flush(in *gofuse.FlushIn) gofuse.Status {
	o.locks.flush(in)
	return o.commit(in.Fh, in.Pid)
}

// commit commits writes through a handle if they are staged.
func (o *data) commit(fh uint64, tid uint32) gofuse.Status {
	if o.repos.stages.some.Load() == 0 {
		return gofuse.OK
	}
	h := o.handles.get(fh)
	if h == nil {
		return gofuse.EBADF
	}
	defer o.handles.put(h)
	if h.stage == nil {
		return gofuse.OK
	}
	return o.repos.commit(tid, h)
}

// release closes a handle.
func (o *data) release(in *gofuse.ReleaseIn) {
	if o.repos.stages.some.Load() > 0 {
		o.commit(in.Fh, in.Pid) // a failure can only be reported as an event
	}
	o.tree.Moves.RLock() // the change record is read under this lock: no write may be missed in between
	defer o.tree.Moves.RUnlock()
	if h := o.handles.drop(in.Fh); h != nil {
		o.locks.release(h)
		o.nodes.recordWrites(h)
		if h.mayChange {
			o.redirect.invalidateTargets(h.node)
		}
		if h.mayChange && h.direct {
			for _, rel := range o.tree.Paths(h.node) {
				o.files.edits.Direct(rel) // its last events may come later
			}
		}
		o.handles.put(h)
	}
}

// read answers a read. If the file has changed, the kernel is told: the next read asks for the
// attributes, and drops the pages that were read before. An answer that ends at the end of
// the file is sent first: if the file became shorter, the kernel takes its size from
// the answer only if no notice came since the read began. Otherwise the reader gets zeros
// (fuse_read_update_size in fs/fuse/file.c).
func (o *data) read(in *gofuse.ReadIn, buf []byte) (size int, sent func(), code gofuse.Status) {
	h := o.handles.get(in.Fh)
	if h == nil {
		return 0, nil, gofuse.EBADF
	}
	defer o.handles.put(h)
	if h.stage != nil {
		return h.stage.read(buf, int64(in.Offset)), nil, gofuse.OK
	}
	notify := o.kernel.NotifyAttributes
	for end := false; !end; {
		n, err := o.readSome(h.fd, buf[size:], int64(in.Offset)+int64(size))
		if err != nil && size == 0 {
			return 0, nil, gofuse.Status(errno(err))
		}
		size += max(n, 0)
		if size < len(buf) {
			notify = func(id uint64) { sent = func() { o.kernel.NotifyAttributes(id) } }
		}
		var st unix.Stat_t
		if _, err := o.compare(h, &st, false, o.tree.Host.Now, notify); err != nil {
			return 0, nil, gofuse.Status(errno(err))
		}
		end = err != nil || n == 0 || size == len(buf) || int64(in.Offset)+int64(size) >= st.Size
	}
	if sent != nil && size == len(buf) {
		sent()
		sent = nil
	}
	return size, sent, gofuse.OK
}

// readSome reads data that is in memory. Otherwise another worker serves the loop
// while this one waits for the disk.
func (o *data) readSome(fd int, buf []byte, off int64) (int, error) {
	if o.files.backing.FS != unix.TMPFS_MAGIC { // which refuses RWF_NOWAIT, and has all in memory
		n, err := device.ReadCached(fd, buf, off)
		if err == nil || !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EOPNOTSUPP) {
			return n, err
		}
		o.kernel.StepAside()
	}
	return device.Retry(func() (int, error) { return unix.Pread(fd, buf, off) })
}

// write writes through an open handle.
func (o *data) write(in *gofuse.WriteIn, data []byte) (uint32, gofuse.Status) {
	h := o.handles.get(in.Fh)
	if h == nil {
		return 0, gofuse.EBADF
	}
	defer o.handles.put(h)
	if h.stage != nil {
		size, err := h.stage.write(data, int64(in.Offset))
		return uint32(size), gofuse.Status(errno(err))
	}
	if in.WriteFlags&gofuse.WRITE_KILL_SUIDGID != 0 && keepsSuid() {
		if err := stripSuid(h.fd); err != nil {
			return 0, gofuse.Status(errno(err))
		}
	}
	size, err := device.Retry(func() (int, error) { return unix.Pwrite(h.fd, data, int64(in.Offset)) })
	if err != nil {
		return 0, gofuse.Status(errno(err))
	}
	return uint32(size), gofuse.OK
}

// fsync makes a file durable. See FUSE_FSYNC_FDATASYNC in uapi/linux/fuse.h.
func (o *data) fsync(in *gofuse.FsyncIn) gofuse.Status {
	h := o.handles.get(in.Fh)
	if h == nil {
		return gofuse.EBADF
	}
	defer o.handles.put(h)
	o.kernel.StepAside()
	if in.FsyncFlags&1 != 0 {
		return gofuse.Status(errno(unix.Fdatasync(h.fd)))
	}
	return gofuse.Status(errno(unix.Fsync(h.fd)))
}

// fallocate reserves or punches space through a handle open for writing.
func (o *data) fallocate(in *gofuse.FallocateIn) gofuse.Status {
	h := o.handles.get(in.Fh)
	if h == nil {
		return gofuse.EBADF
	}
	defer o.handles.put(h)
	if h.stage != nil {
		return gofuse.Status(unix.EOPNOTSUPP)
	}
	if err := stripSuid(h.fd); err != nil {
		return gofuse.Status(errno(err))
	}
	return gofuse.Status(errno(unix.Fallocate(h.fd, in.Mode, int64(in.Offset), int64(in.Length))))
}

// lseek finds data and holes.
func (o *data) lseek(in *gofuse.LseekIn, out *gofuse.LseekOut) gofuse.Status {
	h := o.handles.get(in.Fh)
	if h == nil {
		return gofuse.EBADF
	}
	defer o.handles.put(h)
	if h.stage != nil {
		return gofuse.Status(unix.EINVAL) // holes are not reported
	}
	off, err := unix.Seek(h.fd, int64(in.Offset), int(in.Whence))
	if err != nil {
		return gofuse.Status(errno(err))
	}
	out.Offset = uint64(off)
	return gofuse.OK
}

// copyFileRange copies between two open handles, which were checked when they were opened.
func (o *data) copyFileRange(in *gofuse.CopyFileRangeIn) (uint32, gofuse.Status) {
	from, to := o.handles.get(in.FhIn), o.handles.get(in.FhOut)
	if from != nil {
		defer o.handles.put(from)
	}
	if to != nil {
		defer o.handles.put(to)
	}
	if from == nil || to == nil {
		return 0, gofuse.EBADF
	}
	if from.stage != nil || to.stage != nil {
		return 0, gofuse.Status(unix.EOPNOTSUPP) // the kernel reads and writes instead
	}
	if err := stripSuid(to.fd); err != nil {
		return 0, gofuse.Status(errno(err))
	}
	o.kernel.StepAside()
	offIn, offOut := int64(in.OffIn), int64(in.OffOut)
	size := int(min(in.Len, 1<<30))
	n, err := device.Retry(func() (int, error) {
		return unix.CopyFileRange(from.fd, &offIn, to.fd, &offOut, size, int(in.Flags))
	})
	if err != nil {
		return 0, gofuse.Status(errno(err))
	}
	return uint32(n), gofuse.OK
}
