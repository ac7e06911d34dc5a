package trial

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of linux/seccomp.h and linux/filter.h.
const (
	seccompSetModeFilter    = 1
	seccompNewListener      = 1 << 3
	seccompWaitKillableRecv = 1 << 5
	seccompReturnAllow      = 0x7fff0000
	seccompReturnTrace      = 0x7ff00000 // SECCOMP_RET_TRACE
	seccompReturnNotify     = 0x7fc00000

	bpfLoadWord  = 0x20
	bpfJumpEqual = 0x15
	bpfReturn    = 0x06

	ioctlReceive = 0xc0502100 // SECCOMP_IOCTL_NOTIF_RECV
	ioctlSend    = 0xc0182101 // SECCOMP_IOCTL_NOTIF_SEND
	ioctlValid   = 0x40082102 // SECCOMP_IOCTL_NOTIF_ID_VALID
)

// notification is struct seccomp_notif, with its struct seccomp_data.
type notification struct {
	id          uint64
	pid, flags  uint32
	number      int32
	arch        uint32
	instruction uint64
	arguments   [6]uint64
}

// response is struct seccomp_notif_resp.
type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

func ioctl(f *os.File, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// probeSeccomp answers a call of one of its own threads. The thread's filter
// notifies getppid, which nothing else here calls. flags are further ones of
// seccomp(2).
func probeSeccomp(flags uintptr) (string, error) {
	const value = 424242
	type call struct {
		value uintptr
		err   error
	}
	listeners, calls := make(chan *os.File, 1), make(chan call, 1)
	go func() { // ends with its call: close below makes that fail at the latest
		f, err := notifyParentID(flags)
		if err != nil {
			close(listeners)
			calls <- call{err: err}
			return
		}
		listeners <- f
		got, _, errno := unix.Syscall(unix.SYS_GETPPID, 0, 0, 0)
		if errno != 0 {
			err = fmt.Errorf("the answered call: %w", errno)
		}
		calls <- call{got, err}
	}()
	f, loaded := <-listeners
	if !loaded {
		return "", (<-calls).err
	}
	defer func() { _ = f.Close() }() // the process ends
	var n notification
	if err := ioctl(f, ioctlReceive, unsafe.Pointer(&n)); err != nil {
		return "", fmt.Errorf("receive: %w", err)
	}
	if n.number != unix.SYS_GETPPID || ioctl(f, ioctlValid, unsafe.Pointer(&n.id)) != nil {
		return "", fmt.Errorf("notification of call %d instead of %d", n.number, unix.SYS_GETPPID)
	}
	if err := ioctl(f, ioctlSend, unsafe.Pointer(&response{id: n.id, value: value})); err != nil {
		return "", fmt.Errorf("answer: %w", err)
	}
	got := <-calls
	if got.err == nil && got.value != value {
		got.err = fmt.Errorf("the call returned %d instead of the answer", got.value)
	}
	return "listener, receive, answer", got.err
}

// Traced starts a thread whose filter stops getppid for a tracer, and returns the thread's
// number. The thread makes that call until it has an answer. Without a tracer it fails.
func Traced() (int, error) {
	type started struct {
		tid int
		err error
	}
	begun := make(chan started, 1)
	go func() { // ends with its process at the latest
		_, err := loadForParentID(seccompReturnTrace, 0)
		if err == nil {
			if _, _, errno := unix.Syscall(unix.SYS_GETPPID, 0, 0, 0); errno != unix.ENOSYS {
				err = fmt.Errorf("a call that stops for a tracer, without one: %w", errno)
			}
		}
		begun <- started{unix.Gettid(), err}
		for err == nil {
			if _, _, errno := unix.Syscall(unix.SYS_GETPPID, 0, 0, 0); errno == 0 {
				return
			}
			_ = unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil) // the tracer comes when it comes
		}
	}()
	s := <-begun
	return s.tid, s.err
}

// notifyParentID loads a filter on this thread that notifies getppid.
func notifyParentID(flags uintptr) (*os.File, error) {
	fd, err := loadForParentID(seccompReturnNotify, seccompNewListener|flags)
	if err != nil {
		return nil, fmt.Errorf(
			"seccomp with NEW_LISTENER%s: %w",
			map[bool]string{true: " and WAIT_KILLABLE_RECV"}[flags&seccompWaitKillableRecv != 0],
			err,
		)
	}
	return os.NewFile(fd, "listener"), nil
}

// loadForParentID loads a filter on this thread with an action for getppid.
func loadForParentID(action uint32, flags uintptr) (uintptr, error) {
	if err := restrict(); err != nil {
		return 0, fmt.Errorf("no_new_privs: %w", err)
	}
	program := []unix.SockFilter{
		{Code: bpfLoadWord, K: 0}, // seccomp_data.nr
		{Code: bpfJumpEqual, Jf: 1, K: unix.SYS_GETPPID},
		{Code: bpfReturn, K: action},
		{Code: bpfReturn, K: seccompReturnAllow},
	}
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, seccompSetModeFilter, flags, uintptr(unsafe.Pointer(&fprog)))
	if errno != 0 {
		return 0, errno
	}
	return fd, nil
}

// probeKillable loads a filter whose waits only the end of the caller breaks.
func probeKillable() (string, error) {
	_, err := probeSeccomp(seccompWaitKillableRecv)
	return "WAIT_KILLABLE_RECV", err
}
