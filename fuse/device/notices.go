package device

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	gofuse "github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// Notices reports whether the kernel takes notices. If not, what it caches cannot be
// dropped, and it takes an entry without a node for an error: gVisor's does.
func (l *Loop) Notices() bool { return l.notices }

// tryNotice sends a notice about a node that does not exist. The kernel returns ENOENT if
// it knows the notice.
func (l *Loop) tryNotice() bool {
	body := gofuse.NotifyInvalInodeOut{Ino: math.MaxUint64}
	return !errors.Is(l.notify(gofuse.NOTIFY_INVAL_INODE, unsafe.Slice((*byte)(unsafe.Pointer(&body)), unsafe.Sizeof(body)), ""), unix.EINVAL)
}

// NotifyInode makes the kernel drop the cached attributes of a node, and its cached
// data or listing. See FUSE_NOTIFY_INVAL_INODE in uapi/linux/fuse.h. The kernel may
// wait for answers first. So the caller must not hold a lock that a handler needs.
func (l *Loop) NotifyInode(id uint64) {
	body := gofuse.NotifyInvalInodeOut{Ino: id}
	_ = l.notify(gofuse.NOTIFY_INVAL_INODE, unsafe.Slice((*byte)(unsafe.Pointer(&body)), unsafe.Sizeof(body)), "")
}

// NotifyAttributes makes the kernel drop the cached attributes of a node. An answer to
// a request that the kernel has already sent then changes no cached attributes. The
// kernel does not wait. See fuse_reverse_inval_inode in fs/fuse/inode.c.
func (l *Loop) NotifyAttributes(id uint64) {
	body := gofuse.NotifyInvalInodeOut{Ino: id, Off: -1}
	_ = l.notify(gofuse.NOTIFY_INVAL_INODE, unsafe.Slice((*byte)(unsafe.Pointer(&body)), unsafe.Sizeof(body)), "")
}

// NotifyEntry makes the kernel drop a cached name, or a cached absence of it. See
// FUSE_NOTIFY_INVAL_ENTRY.
func (l *Loop) NotifyEntry(parent uint64, name string) {
	l.notifyEntry(parent, name, 0)
}

// NotifyDelete tells the kernel that an entry was removed: watchers of the file are told.
// The kernel waits for the lock of the directory. See FUSE_NOTIFY_DELETE.
func (l *Loop) NotifyDelete(parent, child uint64, name string) {
	body := gofuse.NotifyInvalDeleteOut{Parent: parent, Child: child, NameLen: uint32(len(name))}
	_ = l.notify(gofuse.NOTIFY_DELETE, unsafe.Slice((*byte)(unsafe.Pointer(&body)), unsafe.Sizeof(body)), name+"\x00")
}

func (l *Loop) notifyEntry(parent uint64, name string, flags uint32) {
	body := gofuse.NotifyInvalEntryOut{Parent: parent, NameLen: uint32(len(name)), Flags: flags}
	_ = l.notify(gofuse.NOTIFY_INVAL_ENTRY, unsafe.Slice((*byte)(unsafe.Pointer(&body)), unsafe.Sizeof(body)), name+"\x00")
}

// StoreRoom is the room before the data of NotifyStore.
const StoreRoom = int(unsafe.Sizeof(gofuse.OutHeader{}) + unsafe.Sizeof(gofuse.NotifyStoreOut{}))

// NotifyStore puts data into the kernel's cache of a file, which becomes at least as long
// as the data reaches. The data follows after StoreRoom bytes of message. See FUSE_NOTIFY_STORE
// in uapi/linux/fuse.h.
func (l *Loop) NotifyStore(id uint64, off int64, message []byte) {
	head := gofuse.OutHeader{Length: uint32(len(message)), Status: -int32(gofuse.NOTIFY_STORE_CACHE)}
	body := gofuse.NotifyStoreOut{Nodeid: id, Offset: uint64(off), Size: uint32(len(message) - StoreRoom)}
	n := copy(message, unsafe.Slice((*byte)(unsafe.Pointer(&head)), unsafe.Sizeof(head)))
	copy(message[n:], unsafe.Slice((*byte)(unsafe.Pointer(&body)), unsafe.Sizeof(body)))
	_, _ = unix.Write(l.fd, message) // ENOENT: the kernel does not know the file any more
}

// notify sends a message that answers no request. The kernel returns ENOENT if it has
// nothing cached, which is no failure.
func (l *Loop) notify(code gofuse.Status, body []byte, name string) error {
	head := gofuse.OutHeader{Status: -int32(code)}
	head.Length = uint32(unsafe.Sizeof(head)) + uint32(len(body)+len(name))
	message := append(unsafe.Slice((*byte)(unsafe.Pointer(&head)), unsafe.Sizeof(head)), body...)
	_, err := unix.Write(l.fd, append(message, name...))
	return err
}

// NotifyEpoch makes the kernel look up every cached name and absence again at its next
// use. It reports false if the kernel cannot do that (before Linux 6.16). See
// FUSE_NOTIFY_INC_EPOCH.
func (l *Loop) NotifyEpoch() bool {
	head := gofuse.OutHeader{Status: -int32(gofuse.NOTIFY_INC_EPOCH)}
	head.Length = uint32(unsafe.Sizeof(head))
	_, err := unix.Write(l.fd, unsafe.Slice((*byte)(unsafe.Pointer(&head)), unsafe.Sizeof(head)))
	return err == nil
}

