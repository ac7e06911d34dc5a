// Package tracer is the engine that stops system calls by SECCOMP_RET_TRACE and ptrace. It
// works where the kernel has no listener for notifications.
//
// Each top-level command has one thread of this process that traces all of its processes
// (thread.go). The kernel attaches children of traced processes to the same thread. Only
// that thread makes ptrace requests, and it never waits for a decision: it passes calls to
// whoever is in [Engine.Receive], and carries out the answers (stops.go). An answer wakes
// it by a [bell]. Exits reach their real parents only through this thread.
//
// An execve that continues is stopped again at PTRACE_EVENT_EXEC, where the new program is
// checked. An exec that nobody permitted is killed there.
package tracer

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/threads"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// Name is the name of this engine.
const Name = "trace"

// Config describes an engine.
type Config struct {
	// As is the user whose processes are traced. See [engine.Credentials].
	As *engine.Credentials
	// Cookie is that of seccomp.TracedBeside; 0: the filter does not trap execve.
	Cookie uint64
	// Ended is closed when the session has no process any more.
	Ended <-chan struct{}
	// Log gets messages for the operator of the supervisor; nil: none.
	Log *slog.Logger
}

// Engine traces the processes of one session.
type Engine struct {
	cfg     Config
	direct  func(*engine.Call) bool // nil: workers answer every call
	work    chan engine.Call
	done    chan struct{} // closed by Close
	threads sync.WaitGroup

	mu     sync.Mutex
	closed bool
	next   uint64
	calls  map[uint64]*stopped
	live   map[*thread]bool
}

// stopped is a call that waits for its answer.
type stopped struct {
	thread    *thread
	tid       int
	execution engine.Execution // of an execve that is about to continue
}

// backlog is how many calls wait for a worker. More wait in their tracing threads.
const backlog = 1024

// maxCommands is how many commands have a thread at most. The Go runtime ends a program that
// has 10,000.
const maxCommands = 4096

// New returns an engine that traces nothing yet.
func New(cfg Config) *Engine {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	engine.IgnoreStops()
	return &Engine{
		cfg: cfg, work: make(chan engine.Call, backlog), done: make(chan struct{}),
		calls: map[uint64]*stopped{}, live: map[*thread]bool{},
	}
}

// Name is "trace".
func (e *Engine) Name() string { return Name }

// AddsFiles reports false: a tracer cannot add a descriptor to a process.
func (e *Engine) AddsFiles() bool { return false }

// HoldsThread reports false: the tracing thread has the process, not the caller of
// Execute.
func (e *Engine) HoldsThread() bool { return false }

// AnswerDirectly sets what answers calls on the threads of this engine. See
// [engine.Direct].
func (e *Engine) AnswerDirectly(f func(*engine.Call) bool) { e.direct = f }

// Begin traces the first process of a command, which waits. Its filter must be loaded
// already: a process that is not traced gets ENOSYS from the calls that the filter names.
func (e *Engine) Begin(pid int) error {
	t := &thread{engine: e, tasks: map[int]*task{}, execs: execs{tasks: map[int]*task{}}}
	begun := make(chan error, 1)
	e.mu.Lock()
	switch {
	case e.closed:
		e.mu.Unlock()
		return os.ErrClosed
	case len(e.live) >= maxCommands || threads.Short():
		n := len(e.live)
		e.mu.Unlock()
		return fmt.Errorf("%d commands of this session have processes, and each needs a thread: let some end first: %w", n, unix.EAGAIN)
	}
	e.live[t] = true
	e.threads.Go(func() {
		err := engine.OnThread(func() error {
			err := t.begin(pid)
			if err == nil {
				begun <- nil
				t.run()
			}
			return err
		})
		t.end()
		if err != nil {
			begun <- err
		}
	})
	e.mu.Unlock()
	return <-begun
}

