package notify

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
)

// handlers are the system calls that are answered, each by one function. The
// function answers the call or returns why it must be denied.
var handlers = map[int]func(*worker, *call) error{
	unix.SYS_EXECVE:             (*worker).execve,
	unix.SYS_EXECVEAT:           (*worker).execveat,
	unix.SYS_KILL:               (*worker).killProcess,
	unix.SYS_TKILL:              (*worker).sigqueue,
	unix.SYS_TGKILL:             (*worker).tgkill,
	unix.SYS_RT_SIGQUEUEINFO:    (*worker).sigqueue,
	unix.SYS_RT_TGSIGQUEUEINFO:  (*worker).tgkill,
	unix.SYS_SCHED_SETAFFINITY:  (*worker).schedule,
	unix.SYS_SCHED_SETSCHEDULER: (*worker).schedule,
	unix.SYS_SCHED_SETPARAM:     (*worker).schedule,
	unix.SYS_SCHED_SETATTR:      (*worker).schedule,
	unix.SYS_SETPRIORITY:        (*worker).priority,
	unix.SYS_IOPRIO_SET:         (*worker).priority,
	unix.SYS_CONNECT:            (*worker).connect,
	unix.SYS_BIND:               (*worker).bind,
	unix.SYS_SENDTO:             (*worker).sendto,
	unix.SYS_LISTEN:             (*worker).listen,
	unix.SYS_MEMFD_CREATE:       (*worker).memoryFile,
	unix.SYS_OPENAT:             (*worker).openat,
	unix.SYS_OPENAT2:            (*worker).openat2,
	unix.SYS_FCNTL:              (*worker).owner,
}

// worker is one thread that receives and answers. It is the tracer of at most
// one process at a time.
type worker struct {
	loop    *Loop
	tid     atomic.Int64
	current atomic.Pointer[call]
	traced  int // thread that is seized and not yet let go; 0: none
	stopped int // process that it holds at an exec stop; 0: none
}

// call is one notification on its way to its answer.
type call struct {
	seccomp.Notification
	loop     *Loop
	rules    Rules
	start    time.Time // when it was received
	answered atomic.Bool
}

// onThread runs f on a thread of its own that is not the leader of the process:
// orphans of a subreaper become children of the leader, and a worker's wait
// would take them. Nor has it started a process. The thread ends with f, since its
// signal mask stays changed.
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

// hasChildren reports whether the calling thread waits for a process that it
// started: a wait for any would take that, and last as long as it.
func hasChildren() bool {
	err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT|unix.WNOTHREAD|unix.WALL, nil)
	return !errors.Is(err, unix.ECHILD)
}

// blockSignals blocks what could interrupt an ioctl or a wait, the preemption
// signal of the Go runtime above all. The signals of a fault in the thread's
// own code stay, so that a panic can be recovered from.
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

// start serves, as the user whose processes it looks at.
func (w *worker) start() error {
	w.tid.Store(int64(unix.Gettid()))
	if as := w.loop.cfg.As; as != nil {
		if err := as.become(); err != nil {
			return err
		}
	}
	return w.serve()
}

// become makes the calling thread, and it alone, one of this user for what
// ptrace(2) checks: the real ids for tracing, those of the file system for
// /proc/PID. It keeps its effective ids and permitted capabilities, so that
// nobody who is not the supervisor may trace it. The thread must end with its work.
func (c *Credential) become() error {
	keep := ^uintptr(0)
	for _, call := range []struct{ number, id uintptr }{{unix.SYS_SETRESGID, uintptr(c.GID)}, {unix.SYS_SETRESUID, uintptr(c.UID)}} {
		if _, _, errno := unix.RawSyscall(call.number, call.id, keep, keep); errno != 0 {
			return fmt.Errorf("look at processes of user %d: %w", c.UID, errno)
		}
	}
	// These report no error: what was set shows when they are asked again.
	for _, call := range []struct{ number, id uintptr }{{unix.SYS_SETFSGID, uintptr(c.GID)}, {unix.SYS_SETFSUID, uintptr(c.UID)}} {
		_, _, _ = unix.RawSyscall(call.number, call.id, 0, 0)
		if was, _, _ := unix.RawSyscall(call.number, keep, 0, 0); was != call.id {
			return fmt.Errorf("look at files as user %d: %w", c.UID, unix.EPERM)
		}
	}
	return nil
}

