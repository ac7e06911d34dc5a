package notify

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

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
	if err := l.tasks.credentials.Become(); err != nil {
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

// directly answers a call on the thread of its engine, which must not wait: only signals
// to one process, execs of programs that a worker evaluated before, and calls that are
// refused again. It returns false if a worker must answer.
func (l *Loop) directly(from *engine.Call) (answered bool) {
	if r := l.refusals.quick(from); r != nil {
		c := &call{Call: *from, engine: l.engine, record: l.record}
		defer func() { answered = c.recovered(recover()) || answered }()
		c.finish(l.refusals.answer(c, r))
		return true
	}
	switch from.Syscall {
	case unix.SYS_EXECVE, unix.SYS_KILL, unix.SYS_TKILL, unix.SYS_TGKILL:
	default:
		if from.Check == nil || !from.Quick {
			return false
		}
	}
	if !l.swap.TryRLock() {
		return false // new rules are being committed
	}
	rules := l.rules
	l.swap.RUnlock()
	if !rules.Prompt {
		return false
	}
	c := &call{Call: *from, engine: l.engine, record: l.record, rules: rules, start: time.Now(), direct: true}
	defer func() { answered = c.recovered(recover()) || answered }()
	if c.Check != nil {
		c.Check()
		return true
	}
	a, err := l.dispatch(c)
	if errors.Is(err, errWaits) {
		return false
	}
	c.finish(a, err)
	return true
}

// errWaits means that a call cannot be answered directly.
var errWaits = errors.New("the answer may have to wait")

// handle answers one call, exactly once.
func (l *Loop) handle(c *call) {
	defer func() { c.recovered(recover()) }()
	if c.Check != nil {
		c.Check()
		return
	}
	c.finish(l.dispatch(c))
}

// dispatch passes a call to its handler.
func (l *Loop) dispatch(c *call) (answer, error) {
	if c.Arch != nativeArch {
		return noAnswer, fmt.Errorf("call of architecture %#x", c.Arch)
	}
	if c.Unjudged {
		l.execs.reportUnjudged(c.TID)
		return deny(unix.EPERM), nil
	}
	if refusal := l.refusals.of(c); refusal != nil {
		return l.refusals.answer(c, refusal)
	}
	if !l.refusals.table.Decides(c.Syscall, c.Args) {
		return deny(unix.ENOSYS), nil // a filter of the command's own stopped it: as without a tracer
	}
	if handle := l.handlers[c.Syscall]; handle != nil {
		return handle(c)
	}
	return noAnswer, fmt.Errorf("call %d has no handler", c.Syscall)
}

// recovered denies the call if its handler panicked with p. It reports whether it did.
func (c *call) recovered(p any) bool {
	if p == nil {
		return false
	}
	c.record.log.Error("panic while answering a call", "panic", p, "stack", string(debug.Stack()))
	c.fault(fmt.Errorf("panic: %v", p))
	return true
}

// tasks answers calls away from the workers: those that wait for a person, and execs
// whose interpreter is followed.
type tasks struct {
	ctx         context.Context // of the loop: calls may come before Run
	stop        context.CancelFunc
	running     sync.WaitGroup
	credentials *Credentials
	most        int64 // threads
	threads     atomic.Int64
}

func newTasks(credentials *Credentials, most int) *tasks {
	t := &tasks{credentials: credentials, most: int64(most)}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
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
		err := engine.OnThread(func() error {
			defer func() { c.recovered(recover()) }()
			defer finally()
			if err := t.credentials.Become(); err != nil {
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
