package notify

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ignoreStops sets SA_NOCLDSTOP: only the tracing thread then gets the stops of
// traced threads. Without it each stop is also a SIGCHLD, which wakes another thread of
// this process. The handler of the Go runtime stays. A failure costs time only. See
// sigaction(2).
var ignoreStops = sync.OnceFunc(func() {
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

// tracer traces at most one process from its exec on. Its methods are for one thread
// only, since the kernel knows tracers by thread.
type tracer struct {
	traced  int // thread that is seized; 0: none
	stopped int // process that is held at an exec stop; 0: none
}

// seize attaches to a thread. If the supervisor dies, the kernel kills that thread.
func (t *tracer) seize(tid int) error {
	const options = unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	if err := ptrace(unix.PTRACE_SEIZE, tid, options); err != nil {
		return fmt.Errorf("trace the exec of thread %d, which a debugger may hold: %w", tid, err)
	}
	t.traced = tid
	return nil
}

func interrupt(tid int) error {
	if err := ptrace(unix.PTRACE_INTERRUPT, tid, 0); err != nil {
		return fmt.Errorf("interrupt thread %d: %w", tid, err)
	}
	return nil
}

// ptrace makes a request that does not block, so it bypasses the Go scheduler.
func ptrace(request, tid int, data uintptr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), 0, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// wait waits for the stop after a continued exec. It returns true if t.stopped is stopped
// at a successful exec. It returns false if the exec failed or the thread ended; nothing is
// traced then.
func (t *tracer) wait() bool {
	const eventStop = 128 // PTRACE_EVENT_STOP
	for {
		var status unix.WaitStatus
		// Without __WNOTHREAD this would take the stops of other workers.
		pid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // ECHILD
			t.traced, t.stopped = 0, 0
			return false
		case !status.Stopped():
			// It ended. If another thread gets its number, more events follow.
		case int(status)>>16 == unix.PTRACE_EVENT_EXEC:
			t.stopped = pid
			return true
		case int(status)>>16 == eventStop:
			if t.tryDetach(pid) {
				return false
			}
		default: // a signal for the thread
			_ = ptrace(unix.PTRACE_CONT, pid, uintptr(status.StopSignal()))
		}
	}
}

// tryDetach detaches from a stopped thread. It returns false if the thread was killed
// meanwhile. The thread must then be waited for, or its parent never sees it end.
func (t *tracer) tryDetach(pid int) bool {
	if ptrace(unix.PTRACE_DETACH, pid, 0) != nil {
		return false
	}
	t.traced, t.stopped = 0, 0
	return true
}

// detach lets the process run that is stopped at its exec.
func (t *tracer) detach() {
	if !t.tryDetach(t.stopped) {
		t.drain()
	}
}

// kill kills the process that is stopped, and waits for its end.
func (t *tracer) kill() {
	_ = unix.Kill(t.stopped, unix.SIGKILL)
	t.drain()
}

// drain waits until nothing is traced. It kills a program that reaches an exec stop,
// because nobody evaluates it.
func (t *tracer) drain() {
	for t.wait() {
		_ = unix.Kill(t.stopped, unix.SIGKILL)
	}
}

// release detaches from a thread that was seized, at its next stop. Its call must have an
// answer.
func (t *tracer) release() {
	_ = interrupt(t.traced)
	t.drain()
}

// abandon ends tracing after a panic. A program that is stopped at its exec does not
// start.
func (t *tracer) abandon() {
	switch {
	case t.stopped != 0:
		t.kill()
	case t.traced != 0:
		t.release()
	}
}
