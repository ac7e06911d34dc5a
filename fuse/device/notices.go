package device

import (
	"errors"
	"math"
	"sync"
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

// NotifyStore puts data into the kernel's cache of a file, which becomes at least as long
// as the data reaches. See FUSE_NOTIFY_STORE in uapi/linux/fuse.h.
func (l *Loop) NotifyStore(id uint64, off int64, data []byte) {
	body := gofuse.NotifyStoreOut{Nodeid: id, Offset: uint64(off), Size: uint32(len(data))}
	_ = l.notify(gofuse.NOTIFY_STORE_CACHE, unsafe.Slice((*byte)(unsafe.Pointer(&body)), unsafe.Sizeof(body)), string(data))
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
	mu    sync.Mutex
	calls map[uint64]func() // by node; not nil while the timer runs
}

// soonTime is longer than a process usually takes from an answer to its use.
const soonTime = 10 * time.Millisecond

// Soon calls do after the kernel has used the answers about a node that are now on their
// way to it. A notice that comes before makes it ignore them. Only the last of several
// functions for a node is called.
func (l *Loop) Soon(id uint64, do func()) {
	s := &l.soon
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls == nil {
		s.calls = map[uint64]func(){}
		time.AfterFunc(soonTime, l.callSoon)
	}
	s.calls[id] = do
}

func (l *Loop) callSoon() {
	l.soon.mu.Lock()
	calls := l.soon.calls
	l.soon.calls = nil
	l.soon.mu.Unlock()
	for _, do := range calls {
		do()
	}
}

// later holds notices for which the kernel may wait: for a directory's lock, or for
// pages. Each node with notices has one goroutine, so that no node waits for another.
type later struct {
	mu      sync.Mutex
	pending map[uint64]*notices // by node; present while a goroutine sends
}

// notices are to be sent about one node.
type notices struct {
	names map[string][]func() // what to call after each name has expired
	inode bool
}

// ExpireLater makes the kernel look up a name, or its absence, again at its next use.
// It does not wait: then, if not nil, is called in another goroutine when that is done.
func (l *Loop) ExpireLater(parent uint64, name string, then func()) {
	l.queue(parent, func(n *notices) {
		if n.names == nil {
			n.names = map[string][]func(){}
		}
		n.names[name] = append(n.names[name], then)
	})
}

// InodeLater is [Loop.NotifyInode] for a caller that must not wait.
func (l *Loop) InodeLater(id uint64) {
	l.queue(id, func(n *notices) { n.inode = true })
}

func (l *Loop) queue(id uint64, add func(*notices)) {
	q := &l.later
	q.mu.Lock()
	defer q.mu.Unlock()
	n, sending := q.pending[id]
	if !sending {
		if q.pending == nil {
			q.pending = map[uint64]*notices{}
		}
		n = &notices{}
		q.pending[id] = n
		go l.sendLater(id, n) // ends when the kernel has taken every notice about the node, or with the mount
	}
	add(n)
}

// sendLater sends the notices about a node until none is left.
func (l *Loop) sendLater(id uint64, n *notices) {
	q := &l.later
	for {
		q.mu.Lock()
		names, inode := n.names, n.inode
		if len(names) == 0 && !inode {
			delete(q.pending, id)
			q.mu.Unlock()
			return
		}
		n.names, n.inode = nil, false
		q.mu.Unlock()
		for name, then := range names {
			l.notifyEntry(id, name, gofuse.EXPIRE_ONLY)
			for _, do := range then {
				if do != nil {
					do()
				}
			}
		}
		if inode {
			l.NotifyInode(id)
		}
	}
}
