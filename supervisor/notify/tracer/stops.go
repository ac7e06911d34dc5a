package tracer

import (
	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// stopped handles the stop of a thread. An error ends the tracing of the command, which
// kills its processes.
func (t *thread) stopped(k *task, status unix.WaitStatus) error {
	const syscallStop = unix.SIGTRAP | 0x80
	event, signal := engine.Event(status), status.StopSignal()
	if event != unix.PTRACE_EVENT_EXEC && t.execs.takeNumberOf(k) {
		t.execs.hold(k, held{status: status})
		return nil
	}
	if t.engine.cfg.Cookie != 0 {
		if handled, err := t.trapStopped(k, event, signal); handled || err != nil {
			return err
		}
	}
	switch {
	case event == unix.PTRACE_EVENT_SECCOMP:
		return t.call(k)
	case event == unix.PTRACE_EVENT_EXEC:
		return t.executed(k)
	case event == engine.EventStop && engine.StopsProcess(signal): // also if its follower is about to let it go
		return t.request(unix.PTRACE_LISTEN, k, 0) // until SIGCONT, which is another stop
	case k.followed != nil:
		f := k.followed
		f.Stopped(k.tid, status)
		for _, left := range t.left {
			t.unfollow(left)
		}
		t.left = nil
		return nil
	case signal == syscallStop:
		return t.syscallStop(k)
	case event != 0: // a new thread, or one that made another
		t.noteChild(k, event)
		return t.resume(k, 0)
	default:
		if err := k.ignored.Stopped(k.tid, signal); failed(err) {
			return err
		}
		return t.resume(k, signal)
	}
}

// noteChild notes the thread that k made. It stops next, and a wait for it needs no walk. See
// wait.go. The kernel may give its number in another pid namespace, which costs time only.
func (t *thread) noteChild(k *task, event int) {
	if event == engine.EventStop || len(t.tasks) <= shortWalk {
		return
	}
	if child, err := engine.EventMessage(k.tid); err == nil {
		t.recent.add(child)
	}
}

// request makes a ptrace request. A thread that was killed meanwhile ends soon.
func (t *thread) request(number int, k *task, data uintptr) error {
	if err := engine.Ptrace(number, k.tid, data); failed(err) {
		return describe("resume", k.tid, err)
	}
	return nil
}

// resume lets a thread run. If it is in an execve, it stops when that fails.
func (t *thread) resume(k *task, signal unix.Signal) error {
	if k.exec != nil || k.followed != nil {
		return t.request(unix.PTRACE_SYSCALL, k, uintptr(signal))
	}
	return t.request(unix.PTRACE_CONT, k, uintptr(signal))
}

// call passes a call to the workers.
func (t *thread) call(k *task) error {
	if k.exec != nil { // it has failed, and the exit was not seen
		t.failedExec(k)
	}
	regs, err := target.ReadRegisters(k.tid)
	if failed(err) {
		t.strike(k.tid)
		t.engine.cfg.Log.Error("a process was killed: its call cannot be read", "error", describe("read", k.tid, err))
		return nil
	}
	if err != nil {
		return nil
	}
	k.regs, k.call = regs, t.engine.add(t, k.tid)
	c := engine.Call{Notification: engine.Notification{ID: k.call, TID: k.tid, Arch: nativeArch}}
	c.Syscall, c.Args = regs.Call()
	if polls(c.Syscall, c.Args) {
		t.poll(k.call)
		return nil
	}
	t.send(c)
	return nil
}

// send has a call or an exec stop answered: at once, or by a worker.
func (t *thread) send(c engine.Call) {
	if direct := t.engine.direct; direct != nil && !t.closing && direct(&c) {
		return
	}
	select {
	case t.engine.work <- c:
	case <-t.engine.done: // the processes are killed soon
	}
}

// failedExec ends an execve that did not execute a program.
func (t *thread) failedExec(k *task) {
	k.exec.Done()
	t.execs.set(k, nil)
}

// syscallStop handles the exit of an execve that failed.
func (t *thread) syscallStop(k *task) error {
	if k.exec != nil {
		regs, err := target.ReadRegisters(k.tid)
		if err == nil && !regs.Entered() {
			t.failedExec(k)
		}
	}
	return t.resume(k, 0)
}

// executed has the program of a process checked that is stopped at its exec. Other threads
// of the process have ended. The one that executed has the number of the process now.
func (t *thread) executed(k *task) error {
	former, err := engine.EventMessage(k.tid)
	if err != nil {
		t.strike(k.tid) // it was killed, or is now
		return nil
	}
	by := k
	if former != k.tid {
		if by = t.tasks[former]; by == nil {
			by = &task{tid: former}
		}
	}
	x := by.exec
	t.execs.set(by, nil)
	if by != k {
		t.forget(by)
	}
	t.engine.drop(k.call) // of the first thread, which has ended
	k.discardHeld()
	k.call, k.trapped, k.repeat = 0, 0, repeat{}
	if k.exec != nil {
		t.failedExec(k)
	}
	t.unfollow(k)
	if x == nil {
		k.regs, k.isExec, k.call = nil, true, t.engine.add(t, k.tid)
		c := engine.Call{Notification: engine.Notification{ID: k.call, TID: k.tid, Arch: nativeArch}, Unjudged: true}
		t.send(c)
		return nil
	}
	regs, err := target.ReadRegisters(k.tid)
	if err != nil {
		if failed(err) { // it was not killed
			x.Killed(describe("read", k.tid, err))
		}
		x.Done()
		t.strike(k.tid)
		return nil
	}
	k.regs, k.isExec, k.call = regs, true, t.engine.add(t, k.tid)
	id, p := k.call, engine.Program{PID: k.tid, Registers: regs}
	t.send(engine.Call{
		Notification: engine.Notification{ID: id, TID: k.tid, Arch: nativeArch},
		Check:        func() { t.engine.check(id, p, x) },
		Quick:        x.Quick(),
	})
	return nil
}

// apply carries out an answer.
func (t *thread) apply(r *reply) {
	if r.id == 0 {
		t.kill()
		return
	}
	k := t.tasks[r.tid]
	if k == nil || k.call != r.id {
		r.discard()
		return
	}
	if !k.isExec && t.execs.takeNumberOf(k) {
		t.execs.hold(k, held{reply: r})
		return
	}
	k.call = 0
	var err error
	switch {
	case k.isExec:
		k.isExec = false
		err = t.start(k, r)
	case k.trapped != 0:
		err = t.answerTrapped(k, r)
	case r.answer.Kind == engine.Continue:
		t.execs.set(k, r.execution)
		err = t.resume(k, 0)
	default:
		result := r.answer.Value
		if r.answer.Kind != engine.Value {
			result = -int64(r.answer.Errno)
		}
		if err = k.regs.Skip(k.tid, result); !failed(err) {
			err = t.resume(k, 0)
		}
	}
	if failed(err) {
		t.engine.cfg.Log.Error("a process was killed: an answer could not be carried out", "error", err)
		t.strike(k.tid)
	}
}

// start lets the program run that was checked, or kills it.
func (t *thread) start(k *task, r *reply) error {
	if r.answer.Kind != engine.Continue || k.regs == nil { // nil: nobody permitted the exec
		t.strike(k.tid)
		r.discard()
		return nil
	}
	if err := k.regs.Write(k.tid); err != nil { // the environment may have moved the stack
		r.discard()
		return err
	}
	if r.follower == nil {
		return t.resume(k, 0)
	}
	f := &followed{Follower: r.follower, pid: k.tid}
	t.follow(k, f)
	if err := f.Begin(k.tid, t); err != nil {
		t.unfollow(k)
		return err
	}
	return nil
}

// AddsFiles reports false: see [Engine.AddsFiles].
func (t *thread) AddsFiles() bool { return false }

// SetOptions sets the options of a followed thread.
func (t *thread) SetOptions(tid, more int) error {
	return engine.Ptrace(unix.PTRACE_SETOPTIONS, tid, uintptr(options|more))
}

// Detach ends the following of a stopped thread and lets it run.
func (t *thread) Detach(tid, signal int) error {
	k := t.tasks[tid]
	if k == nil {
		return unix.ESRCH
	}
	f := k.followed
	k.followed = nil
	if err := t.resume(k, unix.Signal(signal)); err != nil {
		k.followed = f
		return err
	}
	k.followed = f
	t.left = append(t.left, k)
	return nil
}
