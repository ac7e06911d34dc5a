// Package locks takes the locks of commands on the files of a backing directory, so
// that they hold between commands, other sessions and programs of the host.
//
// The kernel of the session passes each lock request on with a lock owner. A process
// has one owner for its POSIX locks. Each open file description is the owner of its
// OFD and flock locks. All requests arrive in one process. So every owner gets an open
// file description of its own on the backing file, and [Table] takes the locks through
// it with F_OFD_SETLK and flock(2). The backing's kernel decides on conflicts. The table knows what
// each owner holds (held.go). It needs that for pids, deadlocks and releases.
//
// A lock that has to wait does so in a thread of its own, in the backing's queue
// (wait.go).
//
// A handle that was open for reading before its file's first lock, or that made a file
// with O_EXCL for writing only, does not report each close. Its locks end with its last
// copy. See decision 0024.
//
// The package knows no paths and no rules. Rules are evaluated when a file is opened.
package locks

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// maxRanges is the greatest number of locked ranges of one table. Beyond it, and beyond
// the limit of [Waits], a lock fails with ENOLCK.
const maxRanges = 1 << 20

// ToEnd is the last byte of a range without end. See OFFSET_MAX in the kernel.
const ToEnd = math.MaxInt64

// File is the open file through which a lock is requested.
type File struct {
	Handle uint64 // its number; a number is used once
	FD     int    // open on the backing; belongs to the caller
	Access int    // O_ACCMODE bits of FD
}

// Request asks for one lock. See fuse_lk_in in uapi/linux/fuse.h.
type Request struct {
	File
	Unique     uint64 // number of the request, for [Table.Interrupt]
	Owner      uint64
	Type       int16 // F_RDLCK, F_WRLCK or F_UNLCK
	Start, End int64 // first and last byte
	PID        uint32
	Flock      bool // flock(2): the whole file, owned by the handle
}

// Table has the locks of one mount. It is safe for concurrent use.
type Table struct {
	// Fault reports a lock that was refused because of a limit.
	Fault func(message string)

	waits *Waits
	inUse atomic.Int64 // owners of any file

	mu       sync.Mutex
	files    map[inode]*file
	ranges   int
	waiting  map[uint64]*wait // by number of the request
	early    early
	reported time.Time
}

// inode identifies a file of the backing. It is not used again while an owner has the
// file open.
type inode struct{ dev, ino uint64 }

// file is a locked file.
type file struct {
	key    inode
	owners map[uint64]*owner
}

// owner is one lock owner of one file.
type owner struct {
	id     uint64
	file   *file
	fd     int      // open file description of this owner alone
	access int      // O_ACCMODE bits of fd
	source uint64   // handle that shares the open file description; 0: none
	used   []uint64 // handles
	held   held
	waits  int

	flocked bool
}

// New returns an empty table. Its waits count for those of the server.
func New(waits *Waits, fault func(message string)) *Table {
	return &Table{Fault: fault, waits: waits, files: map[inode]*file{}, waiting: map[uint64]*wait{}}
}

// Set takes or releases a lock without waiting. It returns EAGAIN if another owner
// holds a conflicting lock.
func (t *Table) Set(r Request) unix.Errno {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.set(&r)
}

// set is Set with t.mu held.
func (t *Table) set(r *Request) unix.Errno {
	o, err := t.ownerOf(r)
	if o == nil || err != 0 {
		return err
	}
	if t.ranges >= maxRanges && r.Type != unix.F_UNLCK {
		t.dropIdle(o)
		return t.refuse(fmt.Sprintf("%d ranges are locked", t.ranges))
	}
	if err := o.apply(r, false); err != 0 {
		t.dropIdle(o)
		return err
	}
	t.record(o, r)
	return 0
}

// record adds a granted request to what its owner holds.
func (t *Table) record(o *owner, r *Request) {
	if o.use(r.Handle); r.Flock {
		o.flocked = r.Type != unix.F_UNLCK
		return
	}
	t.ranges += o.held.set(span{r.Start, r.End, r.Type, r.PID, r.Handle})
}

// ownerOf returns the owner of a request, with a descriptor that allows the lock. For
// an unlock by an owner without locks it returns nil and no error.
func (t *Table) ownerOf(r *Request) (*owner, unix.Errno) {
	key, err := inodeOf(r.FD)
	if err != 0 {
		return nil, err
	}
	f := t.files[key]
	if f != nil {
		if o := f.owners[r.Owner]; o != nil {
			return o, t.widen(o, r)
		}
	}
	if r.Type == unix.F_UNLCK {
		return nil, 0
	}
	o := &owner{id: r.Owner, file: f}
	if f == nil {
		o.file = &file{key: key, owners: map[uint64]*owner{}}
	}
	if err := o.open(r); err != 0 {
		return nil, t.refuse("a locked file cannot be opened once more: " + err.Error())
	}
	if f == nil {
		t.files[key] = o.file
	}
	o.file.owners[o.id] = o
	t.inUse.Add(1)
	return o, 0
}

