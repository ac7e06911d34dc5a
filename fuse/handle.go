package fuse

import (
	"sync"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// handle is one open file or directory of the kernel.
type handle struct {
	node  *node
	io    *ioState
	fd    int    // -1 until it is needed, if late
	late  bool   // opened in the backing by [mount.fdOf]
	flags uint32 // open(2) flags
	uses  int    // guarded by mount.handleMu; the descriptor closes at zero
	id    uint64

	lateMu sync.Mutex // guards fd where late

	dirMu sync.Mutex // directories: position of fd

	// Files open for writing: what the file was when it was opened, to tell at
	// release whether it changed. Writes may bypass the server.
	before    unix.Stat_t
	direct    bool // passthrough
	cached    bool // never passthrough
	mayChange bool

	stage *stage // of a guarded file that is written; nil: any other
}

// ioState tells how the open handles of a file do their input and output. The
// kernel allows one way at a time for an inode, and one backing id. See
// fs/fuse/iomode.c. Guarded by mount.handleMu.
type ioState struct {
	backingID int32
	direct    int32 // handles that bypass the server
	cached    int32 // handles that use the page cache of the mount
	stale     bool  // written around the page cache of the mount since the last cached open
	mapped    bool  // may be mapped for writing around the mount, also after its handles closed
}

// handles are the open ones by slot. The number of a handle is its slot and, in
// the upper half, how often slots were taken, so that none is used twice.
type handles struct {
	slots []*handle // nil: free
	free  []uint32
	taken uint32
	spare []*handle // to be used again
}

const keptHandles = 64

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

// get is an open handle, or nil.
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

// newHandle returns a handle that is not registered.
func (m *mount) newHandle(n *node, fd int, flags uint32) *handle {
	m.handleMu.Lock()
	defer m.handleMu.Unlock()
	return m.newHandleLocked(n, fd, flags)
}

func (m *mount) newHandleLocked(n *node, fd int, flags uint32) *handle {
	h := &handle{}
	if last := len(m.handles.spare) - 1; last >= 0 {
		h, m.handles.spare = m.handles.spare[last], m.handles.spare[:last]
	}
	h.node, h.fd, h.flags = n, fd, flags
	return h
}

// addHandle registers h with one use and returns its number.
func (m *mount) addHandle(h *handle) uint64 {
	m.handleMu.Lock()
	defer m.handleMu.Unlock()
	return m.addHandleLocked(h)
}

func (m *mount) addHandleLocked(h *handle) uint64 {
	h.uses = 1
	m.handles.add(h)
	h.io = m.tree.open(h.node)
	return h.id
}

// handle returns an open handle with a use of its own, or nil.
func (m *mount) handle(id uint64) *handle {
	m.handleMu.Lock()
	defer m.handleMu.Unlock()
	h := m.handles.get(id)
	if h != nil {
		h.uses++
	}
	return h
}

// anyHandle returns some handle of n that is open in the backing, with a use of
// its own, or nil.
func (m *mount) anyHandle(n *node) *handle {
	m.handleMu.Lock()
	defer m.handleMu.Unlock()
	for h := range m.handles.all {
		if h.node == n && h.opened() >= 0 {
			h.uses++
			return h
		}
	}
	return nil
}

// opened is the handle's descriptor, or -1 when nothing has needed it yet.
func (h *handle) opened() int {
	if !h.late {
		return h.fd
	}
	h.lateMu.Lock()
	defer h.lateMu.Unlock()
	return h.fd
}

// fdOf is the handle's descriptor. A caller that holds tree.moves uses
// [handle.opened].
func (m *mount) fdOf(h *handle) (int, error) {
	if fd := h.opened(); fd >= 0 {
		return fd, nil
	}
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	fd, err := m.openNode(h.node, h.flags)
	if err != nil {
		return -1, err
	}
	h.lateMu.Lock()
	defer h.lateMu.Unlock()
	if h.fd >= 0 { // another request was faster
		closeFD(fd)
		return h.fd, nil
	}
	h.fd = fd
	return fd, nil
}

// putHandle gives a use back.
func (m *mount) putHandle(h *handle) {
	m.handleMu.Lock()
	h.uses--
	if h.uses > 0 {
		m.handleMu.Unlock()
		return
	}
	m.tree.close(h.node)
	fd := h.opened()
	if len(m.handles.spare) < keptHandles {
		*h = handle{} // nobody else knows it
		m.handles.spare = append(m.handles.spare, h)
	}
	m.handleMu.Unlock()
	if fd >= 0 {
		closeFD(fd)
	}
}

// dropHandle takes a handle out of the table; its first use is now the
// caller's to give back.
func (m *mount) dropHandle(id uint64) *handle {
	m.handleMu.Lock()
	defer m.handleMu.Unlock()
	h := m.handles.get(id)
	if h == nil {
		return nil
	}
	m.dropHandleLocked(h)
	return h
}

func (m *mount) dropHandleLocked(h *handle) {
	m.handles.remove(h)
	m.endIO(h)
}

// directMin is the size in bytes from which a file that is only read bypasses
// the server. Smaller files are read once and served from the page cache,
// which saves the attribute refresh a bypassed read costs.
const directMin = 128 << 10

// beginIO registers h and chooses how it reads and writes: around the server
// where the kernel can and nothing forbids it, else through the page cache.
func (m *mount) beginIO(h *handle, st *unix.Stat_t, out *gofuse.OpenOut) {
	m.handleMu.Lock()
	defer m.handleMu.Unlock()
	out.Fh = m.addHandleLocked(h)
	io := h.io
	writes := h.flags&unix.O_ACCMODE != unix.O_RDONLY
	switch {
	case io.direct > 0: // the kernel refuses anything else
		h.direct = true
	case io.cached > 0 || h.cached || !m.passthrough || st.Mode&(unix.S_ISUID|unix.S_ISGID) != 0:
	case writes || io.mapped || st.Size >= directMin:
		h.direct = m.registerBacking(io, h.fd)
	}
	if h.direct {
		io.direct++
		io.stale = io.stale || writes
		io.mapped = io.mapped || h.flags&unix.O_ACCMODE == unix.O_RDWR
		out.OpenFlags = gofuse.FOPEN_PASSTHROUGH | gofuse.FOPEN_NOFLUSH
		out.BackingID = io.backingID
		return
	}
	io.cache(out)
}

// beginLate registers a handle without opening the file, for reading from what
// the kernel has cached. It reports false where the kernel must go around the server.
func (m *mount) beginLate(n *node, flags uint32, out *gofuse.OpenOut) bool {
	m.handleMu.Lock()
	defer m.handleMu.Unlock()
	if m.tree.around(n) {
		return false
	}
	h := m.newHandleLocked(n, -1, flags)
	h.late = true
	out.Fh = m.addHandleLocked(h)
	h.io.cache(out)
	return true
}

// cache counts a handle that uses the page cache of the mount.
func (io *ioState) cache(out *gofuse.OpenOut) {
	io.cached++
	out.OpenFlags = gofuse.FOPEN_NOFLUSH
	if !io.stale {
		out.OpenFlags |= gofuse.FOPEN_KEEP_CACHE
	}
	io.stale = false
}

// registerBacking hands a descriptor to the kernel. It fails where the server
// lacks CAP_SYS_ADMIN or the backing is stacked too deep; the mount then goes
// on without.
func (m *mount) registerBacking(io *ioState, fd int) bool {
	id, err := m.loop.openBacking(fd)
	if err != 0 {
		if err == unix.EPERM || err == unix.ELOOP || err == unix.EOPNOTSUPP {
			m.passthrough = false
		}
		return false
	}
	io.backingID = id
	return true
}

func (m *mount) endIO(h *handle) {
	if h.node.kind == unix.S_IFDIR {
		return
	}
	if h.stage != nil {
		m.repos.end(h.node)
		return
	}
	io := h.io
	if !h.direct {
		io.cached--
		return
	}
	io.direct--
	if io.direct == 0 {
		m.loop.closeBacking(io.backingID)
		io.backingID = 0
	}
}
