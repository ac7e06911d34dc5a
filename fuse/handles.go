package fuse

import (
	"fmt"
	"os"
	"sync"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/fuse/device"
	"agentsh/fuse/locks"
	"agentsh/fuse/tree"
)

// openFiles are the open handles of a mount, with the I/O mode of each.
type openFiles struct {
	tree   *tree.Tree
	kernel *kernel
	stages *stages
	tmpfs  bool // the backing is one

	mu          sync.Mutex
	handles     handles
	passthrough bool // reads and writes may bypass the server
	mapsDirect  bool // the kernel maps files that do not use the page cache for reads
	leases      bool // a lease for reading shows that nothing writes a file, mappings included
}

// handle is one open file or directory of the kernel.
type handle struct {
	node  *tree.Node
	io    *tree.IO
	fd    int
	flags uint32 // open(2) flags
	uses  int    // guarded by openFiles.mu; the descriptor closes at zero
	id    uint64

	dirMu sync.Mutex // directories: position of fd

	// before is set for files open for writing. It has the attributes at open; release
	// compares them to detect a change. Writes may bypass the server.
	before    unix.Stat_t
	direct    bool // passthrough
	cached    bool // never passthrough
	mayChange bool
	changed   bool // the file differs from what the kernel was told before this open

	stage *stage // of a guarded file that is being written; nil for all other files
}

// handles stores the open handles by slot. The number of a handle consists of its slot
// and, in the upper half, a counter of slot uses. So no number is used twice.
type handles struct {
	slots []*handle // nil: free
	free  []uint32
	taken uint32
	spare []*handle // closed handles for reuse
}

// maxUnused bounds the closed handles that are reused.
const maxUnused = 64

func (t *handles) add(h *handle) {
	slot := uint32(len(t.slots))
	if n := len(t.free); n > 0 {
		slot, t.free = t.free[n-1], t.free[:n-1]
		t.slots[slot] = h
	} else {
		t.slots = append(t.slots, h)
	}
	t.taken++
	h.id = uint64(t.taken)<<32 | uint64(slot)
}

// get returns an open handle, or nil.
func (t *handles) get(id uint64) *handle {
	slot := id & (1<<32 - 1)
	if slot >= uint64(len(t.slots)) {
		return nil
	}
	if h := t.slots[slot]; h != nil && h.id == id {
		return h
	}
	return nil
}

func (t *handles) remove(h *handle) {
	slot := uint32(h.id)
	t.slots[slot] = nil
	t.free = append(t.free, slot)
}

// all iterates over the open handles.
func (t *handles) all(yield func(*handle) bool) {
	for _, h := range t.slots {
		if h != nil && !yield(h) {
			return
		}
	}
}

// prepare returns a handle that is not registered.
func (f *openFiles) prepare(n *tree.Node, fd int, flags uint32) *handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.prepareLocked(n, fd, flags)
}

func (f *openFiles) prepareLocked(n *tree.Node, fd int, flags uint32) *handle {
	h := &handle{}
	if last := len(f.handles.spare) - 1; last >= 0 {
		h, f.handles.spare = f.handles.spare[last], f.handles.spare[:last]
	}
	h.node, h.fd, h.flags = n, fd, flags
	return h
}

// add registers h with one use and returns its number.
func (f *openFiles) add(h *handle) uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addLocked(h)
}

func (f *openFiles) addLocked(h *handle) uint64 {
	h.uses = 1
	f.handles.add(h)
	h.io = f.tree.Open(h.node)
	return h.id
}

// get returns an open handle and counts one more use of it, or returns nil.
func (f *openFiles) get(id uint64) *handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.handles.get(id)
	if h != nil {
		h.uses++
	}
	return h
}

// ofNode returns a handle of n that is open in the backing and counts one more use of
// it, or returns nil.
func (f *openFiles) ofNode(n *tree.Node) *handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	for h := range f.handles.all {
		if h.node == n {
			h.uses++
			return h
		}
	}
	return nil
}

// put ends one use of a handle. The descriptor closes after the last use.
func (f *openFiles) put(h *handle) {
	f.mu.Lock()
	h.uses--
	if h.uses > 0 {
		f.mu.Unlock()
		return
	}
	f.tree.Close(h.node)
	fd := h.fd
	if len(f.handles.spare) < maxUnused {
		*h = handle{} // no other reference exists
		f.handles.spare = append(f.handles.spare, h)
	}
	f.mu.Unlock()
	if fd >= 0 {
		tree.CloseFD(fd)
	}
}

// drop removes a handle from the table. The caller then ends the handle's first use
// with put.
func (f *openFiles) drop(id uint64) *handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.handles.get(id)
	if h == nil {
		return nil
	}
	f.dropLocked(h)
	return h
}

func (f *openFiles) dropLocked(h *handle) {
	f.handles.remove(h)
	f.end(h)
}

