package notify

import (
	"errors"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// The calls below set the scheduling of one thread or process. They are decided by numbers,
// as signals are. They are notified only where the session has no pid namespace: threads
// of other processes, above all of the session init, must not be changed.

// schedule answers the calls whose first argument is the number.
func (h *signals) schedule(c *call) (answer, error) { return h.thread(c, int(int32(c.Args[0]))) }

// priority answers the calls whose second argument is the number.
func (h *signals) priority(c *call) (answer, error) { return h.thread(c, int(int32(c.Args[1]))) }

// thread lets a call go on if the number means a thread of the session.
func (h *signals) thread(c *call, number int) (answer, error) {
	if number < 0 {
		return deny(unix.ESRCH), nil
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return noAnswer, err
	}
	defer t.Close()
	s, err := h.sender(t)
	if err != nil {
		return noAnswer, err
	}
	if number != 0 { // 0 in the low half of the register is the caller itself
		p, err := t.Peer(number)
		if errors.Is(err, unix.ESRCH) {
			return deny(unix.ESRCH), nil
		}
		if err != nil {
			return noAnswer, err
		}
		if p.PID != s.self.PID && !s.inside(p) {
			return deny(unix.EPERM), nil
		}
	}
	if !c.valid() {
		return noAnswer, errGone
	}
	return proceed, nil
}