// open gives the owner an open file description of its own: the kernel may keep that of
// the handle open for passthrough, and its locks with it, after the server has ended. If
// the file cannot be opened once more, the owner gets the one of the handle, if no other
// owner has it. An owner that may write gets one for reading too, if the file's mode
// allows it: it may lock for reading through another handle.
func (o *owner) open(r *Request) unix.Errno {
	access := r.Access
	if access == unix.O_WRONLY || o.access != access && len(o.held) > 0 {
		access = unix.O_RDWR
	}
	o.source = 0
	for _, o.access = range []int{access, r.Access} {
		fd, err := reopen(r.FD, o.access)
		if err == 0 {
			o.fd = fd
			return 0
		}
		if err == unix.EMFILE || err == unix.ENFILE || o.access == r.Access && o.file.lent(r.Handle) {
			return err
		}
	}
	o.source = r.Handle
	fd, err := unix.FcntlInt(uintptr(r.FD), unix.F_DUPFD_CLOEXEC, 3)
	o.fd = fd
	return errno(err)
}

// reopen opens the file of a descriptor once more. See proc(5), /proc/pid/fd.
func reopen(fd, access int) (int, unix.Errno) {
	own, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), access|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	return own, errno(err)
}

// lent reports whether an owner uses the open file description of a handle.
func (f *file) lent(handle uint64) bool {
	for _, o := range f.owners {
		if o.source == handle {
			return true
		}
	}
	return false
}

// widen makes sure that the owner's descriptor allows a lock of the requested type. A
// descriptor for reading has read locks only, which the new one can take beside it.
// See fcntl_locking(2), EBADF.
func (t *Table) widen(o *owner, r *Request) unix.Errno {
	if r.Flock || allows(o.access, r.Type) {
		return 0
	}
	if o.waits > 0 {
		return t.refuse("a file is locked for reading and writing by two threads of one process, through different descriptors")
	}
	old := *o
	if err := o.open(r); err != 0 {
		*o = old
		return t.refuse("a locked file cannot be opened once more: " + err.Error())
	}
	for _, s := range o.held {
		moved := Request{Type: s.typ, Start: s.start, End: s.end}
		if err := o.apply(&moved, false); err != 0 { // write locks move only if nobody can take them meanwhile
			_ = unix.Close(o.fd)
			*o = old
			return t.refuse("a file locked for writing only cannot be locked for reading too")
		}
	}
	whole := Request{Type: unix.F_UNLCK, End: ToEnd}
	_ = old.apply(&whole, false) // the handle may keep the description open; an unlock of a valid range succeeds
	_ = unix.Close(old.fd)
	return 0
}

// allows reports whether a descriptor with these O_ACCMODE bits may take a lock.
func allows(access int, typ int16) bool {
	switch typ {
	case unix.F_RDLCK:
		return access != unix.O_WRONLY
	case unix.F_WRLCK:
		return access != unix.O_RDONLY
	}
	return true
}

// apply carries out a request on the owner's descriptor.
func (o *owner) apply(r *Request, wait bool) unix.Errno {
	switch {
	case r.Flock && wait:
		return flock(o.fd, r.Type, 0)
	case r.Flock:
		return flock(o.fd, r.Type, unix.LOCK_NB)
	case wait:
		return fcntl(o.fd, unix.F_OFD_SETLKW, r)
	}
	return fcntl(o.fd, unix.F_OFD_SETLK, r)
}

func (o *owner) use(handle uint64) {
	for _, h := range o.used {
		if h == handle {
			return
		}
	}
	o.used = append(o.used, handle)
}

// Get finds a lock that conflicts with the request. If there is none it returns the
// request with type F_UNLCK. The pid is that of the process that took the lock, and 0
// for a process outside the session.
func (t *Table) Get(r Request) (Request, unix.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	key, err := inodeOf(r.FD)
	if err != 0 {
		return r, err
	}
	fd := r.FD
	f := t.files[key]
	if f != nil {
		if o := f.owners[r.Owner]; o != nil {
			fd = o.fd
		} else if f.lent(r.Handle) { // its locks would not conflict
			if fd, err = reopen(r.FD, r.Access); err != 0 {
				if found, ok := f.borrowed(&r); ok {
					return found, 0
				}
				fd = r.FD
			} else {
				defer func() { _ = unix.Close(fd) }() // it has no locks
			}
		}
	}
	found := r
	found.PID = 0
	if err := fcntl(fd, unix.F_OFD_GETLK, &found); err != 0 {
		return r, err
	}
	if found.Type != unix.F_UNLCK && f != nil {
		found.PID = f.holder(r.Owner, &found)
	}
	return found, 0
}

