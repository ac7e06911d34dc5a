package seccomp

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AddFD is a descriptor to install in the thread that waits.
type AddFD struct {
	FD     int  // of this process; it stays open
	Number int  // wanted number there; negative: the lowest free one
	Exec   bool // leave it open over execve
	// Send also answers the call with the new number, in one step. The calling
	// thread must have SIGURG blocked: an interrupted ioctl has already answered,
	// and its restart reports EINPROGRESS.
	Send bool
}

// rawAddFD is struct seccomp_notif_addfd.
type rawAddFD struct {
	id       uint64
	flags    uint32
	source   uint32
	number   uint32
	newFlags uint32
}

const ioctlAddFD = 0x40182103

// AddFD installs a descriptor in the waiting thread and returns its number
// there, or [ErrGone].
func (l *Listener) AddFD(id uint64, a AddFD) (int, error) {
	const setFD, send = 1, 2 // SECCOMP_ADDFD_FLAG_*
	raw := rawAddFD{id: id, source: uint32(a.FD)}
	if a.Number >= 0 {
		raw.flags |= setFD
		raw.number = uint32(a.Number)
	}
	if a.Send {
		raw.flags |= send
	}
	if !a.Exec {
		raw.newFlags = unix.O_CLOEXEC
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return -1, os.ErrClosed
	}
	n, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l.fd), ioctlAddFD, uintptr(unsafe.Pointer(&raw)))
	switch errno {
	case 0:
		return int(n), nil
	case unix.ENOENT:
		return -1, ErrGone
	default:
		return -1, fmt.Errorf("add a descriptor: %w", errno)
	}
}
