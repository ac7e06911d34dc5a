package notify

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// quietStops makes the stops of traced threads be told to the thread that waits
// for them only. Without SA_NOCLDSTOP each is a SIGCHLD as well, which wakes
// another thread of this process for nothing. The handler, which is the Go
// runtime's, stays; a failure costs time and nothing else. See sigaction(2).
var quietStops = sync.OnceFunc(func() {
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

// The functions below are called on the worker's own thread only: the kernel
// knows tracers by thread.

// seize attaches to a thread. If the supervisor dies the kernel kills it.
func (w *worker) seize(tid int) error {
	const options = unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	if err := ptrace(unix.PTRACE_SEIZE, tid, options); err != nil {
		return fmt.Errorf("trace the exec of thread %d, which a debugger may hold: %w", tid, err)
	}
	w.traced = tid
	return nil
}

func interrupt(tid int) error {
	if err := ptrace(unix.PTRACE_INTERRUPT, tid, 0); err != nil {
		return fmt.Errorf("interrupt thread %d: %w", tid, err)
	}
	return nil
}

// ptrace makes a request that does not wait: the Go scheduler need not know.
func ptrace(request, tid int, data uintptr) error {
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(tid), 0, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// wait waits for the stop after a continued exec. true means that w.stopped is
// held at a successful exec; false that the exec failed or its thread is gone,
// and nothing is traced any more.
func (w *worker) wait() bool {
	const eventStop = 128 // PTRACE_EVENT_STOP
	for {
		var status unix.WaitStatus
		// Without __WNOTHREAD this would take the stops of other workers.
		pid, err := unix.Wait4(-1, &status, unix.WALL|unix.WNOTHREAD, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // ECHILD
			w.traced, w.stopped = 0, 0
			return false
		case !status.Stopped():
			// It died; if a thread takes over its number, more follows.
		case int(status)>>16 == unix.PTRACE_EVENT_EXEC:
			w.stopped = pid
			return true
		case int(status)>>16 == eventStop:
			if w.letGo(pid) {
				return false
			}
		default: // a signal on its way to the thread
			_ = ptrace(unix.PTRACE_CONT, pid, uintptr(status.StopSignal()))
		}
	}
}

// letGo detaches from a stopped thread. false means that it was killed
// meanwhile: it must be waited for, or its parent never sees it end.
func (w *worker) letGo(pid int) bool {
	if ptrace(unix.PTRACE_DETACH, pid, 0) != nil {
		return false
	}
	w.traced, w.stopped = 0, 0
	return true
}

// detach lets the process run that is held at its exec stop.
func (w *worker) detach() {
	if !w.letGo(w.stopped) {
		w.drain()
	}
}

// kill kills the process that is held and waits for its end.
func (w *worker) kill() {
	_ = unix.Kill(w.stopped, unix.SIGKILL)
	w.drain()
}

// drain waits until nothing is traced. A program that gets to an exec stop on
// the way was judged by nobody.
func (w *worker) drain() {
	for w.wait() {
		_ = unix.Kill(w.stopped, unix.SIGKILL)
	}
}

// release gives up a thread that was seized, where it stops next. Its call must
// have been answered.
func (w *worker) release() {
	_ = interrupt(w.traced)
	w.drain()
}

// abandon gives up after a panic: a program that is held does not start.
func (w *worker) abandon() {
	switch {
	case w.stopped != 0:
		w.kill()
	case w.traced != 0:
		w.release()
	}
}
