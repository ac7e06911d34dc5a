package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentsh/internal/threads"
	"agentsh/supervisor/notify/engine"
)

// worker is one thread that receives calls and answers them.
type worker struct {
	tid     atomic.Int64
	current atomic.Pointer[call]
}

// run serves a worker's thread.
func (l *Loop) run(w *worker) error {
	w.tid.Store(int64(unix.Gettid()))
	if err := l.tasks.credentials.become(); err != nil {
		return err
	}
	return l.serve(w)
}

// serve receives and answers until the engine ends.
func (l *Loop) serve(w *worker) error {
	for {
		c := &call{engine: l.engine, record: l.record}
		err := l.engine.Receive(&c.Call)
		if errors.Is(err, engine.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		if !l.pool.admit(c) {
			continue
		}
		for ; c != nil; c = l.pool.next() {
			w.current.Store(c)
			c.rules = l.current()
			l.handle(c)
			w.current.Store(nil)
		}
	}
}

// handle answers one call, exactly once.
func (l *Loop) handle(c *call) {
	defer func() { c.recovered(recover()) }()
	c.finish(l.dispatch(c))
}

// dispatch passes a call to its handler.
func (l *Loop) dispatch(c *call) (answer, error) {
	if c.Arch != nativeArch {
		return noAnswer, fmt.Errorf("call of architecture %#x", c.Arch)
	}
	if refusal := l.refusals.of(c); refusal != nil {
		return l.refusals.answer(c, refusal)
	}
	if handle := l.handlers[c.Syscall]; handle != nil {
		return handle(c)
	}
	return noAnswer, fmt.Errorf("call %d has no handler", c.Syscall)
}

// recovered denies the call if its handler panicked with p.
func (c *call) recovered(p any) {
	if p == nil {
		return
	}
	c.record.log.Error("panic while answering a call", "panic", p, "stack", string(debug.Stack()))
	c.fault(fmt.Errorf("panic: %v", p))
}

// tasks answers calls away from the workers: those that wait for a person, and execs
// whose interpreter is followed.
type tasks struct {
	ctx         context.Context // of the loop; set by Run
	running     sync.WaitGroup  // of the workers too
	credentials *Credentials
	most        int64 // threads
	threads     atomic.Int64
}

// answer has f answer a call on another goroutine.
func (t *tasks) answer(c *call, f handler) (answer, error) {
	t.running.Go(func() {
		defer func() { c.recovered(recover()) }()
		c.finish(f(c))
	})
	return noAnswer, nil
}

// answerOnThread has f answer a call on a thread of its own. Calls that trace, or
// that add a descriptor, need one. finally runs after f, and also when there are too
// many threads: then the call is denied.
func (t *tasks) answerOnThread(c *call, f handler, finally func()) (answer, error) {
	if threads.Short() {
		finally()
		return noAnswer, fmt.Errorf("follow a script: %w: %w", threads.ErrNone, unix.EAGAIN)
	}
	if t.threads.Add(1) > t.most {
		t.threads.Add(-1)
		finally()
		return noAnswer, fmt.Errorf("%d scripts of this session are followed or wait for a person: let some end first: %w", t.most, unix.EAGAIN)
	}
	t.running.Go(func() {
		defer t.threads.Add(-1)
		err := onThread(func() error {
			defer func() { c.recovered(recover()) }()
			defer finally()
			if err := t.credentials.become(); err != nil {
				return err
			}
			c.finish(f(c))
			return nil
		})
		if err != nil {
			c.fault(err)
		}
	})
	return noAnswer, nil
}

// onThread runs f on a thread that is not the leader of the process and has started no
// process. Orphans of a subreaper become children of the leader, so the waits of a worker
// there would get them. The thread ends with f, since its signal mask stays changed.
func onThread(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() || hasChildren() {
			result <- onThread(f) // this thread waits meanwhile, so it is another one
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

// become sets the user of the calling thread, and of no other, for the checks
// of ptrace(2). It sets the real ids for tracing, and the file system ids for
// /proc/PID. The thread keeps its effective ids and permitted capabilities, so
// that only the supervisor may trace it. The thread must end with its work. Nil
// changes nothing.
func (c *Credentials) become() error {
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