// begin registers h and selects its I/O mode. I/O bypasses the server if the kernel
// supports that and nothing forbids it. Otherwise it uses the page cache. If the kernel caches the
// file's pages from now on, and has none yet, those of a small file are stored. The handle may
// end at any time after begin.
func (f *openFiles) begin(h *handle, st *unix.Stat_t, out *gofuse.OpenOut) (stored bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	out.Fh = f.addLocked(h)
	io := h.io
	io.Stale = io.Stale || h.changed
	writes := h.flags&unix.O_ACCMODE != unix.O_RDONLY
	switch {
	case io.Direct > 0: // the kernel refuses any other mode
		h.direct = true
	case io.Cached > 0 || h.cached || !f.passthrough || st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
	case writes || h.changed || st.Size >= tree.DirectMin || f.mapped(h): // the kernel may have the size of a changed file wrong
		h.direct = f.registerBacking(io, h.fd)
	}
	if h.direct {
		io.Direct++
		io.Stale = io.Stale || writes
		io.Mapped = io.Mapped || h.flags&unix.O_ACCMODE == unix.O_RDWR
		out.OpenFlags = gofuse.FOPEN_PASSTHROUGH | noFlush(h, io)
		out.BackingID = io.BackingID
		return false
	}
	useCache(h, out)
	first := f.tree.Paged(h.node) && io.Cached == 1 && out.OpenFlags&gofuse.FOPEN_KEEP_CACHE != 0 && !writes && !h.changed && f.kernel.caches
	if h.changed && f.mapsDirect && h.flags&(unix.O_ACCMODE|fmodeExec) == unix.O_RDONLY {
		// A notice on its way makes the kernel ignore the size that it asks for at a read.
		// Reads past the page cache do not depend on the size.
		out.OpenFlags |= gofuse.FOPEN_DIRECT_IO
	}
	return first && f.store(h, st)
}

// passes reports whether an open handle of a node has the kernel read and write the backing
// itself. It then caches no page of the node.
func (f *openFiles) passes(n *tree.Node) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	io := f.tree.Host.OpenIO(n)
	return io != nil && io.Direct > 0
}

// mapped reports whether a mapping may still write the file of h, which is open for
// reading. A mapping outlives its handle, and counts as an open for writing. While there
// is one, the kernel gives no lease for reading: see F_SETLEASE in fcntl(2).
func (f *openFiles) mapped(h *handle) bool {
	if !h.io.Mapped || !f.leases {
		return h.io.Mapped
	}
	if _, err := unix.FcntlInt(uintptr(h.fd), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return true
	}
	_, err := unix.FcntlInt(uintptr(h.fd), unix.F_SETLEASE, unix.F_UNLCK)
	h.io.Mapped = err != nil
	return h.io.Mapped
}

// registerBacking registers a descriptor with the kernel for passthrough. It fails if
// the server lacks CAP_SYS_ADMIN or the backing is stacked too deep. The mount then
// works without passthrough.
func (f *openFiles) registerBacking(io *tree.IO, fd int) bool {
	id, err := f.kernel.OpenBacking(fd)
	if err != 0 {
		if err == unix.EPERM || err == unix.ELOOP || err == unix.EOPNOTSUPP {
			f.passthrough = false
		}
		return false
	}
	io.BackingID = id
	return true
}

func (f *openFiles) end(h *handle) {
	if h.node.Kind() == unix.S_IFDIR {
		return
	}
	if h.stage != nil {
		f.stages.end(h.node)
		return
	}
	io := h.io
	if !h.direct {
		io.Cached--
		return
	}
	io.Direct--
	if io.Direct == 0 {
		f.kernel.CloseBacking(io.BackingID)
		io.BackingID = 0
	}
}

// useCache counts a handle that uses the page cache of the mount.
func useCache(h *handle, out *gofuse.OpenOut) {
	io := h.io
	io.Cached++
	out.OpenFlags = noFlush(h, io)
	if !io.Stale {
		out.OpenFlags |= gofuse.FOPEN_KEEP_CACHE
	}
	io.Stale = false
}

// noFlush returns the flag that saves the request for each close of a handle. Closes
// release POSIX locks, so they are reported for files that may get locks: those that a
// command has locked before, and handles open for writing. A new file that its creator
// alone may open so (O_EXCL) is not locked in practice.
func noFlush(h *handle, io *tree.IO) uint32 {
	if io.Locked || writes(h.flags) && h.flags&(unix.O_EXCL|unix.O_ACCMODE) != unix.O_EXCL|unix.O_WRONLY {
		return 0
	}
	return gofuse.FOPEN_NOFLUSH
}

// markLocked makes the kernel report each close of the file from its next open on.
func (f *openFiles) markLocked(h *handle) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h.io.Locked = true
}

// markStale makes the next open discard the kernel's page cache of the file.
func (f *openFiles) markStale(h *handle) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h.io.Stale = true
}

// writable returns the open handles that may change their file. It counts one more use
// of each.
func (f *openFiles) writable() []*handle {
	f.mu.Lock()
	defer f.mu.Unlock()
	var open []*handle
	for h := range f.handles.all {
		if h.mayChange {
			h.uses++
			open = append(open, h)
		}
	}
	return open
}

