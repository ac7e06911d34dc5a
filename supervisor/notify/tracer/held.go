package tracer

import (
	"golang.org/x/sys/unix"

	"agentsh/supervisor/notify/engine"
)

// A thread that executes gets the number of the first thread of its process, which the kernel
// has killed. A request for the first thread may then reach the other one at its exec stop, and
// let a program run that nobody has checked. Linux refuses such a request until the exec stop
// was waited for (since 5.13, looks_like_a_spurious_pid in kernel/ptrace.c); gVisor carries it
// out. So nothing is requested of a first thread while an exec of another one is under way, which
// only this thread can let begin. A stop or an answer of then is held until that is over.

// held is what a first thread waits for: an answer to its call, or else what follows its stop.
type held struct {
	reply  *reply
	status unix.WaitStatus
}

// execs are the calls of execve that continue, and are not yet at their exec stop.
type execs struct {
	tasks   map[int]*task // by their threads
	over    bool          // one ended since the last look at what is held
	holding []*task       // with what is held
}

// set notes an execve that continues; nil: it is over.
func (e *execs) set(k *task, x engine.Execution) {
	k.exec = x
	switch {
	case x != nil:
		e.tasks[k.tid] = k
	case e.tasks[k.tid] == k:
		delete(e.tasks, k.tid)
		e.over = true
	}
}

// takeNumberOf reports whether an exec under way may give the number of a thread to another one.
func (e *execs) takeNumberOf(k *task) bool {
	for _, by := range e.tasks {
		if by != k && by.exec.Process() == k.tid {
			return true
		}
	}
	return false
}

func (e *execs) hold(k *task, h held) {
	k.held = &h
	e.holding = append(e.holding, k)
}

// release goes on with what is held if an exec is over.
func (t *thread) release() {
	if !t.execs.over {
		return
	}
	holding := t.execs.holding
	t.execs.over, t.execs.holding = false, nil
	for _, k := range holding {
		h := k.held
		if k.held = nil; h == nil {
			continue // it has ended
		}
		if h.reply != nil {
			t.apply(h.reply)
		} else {
			t.failed(t.stopped(k, h.status))
		}
	}
}

// discardHeld drops what is held of a thread that has ended.
func (k *task) discardHeld() {
	if k.held != nil && k.held.reply != nil {
		k.held.reply.discard()
	}
	k.held = nil
}
