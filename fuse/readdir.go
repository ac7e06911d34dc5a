package fuse

import (
	"io"
	"sync"
	"syscall"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// OpenDir judges listing and opens a handle. Where listings may be kept it
// answers ENOSYS instead, after which the kernel lists without handles and
// keeps listings, and readDir judges. See fuse_file_open in fs/fuse/file.c.
func (m *mount) OpenDir(_ <-chan struct{}, in *gofuse.OpenIn, out *gofuse.OpenOut) gofuse.Status {
	if m.noOpenDir {
		return gofuse.ENOSYS
	}
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	n, rel, code := m.dirPath(in.NodeId)
	if !code.Ok() {
		return code
	}
	v := m.decide(ask{policy.OpList, rel})
	if code := m.settle(in.Pid, "", v); !code.Ok() {
		return code
	}
	fd, err := m.openList(rel)
	if err != nil {
		return gofuse.Status(errno(err))
	}
	out.Fh = m.addHandle(m.newHandle(n, fd, 0))
	out.OpenFlags = gofuse.FOPEN_CACHE_DIR | gofuse.FOPEN_KEEP_CACHE
	return gofuse.OK
}

// openList opens a directory by its name in its parent: "." in it would have to be
// searched, and a listing needs the permission to read alone.
func (m *mount) openList(rel string) (int, error) {
	p, err := m.backing.locate(rel)
	if err != nil {
		return -1, err
	}
	defer p.close()
	return p.open(unix.O_RDONLY|unix.O_DIRECTORY, 0)
}

// ReleaseDir closes a handle of OpenDir.
func (m *mount) ReleaseDir(in *gofuse.ReleaseIn) {
	if h := m.dropHandle(in.Fh); h != nil {
		m.putHandle(h)
	}
}

// ReadDir lists names.
func (m *mount) ReadDir(_ <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return m.readDir(in, out, false)
}

// ReadDirPlus lists names with attributes.
func (m *mount) ReadDirPlus(_ <-chan struct{}, in *gofuse.ReadIn, out *gofuse.DirEntryList) gofuse.Status {
	return m.readDir(in, out, true)
}

func (m *mount) readDir(in *gofuse.ReadIn, out *gofuse.DirEntryList, plus bool) gofuse.Status {
	m.tree.moves.RLock()
	defer m.tree.moves.RUnlock()
	var fd int
	parent, rel, code := m.dirPath(in.NodeId)
	if h := m.handle(in.Fh); h != nil {
		defer m.putHandle(h)
		h.dirMu.Lock()
		defer h.dirMu.Unlock()
		fd, parent = h.fd, h.node
		if !code.Ok() {
			return code
		}
	} else {
		if !code.Ok() {
			return code
		}
		if code := m.permit(in.Pid, "", ask{policy.OpList, rel}); !code.Ok() {
			return code
		}
		var err error
		if fd, err = m.openList(rel); err != nil {
			return gofuse.Status(errno(err))
		}
		defer closeFD(fd)
	}
	return gofuse.Status(errno(m.list(listing{parent, rel, fd, plus}, in.Offset, out)))
}

// listing is one directory being read.
type listing struct {
	parent *node
	rel    string
	fd     int
	plus   bool
}

var listBuffers = sync.Pool{New: func() any { b := make([]byte, 16<<10); return &b }}

// list fills out from the position off, whose values are those of the backing.
func (m *mount) list(l listing, off uint64, out *gofuse.DirEntryList) error {
	if off != 0 {
		if _, err := unix.Seek(l.fd, int64(off), io.SeekStart); err != nil {
			return err
		}
	} else if _, err := unix.Seek(l.fd, 0, io.SeekStart); err != nil {
		return err
	}
	bp := listBuffers.Get().(*[]byte)
	defer listBuffers.Put(bp)
	for {
		size, err := retry(func() (int, error) { return unix.Getdents(l.fd, *bp) })
		if err != nil || size == 0 {
			return err
		}
		for buf := (*bp)[:size]; len(buf) > 0; {
			var e gofuse.DirEntry
			buf = buf[e.Parse(buf):]
			if !m.listEntry(l, e, out) {
				return nil
			}
		}
	}
}

// listEntry adds one entry and reports whether there may be room for more. An
// entry whose attributes a rule denies is left out; one of which every look is
// told or asked for is listed by name alone.
func (m *mount) listEntry(l listing, e gofuse.DirEntry, out *gofuse.DirEntryList) bool {
	dots := e.Name == "." || e.Name == ".."
	v := verdict{dec: policy.Decision{Effect: policy.Allow}}
	if !dots {
		v = m.decide(ask{policy.OpStat, joinPath(l.rel, e.Name)})
	}
	if v.unlisted() {
		return true
	}
	if !l.plus {
		return out.AddDirEntry(e)
	}
	entry := out.AddDirLookupEntry(e)
	if entry == nil {
		return false
	}
	if dots {
		return true
	}
	if v.dec.Effect != policy.Allow {
		return true // the lookup that follows judges and reports
	}
	var st unix.Stat_t
	if (place{dirfd: l.fd, name: e.Name}).stat(&st) != nil {
		return true
	}
	if m.folds(place{dirfd: l.fd, name: e.Name}, joinPath(l.rel, e.Name), &st) {
		return true
	}
	n := m.tree.adopt(l.parent, e.Name, &st)
	out.FixMode(st.Mode)
	m.fillEntry(entry, n, &st, true)
	return true
}

// FsyncDir makes the entries of a directory durable.
func (m *mount) FsyncDir(_ <-chan struct{}, in *gofuse.FsyncIn) gofuse.Status {
	m.tree.moves.RLock()
	_, rel, code := m.dirPath(in.NodeId)
	if !code.Ok() {
		m.tree.moves.RUnlock()
		return code
	}
	fd, err := m.openList(rel)
	m.tree.moves.RUnlock()
	if err != nil {
		return gofuse.Status(errno(err))
	}
	defer closeFD(fd)
	m.loop.stepAside()
	return gofuse.Status(errno(unix.Fsync(fd)))
}

// Access is answered by the kernel from the attributes (default_permissions).
func (m *mount) Access(<-chan struct{}, *gofuse.AccessIn) gofuse.Status { return gofuse.ENOSYS }

// Tmpfile is not offered: the kernel then answers EOPNOTSUPP without asking
// again, and programs fall back to a named temporary file, which has a path to
// be judged by.
func (m *mount) Tmpfile(<-chan struct{}, *gofuse.CreateIn, *gofuse.CreateOut) gofuse.Status {
	return gofuse.Status(syscall.ENOSYS)
}
