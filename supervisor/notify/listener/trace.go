package listener

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/notify/engine"
)

// tracer traces at most one process from its exec on. Its methods are for one thread
// only, since the kernel knows tracers by thread.
type tracer struct {
	traced  int // thread that is seized; 0: none
	stopped int // process that is held at an exec stop; 0: none
}

// seize attaches to a thread. If the supervisor dies, the kernel kills that thread.
func (t *tracer) seize(tid int) error {
	const options = unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_EXITKILL
	if err := engine.Seize(tid, options); err != nil {
		return fmt.Errorf("trace the exec of thread %d, which a debugger may hold: %w", tid, err)
	}
	t.traced = tid
	return nil
}

// wait waits for the stop after a continued exec. It returns true if t.stopped is stopped
// at a successful exec. It returns false if the exec failed or the thread ended; nothing is
// traced then.
func (t *tracer) wait() bool {
	for {
		var status unix.WaitStatus
		pid, err := waitLong(&status)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // ECHILD
			t.traced, t.stopped = 0, 0
			return false
		case !status.Stopped():
			// It ended. If another thread gets its number, more events follow.
		case engine.Event(status) == unix.PTRACE_EVENT_EXEC:
			t.stopped = pid
			return true
		case engine.Event(status) == engine.EventStop, engine.Event(status) == unix.PTRACE_EVENT_EXIT:
			if t.tryDetach(pid) {
				return false
			}
		default: // a signal for the thread
			_ = engine.Ptrace(unix.PTRACE_CONT, pid, uintptr(status.StopSignal()))
		}
	}
}

// tryDetach detaches from a stopped thread. It returns false if the thread was killed
// meanwhile. The thread must then be waited for, or its parent never sees it end.
func (t *tracer) tryDetach(pid int) bool {
	if engine.Ptrace(unix.PTRACE_DETACH, pid, 0) != nil {
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
	_ = engine.Kill(t.stopped)
	t.drain()
}

// drain waits until nothing is traced. It kills a program that reaches an exec stop,
// because nobody evaluates it.
func (t *tracer) drain() {
	for t.wait() {
		_ = engine.Kill(t.stopped)
	}
}

// release detaches from a thread that was seized, at its next stop. Its call must have an
// answer.
func (t *tracer) release() {
	_ = engine.Interrupt(t.traced)
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

// complete waits for the result of an exec. It lets the new program run, has it followed
// or kills it.
func (t *tracer) complete(x engine.Execution) {
	if !t.wait() {
		return
	}
	if err := x.Accept(engine.Program{PID: t.stopped}); err != nil {
		t.kill()
		x.Killed(err)
		return
	}
	if f := x.Follower(); f != nil {
		t.follow(f)
		return
	}
	t.detach()
}

// AddsFiles reports true: see [Engine.AddsFiles].
func (t *tracer) AddsFiles() bool { return true }

// SetOptions sets the ptrace options of a thread. If the supervisor dies, the kernel kills
// it. The thread stops at its end, where follow detaches from it.
func (t *tracer) SetOptions(tid, options int) error {
	return engine.Ptrace(unix.PTRACE_SETOPTIONS, tid, uintptr(options|unix.PTRACE_O_TRACEEXIT|unix.PTRACE_O_EXITKILL))
}

// Detach detaches from a stopped thread.
func (t *tracer) Detach(tid, signal int) error {
	return engine.Ptrace(unix.PTRACE_DETACH, tid, uintptr(signal))
}

// follow passes stops to a follower until nothing is traced. A thread that ends is detached
// before: a zombie that is traced has ended for a pidfd and in /proc, but a wait of its parent
// with WNOHANG does not return it. See PTRACE_EVENT_EXIT in ptrace(2), and wait_consider_task in
// kernel/exit.c.
func (t *tracer) follow(f engine.Follower) {
	defer f.Done()
	if err := f.Begin(t.stopped, t); err != nil {
		t.kill()
		return
	}
	var stops stops
	for {
		tid, status, err := stops.next(f)
		switch {
		case err != nil: // ECHILD
			t.traced, t.stopped = 0, 0
			return
		case status.Stopped() && engine.Event(status) == unix.PTRACE_EVENT_EXIT:
			f.Ended(tid)         // before another thread can have its number
			_ = t.Detach(tid, 0) // fails if it was killed: its end follows
		case status.Stopped():
			f.Stopped(tid, status)
		default:
			f.Ended(tid)
		}
	}
}
