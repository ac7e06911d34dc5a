package seccomp

import (
	"fmt"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/internal/syscallblock"
)

// receive waits for a notification and stores it in buf.
func (l *Listener) receive(buf *[notificationSize]byte) error {
	w := wait{buf: buf, again: unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: int32(l.fd)}}
	began := time.Now()
	w.run(uintptr(l.wait), uintptr(l.fd), uintptr(l.stop), l.soon.Load())
	if soon := time.Since(began) < time.Millisecond; soon != l.soon.Load() {
		l.soon.Store(soon)
	}
	switch {
	case w.broken != 0:
		return fmt.Errorf("wait for a notification: %w", w.broken)
	case int(w.event.Fd) == l.stop:
		return os.ErrClosed
	case w.event.Events&unix.EPOLLIN == 0: // EPOLLHUP: the last task that had the filter is gone
		return io.EOF
	case w.failed == unix.ENOENT || w.failed == unix.EINTR:
		return ErrGone
	case w.failed != 0:
		return fmt.Errorf("receive a notification: %w", w.failed)
	}
	return nil
}

// wait is one wait for a notification.
type wait struct {
	buf          *[notificationSize]byte // zero: the kernel refuses another one
	event, again unix.EpollEvent
	broken       unix.Errno // nobody would receive any more
	failed       unix.Errno // of the notification
}

// run waits for a notification and receives it without going back to Go between the two: until
// it is received a signal can end the call that waits.
//
// A thread that waits in the kernel has a processor of the Go runtime, until the runtime takes
// it away: up to 10 ms later. If all processors are kept like that, nothing else of this process
// goes on, and no socket is read. So the thread gives its processor up. That takes as long as a
// wait for the next of many notifications: where one is expected soon, it gives it up only
// after a millisecond.
//
//go:nosplit
func (w *wait) run(epoll, fd, stop uintptr, soon bool) {
	n, timeout := uintptr(0), ^uintptr(0)
	if soon {
		timeout = 1
		syscallblock.Enter()
	} else {
		syscallblock.EnterBlocked()
	}
	for {
		n, _, w.broken = unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, epoll, uintptr(unsafe.Pointer(&w.event)), 1, timeout, 0, 0)
		if w.broken == 0 && n == 0 {
			timeout = ^uintptr(0)
			syscallblock.Exit()
			syscallblock.EnterBlocked()
		} else if w.broken != unix.EINTR {
			break
		}
	}
	if w.broken == 0 && uintptr(w.event.Fd) != stop {
		if w.event.Events&unix.EPOLLIN != 0 {
			_, _, w.failed = unix.RawSyscall(unix.SYS_IOCTL, fd, ioctlReceive, uintptr(unsafe.Pointer(w.buf)))
		}
		_, _, w.broken = unix.RawSyscall6(unix.SYS_EPOLL_CTL, epoll, unix.EPOLL_CTL_MOD, fd, uintptr(unsafe.Pointer(&w.again)), 0, 0)
	}
	syscallblock.Exit()
}
