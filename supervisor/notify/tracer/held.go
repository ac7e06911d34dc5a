package tracer

import "golang.org/x/sys/unix"

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

// mayLoseNumber reports whether an exec under way may give the number of a thread to another one.
func (t *thread) mayLoseNumber(k *task) bool {
	for _, by := range t.execs {
		if by != k && by.exec.Process() == k.tid {
			return true
		}
	}
	return false
}

func (t *thread) hold(k *task, h held) {
	k.held = &h
	t.holding = append(t.holding, k)
}

// release goes on with what is held if an exec is over.
func (t *thread) release() {
	if !t.execOver {
		return
	}
	t.execOver = false
	holding := t.holding
	t.holding = nil
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