// Receive waits for the next call or exec stop.
func (e *Engine) Receive(c *engine.Call) error {
	select {
	case <-e.done:
		return os.ErrClosed
	default:
	}
	select {
	case *c = <-e.work:
		return nil
	case <-e.done:
		return os.ErrClosed
	case <-e.cfg.Ended:
		return io.EOF
	}
}

// add notes a call of a thread and returns its id.
func (e *Engine) add(t *thread, tid int) uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next++
	e.calls[e.next] = &stopped{thread: t, tid: tid}
	return e.next
}

// drop forgets a call whose thread has ended.
func (e *Engine) drop(id uint64) {
	if id == 0 {
		return
	}
	if s := e.take(id); s != nil && s.execution != nil {
		s.execution.Done()
	}
}

// take removes a call that is to be answered; nil: nobody waits for the answer.
func (e *Engine) take(id uint64) *stopped {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.calls[id]
	delete(e.calls, id)
	return s
}

// Valid reports whether the thread still waits for the answer to the call. The number of a
// thread means no other one before its end was waited for, or the exec that took the number of
// a first thread. Both forget its call.
func (e *Engine) Valid(id uint64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.calls[id] != nil
}

// Ended reports whether the thread has left its stop, which a killed thread does at once.
func (e *Engine) Ended(id uint64) bool {
	e.mu.Lock()
	s := e.calls[id]
	e.mu.Unlock()
	return s == nil || !target.Held(s.tid)
}

// Answer has the tracing thread end a call.
func (e *Engine) Answer(id uint64, a engine.Answer) error {
	s := e.take(id)
	if s == nil {
		return engine.ErrGone
	}
	if a.Kind == engine.File {
		a = engine.Deny(unix.ENOSYS)
	}
	r := reply{tid: s.tid, id: id, answer: a}
	if a.Kind == engine.Continue {
		r.execution = s.execution
	}
	s.thread.post(r)
	return nil
}

// Execute lets an execve continue. The tracing thread has it checked when its exec stops.
func (e *Engine) Execute(c *engine.Call, once engine.Execution) error {
	x := &execution{Execution: once}
	e.mu.Lock()
	s := e.calls[c.ID]
	if s != nil {
		s.execution = x
	}
	e.mu.Unlock()
	if s == nil {
		x.Fail(engine.ErrGone)
		x.Done()
		return nil
	}
	if !x.Proceed() {
		x.Done()
	}
	return nil
}

// execution is Done once, whoever says so: its thread may end while it is answered.
type execution struct {
	engine.Execution
	once sync.Once
}

// Done ends the execution.
func (x *execution) Done() { x.once.Do(x.Execution.Done) }

// check has the program of an exec stop accepted, on the thread of a worker.
func (e *Engine) check(id uint64, p engine.Program, x engine.Execution) {
	defer x.Done()
	if err := x.Accept(p); err != nil {
		x.Killed(err)
		_ = e.Answer(id, engine.Deny(unix.EPERM)) // it has ended otherwise
		return
	}
	f := x.Follower()
	if s := e.take(id); s != nil {
		s.thread.post(reply{tid: s.tid, id: id, answer: engine.Answer{Kind: engine.Continue}, follower: f})
	} else if f != nil {
		f.Done()
	}
}

// Close ends Receive and kills every traced process. It returns when none is left.
func (e *Engine) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		e.Wait()
		return os.ErrClosed
	}
	e.closed = true
	close(e.done)
	for t := range e.live {
		t.post(reply{})
	}
	e.mu.Unlock()
	e.Wait()
	return nil
}

// Wait waits until no process is traced.
func (e *Engine) Wait() { e.threads.Wait() }

// failed reports an error of a request that means more than the end of a thread.
func failed(err error) bool {
	return err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, io.EOF)
}

// describe adds the thread to an error.
func describe(what string, tid int, err error) error {
	return fmt.Errorf("%s thread %d: %w", what, tid, err)
}
