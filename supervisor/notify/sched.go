package notify

import (
	"errors"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// The calls below set the scheduling of one thread or process. They are decided on
// numbers, as signals are. They are notified where the session has no pid
// namespace: threads of other processes of the user, of the session init first,
// are none of its commands'.

// schedule is the calls that take the number first.
func (w *worker) schedule(c *call) error { return w.thread(c, int(int32(c.Args[0]))) }

// priority is the calls that take it second.
func (w *worker) priority(c *call) error { return w.thread(c, int(int32(c.Args[1]))) }

// thread lets a call go on when a number means a thread of the session.
func (w *worker) thread(c *call, number int) error {
	if number < 0 {
		c.deny(unix.ESRCH)
		return nil
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return err
	}
	defer t.Close()
	s, err := w.loop.sender(t)
	if err != nil {
		return err
	}
	if number != 0 { // 0 in the low half of the register is the caller itself
		p, err := t.Peer(number)
		if errors.Is(err, unix.ESRCH) {
			c.deny(unix.ESRCH)
			return nil
		}
		if err != nil {
			return err
		}
		if p.PID != s.self.PID && !s.inside(p) {
			c.deny(unix.EPERM)
			return nil
		}
	}
	if !c.valid() {
		return errGone
	}
	if c.claim() {
		c.answer(w.loop.cfg.Listener.Continue(c.ID))
	}
	return nil
}