// serve receives and answers until the listener ends.
func (w *worker) serve() error {
	l := w.loop
	for {
		c := &call{loop: l}
		err := l.cfg.Listener.Receive(&c.Notification)
		if errors.Is(err, seccomp.ErrGone) {
			continue
		}
		if err != nil {
			return err
		}
		if !l.admit(c) {
			continue
		}
		for ; c != nil; c = l.next() {
			w.current.Store(c)
			c.rules = l.current()
			w.handle(c)
			w.current.Store(nil)
		}
	}
}

// handle answers one call, exactly once.
func (w *worker) handle(c *call) {
	defer func() { w.recovered(c, recover()) }()
	handler := handlers[c.Syscall]
	refusal := w.loop.cfg.Refusals.Of(c.Syscall, c.Args)
	var err error
	switch {
	case c.Arch != nativeArch:
		err = fmt.Errorf("call of architecture %#x", c.Arch)
	case refusal != nil:
		err = w.refuse(c, refusal)
	case handler == nil:
		err = fmt.Errorf("call %d has no handler", c.Syscall)
	default:
		err = handler(w, c)
	}
	if err != nil {
		c.fault(err)
	}
}

// recovered denies a call whose handler panicked with p, if it did.
func (w *worker) recovered(c *call, p any) {
	if p == nil {
		return
	}
	w.loop.cfg.Log.Error("panic while answering a call", "panic", p, "stack", string(debug.Stack()))
	c.fault(fmt.Errorf("panic: %v", p))
	w.abandon()
}

// valid reports whether the call still waits: only then what was read from the
// thread's number belongs to it.
func (c *call) valid() bool { return c.loop.cfg.Listener.Valid(c.ID) }

// errGone says that the caller went away: there is nobody to answer.
var errGone = errors.New("the calling thread is gone")

// claim reports whether the caller of this method is the one to answer.
func (c *call) claim() bool { return c.answered.CompareAndSwap(false, true) }

// deny answers with errno unless there is an answer.
func (c *call) deny(errno unix.Errno) {
	if c.claim() {
		c.answer(c.loop.cfg.Listener.Deny(c.ID, errno))
	}
}

func (c *call) answer(err error) {
	if err != nil && !errors.Is(err, seccomp.ErrGone) && !errors.Is(err, os.ErrClosed) {
		// Without an answer the thread stays where it is, which is a denial.
		c.loop.cfg.Log.Error("answer a notification", "error", err)
	}
}

// fault denies the call because it could not be decided, and says so in the
// audit log. An errno in err is what the caller gets.
func (c *call) fault(err error) {
	if !c.claim() {
		return
	}
	errno := unix.EACCES
	if e := unix.Errno(0); errors.As(err, &e) && e != 0 && !errors.Is(err, target.ErrGone) {
		errno = e
	}
	denied := c.loop.cfg.Listener.Deny(c.ID, errno)
	c.answer(denied)
	if errors.Is(err, errGone) || errors.Is(err, target.ErrGone) || errors.Is(denied, seccomp.ErrGone) {
		return // the caller died meanwhile, which may well be the fault
	}
	e := wire.Event{Type: wire.EventFault, Session: c.loop.cfg.Session, Decision: "deny", Mechanism: "seccomp", Message: err.Error()}
	e.Process = &wire.Process{PID: c.TID}
	c.loop.emit(e)
}

// emit writes an event about something that is denied already: its loss is
// logged and changes nothing.
func (l *Loop) emit(e wire.Event) {
	if err := l.cfg.Emit(e); err != nil {
		l.cfg.Log.Error("audit event lost", "type", e.Type, "error", err)
	}
}