// baseline records the present attributes of every open file. Later writes are
// detected by comparison with them.
func (f *openFiles) baseline() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for h := range f.handles.all {
		if h.mayChange {
			_ = unix.Fstat(h.fd, &h.before) // if stat fails, the older attributes remain and the file counts as changed
		}
	}
}

// locker answers requests for locks. A file's rules were evaluated at its open, and the
// kernel checks that a handle is open for what its lock needs. So no rule is evaluated.
type locker struct {
	handles *openFiles
	kernel  *kernel
	table   *locks.Table
	stamps  locks.Stamps
}

func newLocker(m *mount) *locker {
	report := func(message string) {
		m.access.reporter.fault(fmt.Sprintf("file server of %s: %s", m.files.path, message))
	}
	return &locker{handles: m.handles, kernel: m.kernel, table: locks.New(m.shared.lockWaits, report)}
}

// request converts a request of the kernel. The caller ends the use of the handle.
func (o *locker) request(in *gofuse.LkIn) (*handle, locks.Request, gofuse.Status) {
	h := o.handles.get(in.Fh)
	if h == nil {
		return nil, locks.Request{}, gofuse.EBADF
	}
	access := int(h.flags & unix.O_ACCMODE)
	if h.stage != nil {
		access = unix.O_RDONLY
	}
	return h, locks.Request{
		File: locks.File{Handle: h.id, FD: h.fd, Access: access}, Unique: in.Unique, Owner: in.Owner,
		Type: int16(in.Lk.Typ), Start: int64(in.Lk.Start), End: int64(in.Lk.End), PID: in.Lk.Pid, Flock: in.LkFlags&gofuse.LK_FLOCK != 0,
	}, gofuse.OK
}

// get finds a lock that conflicts with the request.
func (o *locker) get(in *gofuse.LkIn, out *gofuse.LkOut) gofuse.Status {
	h, r, code := o.request(in)
	if !code.Ok() {
		return code
	}
	defer o.handles.put(h)
	found, err := o.table.Get(r)
	out.Lk = gofuse.FileLock{Start: uint64(found.Start), End: uint64(found.End), Typ: uint32(found.Type), Pid: found.PID}
	return gofuse.Status(err)
}

// set takes or releases a lock without waiting.
func (o *locker) set(in *gofuse.LkIn) gofuse.Status {
	h, r, code := o.request(in)
	if !code.Ok() {
		return code
	}
	defer o.handles.put(h)
	o.handles.markLocked(h)
	err := o.table.Set(r)
	if err == 0 {
		o.granted(h, &r)
	}
	return gofuse.Status(err)
}

// wait takes a lock. If it must wait, the answer comes from another goroutine.
func (o *locker) wait(in *gofuse.LkIn) gofuse.Status {
	h, r, code := o.request(in)
	if !code.Ok() {
		return code
	}
	o.handles.markLocked(h)
	err, later := o.table.Wait(r, func(err unix.Errno) {
		if err == 0 {
			o.granted(h, &r)
		}
		o.handles.put(h)
		o.kernel.Answer(r.Unique, gofuse.Status(err))
	})
	if later {
		return device.Later
	}
	defer o.handles.put(h)
	if err == 0 {
		o.granted(h, &r)
	}
	return gofuse.Status(err)
}

// granted makes the kernel drop what it caches of a locked file, if another process may
// have changed the file since the last lock. Programs read such a file again under a
// lock, and rely on its present content.
func (o *locker) granted(h *handle, r *locks.Request) {
	if r.Type == unix.F_UNLCK {
		return
	}
	o.stamps.Refresh(h.fd, func(size int64) {
		o.kernel.StepAside() // the kernel may first wait for an answer of this server
		o.kernel.NotifyInode(h.node.ID())
		if h.direct || h.stage != nil || size == 0 {
			return
		}
		// The kernel asks for a new size when a read goes beyond the one it knows, but
		// ignores the answer if a notice arrives meanwhile. Stored data extends the size.
		page := int64(os.Getpagesize())
		off := (size - 1) &^ (page - 1)
		tail := make([]byte, device.StoreRoom+int(size-off))
		if n, err := unix.Pread(h.fd, tail[device.StoreRoom:], off); err == nil && n > 0 {
			o.kernel.NotifyStore(h.node.ID(), off, tail[:device.StoreRoom+n])
		}
	})
}

// flush releases the POSIX locks of a process that closed a descriptor of the file.
func (o *locker) flush(in *gofuse.FlushIn) {
	if !o.table.InUse() {
		return
	}
	if h := o.handles.get(in.Fh); h != nil {
		defer o.handles.put(h)
		o.table.Flush(h.fd, in.LockOwner)
	}
}

// release ends the locks that were taken through a handle.
func (o *locker) release(h *handle) {
	o.table.Release(h.fd, h.id)
}
