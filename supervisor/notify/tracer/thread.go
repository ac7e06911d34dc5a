package tracer

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// thread traces the processes of one command. Its fields without mu are for the thread
// itself.
type thread struct {
	engine   *Engine
	bell     bell
	tasks    map[int]*task
	execs    execs
	follows  int // tasks with a follower
	closing  bool
	unkilled error   // a tracee that must not go on could not be killed
	left     []*task // detached by their follower, which has not returned
	recent   recent
	polls    []uint64 // calls that wait until no event is left; see wait.go
	before   int      // events until they go on at the latest

	mu      sync.Mutex
	replies []reply
	waiting bool // the bell ends its wait
	ended   bool // nobody carries out replies any more
}

// task is one traced thread.
type task struct {
	tid      int
	call     uint64            // that it is stopped in; 0: none
	regs     *target.Registers // of that call
	exec     engine.Execution  // continued, and not yet at its exec stop
	isExec   bool              // it is stopped at an exec
	followed *followed         // nil: nothing follows it
	trapped  int               // the call whose SIGSYS it is stopped at; 0: none
	held     *held             // nil: nothing
	ignored  target.IgnoredSignals
	repeat   repeat // of a trapped call
}

// followed counts the threads that a follower has.
type followed struct {
	engine.Follower
	threads int
	pid     int
}

// reply is an answer for the thread to carry out. Without an id the engine is closed.
type reply struct {
	tid       int
	id        uint64
	answer    engine.Answer
	execution engine.Execution
	follower  engine.Follower
}

// discard ends what the reply would have begun.
func (r *reply) discard() {
	if r.execution != nil {
		r.execution.Done()
	}
	if r.follower != nil {
		r.follower.Done()
	}
}

// options are set for every traced thread. If the supervisor dies, the kernel kills them.
const options = unix.PTRACE_O_TRACESECCOMP | unix.PTRACE_O_TRACEEXEC | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK |
	unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_EXITKILL

// begin attaches to the first process.
func (t *thread) begin(pid int) error {
	if err := t.engine.cfg.As.Become(); err != nil {
		return err
	}
	if err := t.bell.open(); err != nil {
		t.bell.remove()
		return err
	}
	if err := engine.Seize(pid, options); err != nil {
		t.bell.remove()
		return describe("trace", pid, err)
	}
	t.tasks[pid] = &task{tid: pid}
	return nil
}

// post has the thread carry out an answer.
func (t *thread) post(r reply) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		r.discard()
		return
	}
	t.replies = append(t.replies, r)
	if t.waiting {
		t.waiting = false
		t.bell.ring()
	}
}

// end forgets the thread, whose tracees have ended.
func (t *thread) end() {
	t.engine.mu.Lock()
	delete(t.engine.live, t)
	t.engine.mu.Unlock()
	t.mu.Lock()
	t.ended = true
	replies := t.replies
	t.replies = nil
	t.mu.Unlock()
	for i := range replies {
		replies[i].discard()
	}
	for _, k := range t.tasks {
		t.forget(k)
	}
}

// run handles stops and answers until every tracee has ended. The thread must not end
// before: that would kill them, and nobody would wait for the bell. It does so where a tracee
// cannot be killed otherwise.
func (t *thread) run() {
	for {
		t.carryOut()
		if t.unkilled != nil { // the end of this thread kills its tracees
			t.engine.cfg.Log.Error("a command is killed", "error", t.unkilled)
			return
		}
		var status unix.WaitStatus
		tid, err := t.wait(&status)
		t.mu.Lock()
		t.waiting = false
		t.mu.Unlock()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // ECHILD
			return
		case tid == 0:
			t.endPolls()
		case tid == t.bell.pid && tid != 0:
			err = t.bellStopped(status)
		default:
			err = t.handle(tid, status)
		}
		t.failed(err)
	}
}

// failed kills the command after an error that ends its tracing.
func (t *thread) failed(err error) {
	if err != nil && !t.closing {
		t.engine.cfg.Log.Error("a command is killed: it cannot be traced any more", "error", err)
		t.kill()
	}
}

// kill kills every tracee, and those that begin from now on.
func (t *thread) kill() {
	t.closing = true
	for tid := range t.tasks {
		t.strike(tid)
	}
}

// strike kills the process of a thread.
func (t *thread) strike(tid int) {
	if err := engine.Kill(tid); err != nil {
		t.unkilled = err
	}
}

// carryOut carries out all answers. When it returns, the bell rings for the next one.
func (t *thread) carryOut() {
	for {
		t.release()
		t.mu.Lock()
		replies := t.replies
		t.replies = nil
		t.waiting = len(replies) == 0
		t.mu.Unlock()
		if len(replies) == 0 {
			return
		}
		for i := range replies {
			t.apply(&replies[i])
		}
	}
}

// bellStopped handles a stop or the end of the bell.
func (t *thread) bellStopped(status unix.WaitStatus) error {
	if status.Stopped() {
		t.bell.rang()
		return nil
	}
	t.mu.Lock() // nobody may ring it any more
	t.bell.ended()
	t.mu.Unlock()
	if len(t.tasks) > 0 { // a process began meanwhile, or somebody killed the bell
		return t.reopenBell()
	}
	return nil
}

// handle handles one event of a tracee.
func (t *thread) handle(tid int, status unix.WaitStatus) error {
	k := t.tasks[tid]
	if !status.Stopped() {
		t.recent.remove(tid)
		if k != nil {
			t.forget(k)
		}
		t.forgetExecs(tid)
		if len(t.tasks) == 0 && t.bell.pid != 0 {
			t.bell.stop() // a thread that was just made is seen before ECHILD
		}
		return nil
	}
	if k == nil {
		k = t.adopt(tid)
		if t.bell.pid == 0 {
			if err := t.reopenBell(); err != nil {
				return err
			}
		}
	}
	if t.closing {
		t.strike(tid)
	}
	t.recent.add(tid)
	return t.stopped(k, status)
}

func (t *thread) reopenBell() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.bell.open()
}

// adopt notes a new thread. Its process may have a follower.
func (t *thread) adopt(tid int) *task {
	k := &task{tid: tid}
	t.tasks[tid] = k
	if t.follows > 0 {
		if view, err := target.OpenView(tid); err == nil {
			id, err := view.Identity()
			view.Close()
			if leader := t.tasks[id.PID]; err == nil && leader != nil && leader.followed != nil && leader != k {
				t.follow(k, leader.followed)
			}
		}
	}
	return k
}

func (t *thread) follow(k *task, f *followed) {
	k.followed = f
	f.threads++
	t.follows++
}

// unfollow ends the following of one thread.
func (t *thread) unfollow(k *task) {
	f := k.followed
	if f == nil {
		return
	}
	k.followed = nil
	t.follows--
	if f.threads--; f.threads == 0 {
		f.Done()
	}
}

// forgetExecs removes the threads of a process that has ended which had become its first
// one by an exec, and were killed before its stop. The kernel reports their end under the
// number of the process. The end of their own number says nothing: it comes before the stop.
func (t *thread) forgetExecs(pid int) {
	for tid, k := range t.execs.tasks {
		if tid != pid && k.exec.Process() == pid {
			t.forget(k)
		}
	}
}

// forget removes a thread that has ended.
func (t *thread) forget(k *task) {
	if t.tasks[k.tid] == k {
		delete(t.tasks, k.tid)
	}
	t.engine.drop(k.call)
	k.discardHeld()
	if k.exec != nil {
		t.failedExec(k)
	}
	if k.followed != nil {
		k.followed.Ended(k.tid)
		t.unfollow(k)
	}
}
