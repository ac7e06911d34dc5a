// Package listener is the engine of a seccomp listener: calls are notified, and answered
// through the listener. An execve that goes ahead is traced by the thread that answers it,
// until it has been checked (trace.go). See seccomp_unotify(2).
package listener

import (
	"fmt"

	"agentsh/seccomp"
	"agentsh/supervisor/notify/engine"
)

// Name is the name of this engine.
const Name = "listener"

// Engine is the engine of a listener.
type Engine struct{ listener *seccomp.Listener }

// New returns the engine of a listener. [Engine.Close] closes the listener.
func New(l *seccomp.Listener) *Engine {
	engine.IgnoreStops()
	return &Engine{l}
}

// Name is "listener".
func (e *Engine) Name() string { return Name }

// AddsFiles reports true.
func (e *Engine) AddsFiles() bool { return true }

// HoldsThread reports true: the caller of Execute traces the process.
func (e *Engine) HoldsThread() bool { return true }

// Begin does nothing: the filter was loaded before.
func (e *Engine) Begin(int) error { return nil }

// Receive waits for the next notification.
func (e *Engine) Receive(c *engine.Call) error { return e.listener.Receive(&c.Notification) }

// Valid reports whether a notification waits for its answer.
func (e *Engine) Valid(id uint64) bool { return e.listener.Valid(id) }

// Ended reports whether the thread has ended.
func (e *Engine) Ended(id uint64) bool { return !e.listener.Valid(id) }

// Close closes the listener. Calls that are notified later fail in their threads with
// ENOSYS.
func (e *Engine) Close() error { return e.listener.Close() }

// Answer answers a notification.
func (e *Engine) Answer(id uint64, a engine.Answer) error {
	switch a.Kind {
	case engine.Continue:
		return e.listener.Continue(id)
	case engine.Value:
		return e.listener.Value(id, a.Value)
	case engine.File:
		return e.addFile(id, a.File)
	default:
		return e.listener.Deny(id, a.Errno)
	}
}

// addFile adds a descriptor to the calling thread and makes the call return it. An
// errno, as of a full table of descriptors, becomes the answer.
func (e *Engine) addFile(id uint64, d *engine.Descriptor) error {
	// A number that somebody waits for is stored before the call returns.
	atOnce := d.Added == nil
	n, err := e.listener.AddFD(id, seccomp.AddFD{FD: int(d.File.Fd()), Number: -1, Exec: d.Exec, Send: atOnce})
	if errno, ok := engine.ErrnoOf(err); ok {
		return e.listener.Deny(id, errno)
	}
	if err != nil || atOnce {
		return err
	}
	d.Added.Store(int64(n))
	return e.listener.Value(id, int64(n))
}

// Execute lets the exec go ahead under ptrace, and has the new program checked before it
// runs. The interrupt is requested before the call continues. So exactly one stop follows:
// at the exec if that succeeds, and with the errno set if it fails. See PTRACE_SEIZE in
// ptrace(2).
func (e *Engine) Execute(c *engine.Call, x engine.Execution) error {
	t := &tracer{}
	defer x.Done()
	if err := t.seize(c.TID); err != nil {
		return err
	}
	defer func() {
		if p := recover(); p != nil {
			x.Fail(fmt.Errorf("panic: %v", p)) // an unanswered thread does not stop
			t.abandon()
			panic(p)
		}
	}()
	err := engine.ErrGone
	if e.Valid(c.ID) {
		err = engine.Interrupt(c.TID)
	}
	if err == nil && x.Proceed() {
		t.complete(x)
		return nil
	}
	x.Fail(err)
	t.release()
	return nil
}
