package notify

import (
	"errors"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// handler answers one system call. An error denies the call: see [call.fault].
type handler func(*call) (answer, error)

// call is one system call that was stopped.
type call struct {
	engine.Call
	engine   engine.Engine
	record   *recorder
	rules    Rules
	start    time.Time // when it was received
	answered atomic.Bool
	// direct says that the thread of the engine answers the call: see [Loop.direct].
	direct bool
	// untimed says that the call is answered and its thread now waits for an exec,
	// which has no deadline.
	untimed atomic.Bool
}

// valid reports whether the thread still waits. Only then does memory that was read
// by its number belong to it.
func (c *call) valid() bool { return c.engine.Valid(c.ID) }

// errGone means that the calling thread has ended and no longer needs an
// answer.
var errGone = errors.New("the calling thread is gone")

// claim reports whether its caller must answer. It returns true once.
func (c *call) claim() bool { return c.answered.CompareAndSwap(false, true) }

// reply answers the call unless it is answered. It reports whether it did.
func (c *call) reply(a answer) bool {
	if a.File != nil {
		defer a.File.File.Close()
	}
	if a.Kind == engine.None || !c.claim() {
		return false
	}
	if a.act != nil {
		if errno := a.act(); errno != 0 {
			a = deny(errno)
		}
	}
	_ = c.send(a.Answer) // it is logged
	return true
}

// send passes the answer to the engine. Without an answer the thread stays
// stopped, which is a denial.
func (c *call) send(a engine.Answer) error {
	err := c.engine.Answer(c.ID, a)
	if err != nil && !errors.Is(err, engine.ErrGone) && !errors.Is(err, os.ErrClosed) {
		c.record.log.Error("answer a notification", "error", err)
	}
	return err
}

// finish replies what a handler returned.
func (c *call) finish(a answer, err error) {
	if err != nil {
		c.fault(err)
		return
	}
	c.reply(a)
}

// fault denies a call that could not be decided and writes a fault event. The
// caller gets the errno in err, or EACCES.
func (c *call) fault(err error) {
	if !c.claim() {
		return
	}
	errno := unix.EACCES
	if e := unix.Errno(0); errors.As(err, &e) && e != 0 && !errors.Is(err, target.ErrGone) {
		errno = e
	}
	gone := errors.Is(err, errGone) || errors.Is(err, target.ErrGone) || c.engine.Ended(c.ID)
	if errors.Is(c.send(engine.Deny(errno)), engine.ErrGone) || gone {
		return // the caller ended meanwhile, which is the probable cause
	}
	c.record.report(wire.Event{
		Type: wire.EventFault, Decision: "deny", Mechanism: "seccomp", Message: err.Error(), Process: &wire.Process{PID: c.TID},
	})
}

// answer is what a handler answers. Its zero value is [noAnswer].
type answer struct {
	engine.Answer
	// act is called once nobody else can answer the call. An errno other than 0
	// becomes the answer.
	act func() unix.Errno
}

var (
	// noAnswer says that the call has its answer, or gets it from another goroutine.
	noAnswer = answer{}
	// proceed lets the kernel carry the call out. It reads the arguments again.
	proceed = answer{Answer: engine.Answer{Kind: engine.Continue}}
	// success makes the call return 0 without running.
	success = answer{Answer: engine.Answer{Kind: engine.Value}}
)

// deny makes the call fail with errno.
func deny(errno unix.Errno) answer { return answer{Answer: engine.Deny(errno)} }

// fileAnswer adds a file to the calling thread. [call.reply] closes it.
func fileAnswer(d *engine.Descriptor) answer {
	return answer{Answer: engine.Answer{Kind: engine.File, File: d}}
}

// result is the answer of a call that was emulated: 0, or the errno in err. An
// error without an errno is returned.
func result(err error) (answer, error) {
	if err == nil {
		return success, nil
	}
	if errno, ok := errnoOf(err); ok {
		return deny(errno), nil
	}
	return noAnswer, err
}
