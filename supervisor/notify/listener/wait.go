package listener

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/internal/syscallblock"
)

// waitLong waits for a stop or an end of what the thread traces, which is not expected soon. A
// thread that waits in the kernel keeps a processor of the Go runtime: the runtime's monitor
// takes it away up to 10 ms later, and looks at it all that time. Two execs at a time would
// keep all else of this process waiting. So this thread gives its processor up.
func waitLong(status *unix.WaitStatus) (int, error) {
	var s uint32
	pid, errno := waitBlocked(&s)
	*status = unix.WaitStatus(s)
	if errno != 0 {
		return 0, errno
	}
	return int(pid), nil
}

// waitBlocked is wait4(2). Without __WNOTHREAD it would take the stops of other threads.
//
//go:nosplit
func waitBlocked(status *uint32) (pid uintptr, errno unix.Errno) {
	syscallblock.EnterBlocked()
	pid, _, errno = unix.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(status)), unix.WALL|unix.WNOTHREAD, 0, 0, 0)
	syscallblock.Exit()
	return pid, errno
}