// soon holds what is called soon.
type soon struct {
	waiting atomic.Int32 // the calls
	mu      sync.Mutex
	calls   map[uint64]soonCall // by node; not nil while the timer runs
	threads map[uint32][]uint64 // nodes with a call, by thread; some may have got another thread's
}

// soonCall is called when a thread has used an answer.
type soonCall struct {
	thread uint32
	do     func()
}

// soonTime is longer than a process usually takes from an answer to its use.
const soonTime = 10 * time.Millisecond

// Soon calls do after the kernel has used an answer about a node that is now on its way
// to a thread. A notice that comes before makes the kernel ignore it. The thread has used
// the answer when it sends another request than a read, or usually after soonTime. Only the last of
// several functions for a node is called. The thread is 0 if it is not known.
func (l *Loop) Soon(id uint64, thread uint32, do func()) {
	s := &l.soon
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls, s.threads = map[uint64]soonCall{}, map[uint32][]uint64{}
		time.AfterFunc(soonTime, l.callSoon)
	}
	if old, ok := s.calls[id]; !ok || old.thread != thread {
		s.threads[thread] = append(s.threads[thread], id)
	}
	s.calls[id] = soonCall{thread, do}
	s.waiting.Store(int32(len(s.calls)))
}

// callSoon calls all that is left when the time is over.
func (l *Loop) callSoon() {
	s := &l.soon
	s.mu.Lock()
	calls := s.calls
	s.calls, s.threads = nil, nil
	s.waiting.Store(0)
	s.mu.Unlock()
	for _, c := range calls {
		c.do()
	}
}

// callUsed calls what waits for the thread of a request that has arrived. No call waits for
// a thread that the kernel does not name. A read is no sign: if the file became shorter, the
// kernel takes its size from the answer only if no notice came since the read began.
// Otherwise the reader gets zeros (fuse_read_update_size in fs/fuse/file.c).
func (l *Loop) callUsed(in *gofuse.InHeader) {
	s := &l.soon
	thread := in.Pid
	if thread == 0 || in.Opcode == OpRead || s.waiting.Load() == 0 {
		return
	}
	s.mu.Lock()
	var calls []func()
	for _, id := range s.threads[thread] {
		if c, ok := s.calls[id]; ok && c.thread == thread {
			calls = append(calls, c.do)
			delete(s.calls, id)
		}
	}
	delete(s.threads, thread)
	s.waiting.Store(int32(len(s.calls)))
	s.mu.Unlock()
	for _, do := range calls {
		do()
	}
}

// later holds notices for which the kernel may wait: for a directory's lock, or for
// pages.
type later struct {
	mu      sync.Mutex
	names   map[uint64]map[string][]func() // by directory; present while a goroutine sends
	inodes  []inodeNotice
	senders int // goroutines that send inodes, at most maxWorkers
}

// inodeNotice is a notice about the attributes and pages of a node.
type inodeNotice struct {
	id   uint64
	then func()
}

// ExpireLater makes the kernel look up a name, or its absence, again at its next use.
// It does not wait: then is called in another goroutine when that is done. Each directory
// has a goroutine of its own, so that none waits for the lock of another.
func (l *Loop) ExpireLater(parent uint64, name string, then func()) {
	q := &l.later
	q.mu.Lock()
	defer q.mu.Unlock()
	names, sending := q.names[parent]
	if !sending {
		if q.names == nil {
			q.names = map[uint64]map[string][]func(){}
		}
		names = map[string][]func(){}
		q.names[parent] = names
		go l.sendNames(parent) // ends when the kernel has taken every name of the directory, or with the mount
	}
	names[name] = append(names[name], then)
}

// sendNames sends the notices about the names of a directory until none is left.
func (l *Loop) sendNames(parent uint64) {
	q := &l.later
	for {
		q.mu.Lock()
		names := q.names[parent]
		if len(names) == 0 {
			delete(q.names, parent)
			q.mu.Unlock()
			return
		}
		q.names[parent] = map[string][]func(){}
		q.mu.Unlock()
		for name, then := range names {
			l.notifyEntry(parent, name, gofuse.EXPIRE_ONLY)
			for _, do := range then {
				do()
			}
		}
	}
}

// InodeLater is [Loop.NotifyInode] for a caller that must not wait. Then is called in
// another goroutine when the kernel has taken the notice. A notice waits for a page that a
// request reads, and at most maxWorkers requests wait at one time.
func (l *Loop) InodeLater(id uint64, then func()) {
	q := &l.later
	q.mu.Lock()
	defer q.mu.Unlock()
	q.inodes = append(q.inodes, inodeNotice{id, then})
	if q.senders < maxWorkers {
		q.senders++
		go l.sendInodes() // ends when the kernel has taken every notice, or with the mount
	}
}

// sendInodes sends notices about nodes until none is left.
func (l *Loop) sendInodes() {
	q := &l.later
	for {
		q.mu.Lock()
		if len(q.inodes) == 0 {
			q.senders--
			q.mu.Unlock()
			return
		}
		next := q.inodes[0]
		q.inodes[0] = inodeNotice{}
		q.inodes = q.inodes[1:]
		q.mu.Unlock()
		l.NotifyInode(next.id)
		next.then()
	}
}
