package seccomp

// #include <errno.h>
// #include <string.h>
// #include <sys/epoll.h>
// #include <sys/ioctl.h>
//
// enum { RECEIVED, STOPPED, ENDED, FAILED, BROKEN };
//
// /* Waits for a notification and receives it without going back to Go between
//    the two: until it is received a signal can end the call that waits. */
// static int agentsh_receive(int wait, int fd, int stop, void *buf, size_t size, unsigned long request, int *err)
// {
// 	struct epoll_event e, again = { .events = EPOLLIN | EPOLLONESHOT, .data.fd = fd };
// 	int n, result = ENDED;
// 	do
// 		n = epoll_wait(wait, &e, 1, -1);
// 	while (n < 0 && errno == EINTR);
// 	*err = errno;
// 	if (n < 0)
// 		return BROKEN;
// 	if (e.data.fd == stop)
// 		return STOPPED;
// 	if (e.events & EPOLLIN) {
// 		memset(buf, 0, size); /* the kernel refuses a buffer that is not zero */
// 		result = ioctl(fd, request, buf) < 0 ? FAILED : RECEIVED;
// 		*err = errno;
// 	}
// 	if (epoll_ctl(wait, EPOLL_CTL_MOD, fd, &again) < 0) {
// 		*err = errno;
// 		return BROKEN; /* nobody would receive any more */
// 	}
// 	return result;
// }
import "C"

import (
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// receive waits for a notification and stores it in buf.
func (l *Listener) receive(buf *[notificationSize]byte) error {
	var number C.int
	result := C.agentsh_receive(C.int(l.wait), C.int(l.fd), C.int(l.stop), unsafe.Pointer(buf), notificationSize, ioctlReceive, &number)
	switch errno := unix.Errno(number); result {
	case C.RECEIVED:
		return nil
	case C.STOPPED:
		return os.ErrClosed
	case C.ENDED: // EPOLLHUP: the last task that had the filter is gone
		return io.EOF
	case C.BROKEN:
		return fmt.Errorf("wait for a notification: %w", errno)
	default:
		if errno == unix.ENOENT || errno == unix.EINTR {
			return ErrGone
		}
		return fmt.Errorf("receive a notification: %w", errno)
	}
}
