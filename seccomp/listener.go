package seccomp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrGone means that a notification no longer waits. The thread was killed, a
// signal interrupted its call before it was received, or the call has its
// answer.
var ErrGone = errors.New("notification is gone")

// Notification is one system call that waits for an answer.
type Notification struct {
	ID      uint64
	TID     int // thread, in the pid namespace of the listener's reader; 0: not visible there
	Syscall int // number for Arch
	Arch    uint32
	Args    [6]uint64
}

// Listener receives and answers the notifications of one filter. It is safe
// for concurrent use. See seccomp_unotify(2).
type Listener struct {
	file *os.File
	fd   int
	stop int // eventfd, readable once Close was called
	wait int // epoll of both: each notification ends the wait of one thread

	soon atomic.Bool

	mu     sync.RWMutex // held shared during each ioctl, exclusively to close
	closed bool
}

// Sizes and request numbers of linux/seccomp.h; they are equal on amd64 and
// arm64.
const (
	notificationSize = 80
	responseSize     = 24

	ioctlReceive  = 0xc0502100
	ioctlSend     = 0xc0182101
	ioctlIDValid  = 0x40082102
	ioctlSetFlags = 0x40082104

	responseContinue = 1 // SECCOMP_USER_NOTIF_FLAG_CONTINUE
	syncWakeUp       = 1 // SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
)

// NewListener takes over the descriptor that seccomp(2) returned for
// SECCOMP_FILTER_FLAG_NEW_LISTENER; [Listener.Close] closes it.
func NewListener(f *os.File) (*Listener, error) {
	fd := int(f.Fd())
	if name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil {
		return nil, fmt.Errorf("look at the listener: %w", err)
	} else if name != "anon_inode:seccomp notify" {
		return nil, fmt.Errorf("descriptor %d is %s, not a seccomp listener", fd, name)
	}
	l := &Listener{file: f, fd: fd, stop: -1, wait: -1}
	if err := l.open(); err != nil {
		_, _ = unix.Close(l.stop), unix.Close(l.wait)
		return nil, err
	}
	// With this flag, of Linux 6.6, the kernel wakes the calling thread on the same
	// processor. Without it answers are slower.
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), ioctlSetFlags, syncWakeUp)
	return l, nil
}

// open makes the objects that receivers wait for. The kernel reports the listener to one
// receiver at a time, and to the next one when that has received. So no thread wakes
// without a call.
func (l *Listener) open() (err error) {
	if l.stop, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("eventfd: %w", err)
	}
	if l.wait, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	stop := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(l.stop)}
	if err := unix.EpollCtl(l.wait, unix.EPOLL_CTL_ADD, l.stop, &stop); err != nil {
		return fmt.Errorf("epoll: %w", err)
	}
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(l.fd)} // once, to a thread that waits
	if err := unix.EpollCtl(l.wait, unix.EPOLL_CTL_ADD, l.fd, &event); err != nil {
		return fmt.Errorf("wait for notifications: %w", err)
	}
	return nil
}

// Receive waits for the next notification and stores it in n.
//
// It returns [ErrGone] if the notification vanished before it was received, io.EOF if no
// task uses the filter any more, and [os.ErrClosed] after Close.
func (l *Listener) Receive(n *Notification) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return os.ErrClosed
	}
	// Waiting in epoll allows Close to end it. The ioctl itself restarts after
	// every signal that has a Go handler.
	var buf [notificationSize]byte
	if err := l.receive(&buf); err != nil {
		return err
	}
	ne := binary.NativeEndian
	n.ID = ne.Uint64(buf[0:])
	n.TID = int(int32(ne.Uint32(buf[8:])))
	n.Syscall = int(int32(ne.Uint32(buf[16:])))
	n.Arch = ne.Uint32(buf[20:])
	for i := range n.Args {
		n.Args[i] = ne.Uint64(buf[32+8*i:])
	}
	return nil
}

// Valid reports whether the thread still waits for the answer to id. If it
// returns true, memory that was read before belongs to that thread.
func (l *Listener) Valid(id uint64) bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return false
	}
	for {
		switch l.ioctl(ioctlIDValid, unsafe.Pointer(&id)) {
		case 0:
			return true
		case unix.EINTR:
		default:
			return false
		}
	}
}

// Continue lets the kernel execute the call. The kernel reads memory behind
// pointers again, so a decision based on that memory is not reliable.
func (l *Listener) Continue(id uint64) error {
	return l.respond(response{id: id, flags: responseContinue})
}

// Deny makes the call return errno, which is positive.
func (l *Listener) Deny(id uint64, errno unix.Errno) error {
	return l.respond(response{id: id, errno: -int32(errno)})
}

// Value makes the call return v without executing it.
func (l *Listener) Value(id uint64, v int64) error {
	return l.respond(response{id: id, value: v})
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

var _ [responseSize]byte = [unsafe.Sizeof(response{})]byte{}

func (l *Listener) respond(r response) error {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return os.ErrClosed
	}
	for {
		switch errno := l.ioctl(ioctlSend, unsafe.Pointer(&r)); errno {
		case 0:
			return nil
		case unix.EINTR: // interrupted before the answer was queued
		case unix.ENOENT, unix.EINPROGRESS:
			return ErrGone
		default:
			return fmt.Errorf("answer a notification: %w", errno)
		}
	}
}

func (l *Listener) ioctl(request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), request, uintptr(arg))
	return errno
}

// Close ends every Receive and closes the listener. Calls that wait for an
// answer and later ones then fail with ENOSYS in their threads.
func (l *Listener) Close() error {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	l.mu.RLock()
	if l.closed {
		l.mu.RUnlock()
		return os.ErrClosed
	}
	_, err := unix.Write(l.stop, one[:])
	l.mu.RUnlock()
	if err != nil {
		return fmt.Errorf("stop the listener: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return os.ErrClosed
	}
	l.closed = true
	_, _ = unix.Close(l.stop), unix.Close(l.wait)
	err = l.file.Close()
	runtime.KeepAlive(l.file)
	return err
}
