package engine

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs f on a thread that is not the leader of the process and has started no
// process. Orphans of a subreaper Become children of the leader, so the waits of a worker
// there would get them. The thread ends with f, since its signal mask stays changed.
func OnThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() || hasChildren() {
			result <- OnThread(f) // this thread waits meanwhile, so it is another one
			runtime.UnlockOSThread()
			return
		}
		blockSignals()
		result <- f()
	}()
	return <-result
}

// hasChildren reports whether the calling thread started a process that it has not waited
// for. A wait of a worker for any child would return that one, or block as long as it runs.
func hasChildren() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WNOTHREAD|unix.WALL, nil)
	return !errors.Is(err, unix.ECHILD)
}

// blockSignals blocks the signals that can interrupt an ioctl or a wait, such as the
// preemption signal of the Go runtime. Signals of faults in the thread's own code are not
// blocked, so that a panic can be recovered.
func blockSignals() {
	var set unix.Sigset_t
	for i := range set.Val {
		set.Val[i] = ^set.Val[i]
	}
	for _, s := range []unix.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGSYS, unix.SIGPROF} {
		set.Val[0] &^= 1 << (s - 1)
	}
	_ = unix.PthreadSigmask(unix.SIG_BLOCK, &set, nil) // fails for a bad argument only
}

// Credentials are a user and a group.
type Credentials struct{ UID, GID int }

// Become sets the user of the calling thread, and of no other, for the checks
// of ptrace(2). It sets the real ids for tracing, and the file system ids for
// /proc/PID. The thread keeps its effective ids and permitted capabilities, so
// that only the supervisor may trace it. The thread must end with its work. Nil
// changes nothing.
func (c *Credentials) Become() error {
	if c == nil {
		return nil
	}
	keep := ^uintptr(0)
	for _, call := range []struct{ number, id uintptr }{{unix.SYS_SETRESGID, uintptr(c.GID)}, {unix.SYS_SETRESUID, uintptr(c.UID)}} {
		if _, _, errno := unix.RawSyscall(call.number, call.id, keep, keep); errno != 0 {
			return fmt.Errorf("trace processes of user %d: %w", c.UID, errno)
		}
	}
	// These calls report no error. A second call returns what was set.
	for _, call := range []struct{ number, id uintptr }{{unix.SYS_SETFSGID, uintptr(c.GID)}, {unix.SYS_SETFSUID, uintptr(c.UID)}} {
		_, _, _ = unix.RawSyscall(call.number, call.id, 0, 0)
		if was, _, _ := unix.RawSyscall(call.number, keep, 0, 0); was != call.id {
			return fmt.Errorf("read /proc as user %d: %w", c.UID, unix.EPERM)
		}
	}
	return nil
}