// borrowed returns a lock that conflicts with a request, of an owner that uses the open file
// description of the same handle: the kernel sees no conflict between these.
func (f *file) borrowed(r *Request) (found Request, ok bool) {
	for _, o := range f.owners {
		if o.source != r.Handle || o.id == r.Owner {
			continue
		}
		for _, s := range o.held.within(r.Start, r.End) {
			if s.typ == unix.F_WRLCK || r.Type == unix.F_WRLCK {
				found = *r
				found.Type, found.Start, found.End, found.PID = s.typ, s.start, s.end, s.pid
				return found, true
			}
		}
	}
	return found, false
}

// holder returns the pid of the process that holds the found lock, or 0.
func (f *file) holder(except uint64, found *Request) uint32 {
	for _, o := range f.owners {
		if o.id == except {
			continue
		}
		for _, s := range o.held.within(found.Start, found.End) {
			if s.typ == found.Type {
				return s.pid
			}
		}
	}
	return 0
}

// InUse reports whether any owner has POSIX or OFD locks.
func (t *Table) InUse() bool { return t.inUse.Load() != 0 }

// Flush releases the POSIX locks of an owner on a file, because its process closed a
// descriptor of the file. See fcntl_locking(2).
func (t *Table) Flush(fd int, id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f := t.fileOf(fd); f != nil {
		if o := f.owners[id]; o != nil {
			t.releaseAll(o)
		}
	}
}

// Release ends the locks that were taken through a handle, which is closed.
func (t *Table) Release(fd int, handle uint64) {
	if !t.InUse() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.fileOf(fd)
	if f == nil {
		return
	}
	for _, o := range f.owners {
		if !o.forget(handle) {
			continue
		}
		if len(o.used) == 0 {
			t.releaseAll(o)
			continue
		}
		for _, s := range o.held.through(handle) {
			gone := Request{Type: unix.F_UNLCK, Start: s.start, End: s.end}
			if o.apply(&gone, false) == 0 {
				t.ranges += o.held.set(span{start: s.start, end: s.end, typ: unix.F_UNLCK})
			}
		}
	}
}

// forget reports whether the owner has used a handle, and removes it.
func (o *owner) forget(handle uint64) bool {
	for i, h := range o.used {
		if h == handle {
			o.used = append(o.used[:i], o.used[i+1:]...)
			return true
		}
	}
	return false
}

// releaseAll releases every lock of an owner.
func (t *Table) releaseAll(o *owner) {
	whole := Request{Type: unix.F_UNLCK, End: ToEnd}
	_ = o.apply(&whole, false) // an unlock of a valid range succeeds
	if o.flocked {
		_ = flock(o.fd, unix.F_UNLCK, 0) // likewise
	}
	o.flocked = false
	t.ranges -= len(o.held)
	o.held, o.used = nil, nil
	t.dropIdle(o)
}

// dropIdle closes an owner that has no locks, no waiting request and no handle.
func (t *Table) dropIdle(o *owner) {
	if len(o.held) > 0 || o.flocked || o.waits > 0 || len(o.used) > 0 {
		return
	}
	_ = unix.Close(o.fd) // only locks were taken through it
	delete(o.file.owners, o.id)
	t.inUse.Add(-1)
	if len(o.file.owners) == 0 {
		delete(t.files, o.file.key)
	}
}

func (t *Table) fileOf(fd int) *file {
	key, err := inodeOf(fd)
	if err != 0 {
		return nil
	}
	return t.files[key]
}

// refuse reports a limit, at most once a second, and returns the error for it.
func (t *Table) refuse(reason string) unix.Errno {
	if now := time.Now(); now.Sub(t.reported) >= time.Second {
		t.reported = now
		t.Fault("a lock is refused: " + reason)
	}
	return unix.ENOLCK
}

func inodeOf(fd int) (inode, unix.Errno) {
	var st unix.Stat_t
	err := unix.Fstat(fd, &st)
	return inode{st.Dev, st.Ino}, errno(err)
}

// fcntl carries out a lock command and stores its result in r.
func fcntl(fd, cmd int, r *Request) unix.Errno {
	lk := unix.Flock_t{Type: r.Type, Start: r.Start}
	if r.End != ToEnd {
		lk.Len = r.End - r.Start + 1
	}
	if err := unix.FcntlFlock(uintptr(fd), cmd, &lk); err != nil {
		return errno(err)
	}
	if cmd != unix.F_OFD_GETLK {
		return 0
	}
	if r.Type = lk.Type; r.Type == unix.F_UNLCK {
		return 0
	}
	r.Start, r.End = lk.Start, ToEnd
	if lk.Len > 0 {
		r.End = lk.Start + lk.Len - 1
	}
	return 0
}

func flock(fd int, typ int16, flags int) unix.Errno {
	how := unix.LOCK_UN
	switch typ {
	case unix.F_RDLCK:
		how = unix.LOCK_SH
	case unix.F_WRLCK:
		how = unix.LOCK_EX
	}
	return errno(unix.Flock(fd, how|flags))
}

func errno(err error) unix.Errno {
	if err == nil {
		return 0
	}
	if e, ok := err.(unix.Errno); ok { //nolint:errorlint // x/sys returns bare numbers
		return e
	}
	return unix.EIO
}
