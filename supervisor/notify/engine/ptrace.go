package engine

import (
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// EventStop is PTRACE_EVENT_STOP: an interrupt, a new thread, or a stop of the process by
// a signal.
const EventStop = 128

// Event is the ptrace event of a stop, or 0.
func Event(status unix.WaitStatus) int { return int(status) >> 16 }

// StopsProcess reports whether a signal stops a process. See signal(7).
func StopsProcess(signal unix.Signal) bool {
	switch signal {
	case unix.SIGSTOP, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		return true
	}
	return false
}

// Ptrace makes a request that does not block, so it bypasses the Go scheduler. Only the
// thread that traces tid may call it. data is a number, and no address: the kernel would get
// that of a stack which has moved since.
func Ptrace(request, tid int, data uintptr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), 0, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// EventMessage returns what a stopped thread tells about its event. See PTRACE_GETEVENTMSG in
// ptrace(2).
func EventMessage(tid int) (int, error) {
	var message uintptr
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETEVENTMSG, uintptr(tid), 0, uintptr(unsafe.Pointer(&message)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(message), nil
}

// Seize traces a thread. It blocks while another thread of that process is in an exec,
// which may end only when threads are reaped that others of this process trace. So the Go
// scheduler has to know. See cred_guard_mutex in ptrace_attach of kernel/ptrace.c.
func Seize(tid, options int) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, uintptr(options), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Interrupt stops a traced thread at its next chance.
func Interrupt(tid int) error {
	if err := Ptrace(unix.PTRACE_INTERRUPT, tid, 0); err != nil {
		return fmt.Errorf("interrupt thread %d: %w", tid, err)
	}
	return nil
}

// IgnoreStops sets SA_NOCLDSTOP: only the tracing thread then gets the stops of
// traced threads. Without it each stop is also a SIGCHLD, which wakes another thread of
// this process. The handler of the Go runtime stays. A failure costs time only. See
// sigaction(2).
var IgnoreStops = sync.OnceFunc(func() {
	const noStops = 1        // SA_NOCLDSTOP
	const maskSize = 8       // bytes of the kernel's signal set
	var action [3 + 1]uint64 // handler, flags, restorer, mask: struct sigaction of amd64 and arm64
	if _, _, errno := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), 0, uintptr(unsafe.Pointer(&action)), maskSize, 0,
		0); errno != 0 {
		return
	}
	action[1] |= noStops
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGCHLD), uintptr(unsafe.Pointer(&action)), 0, maskSize, 0, 0)
})
