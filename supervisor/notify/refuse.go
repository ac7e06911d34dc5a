package notify

import (
	"slices"

	"agentsh/internal/wire"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
)

// refuse answers a call that sessions refuse, unless it is excepted. Only the
// first of a kind costs more than the answer: a command can make millions.
func (w *worker) refuse(c *call, r *seccomp.ToldRefusal) error {
	harmless, err := w.excepted(c, r)
	if err != nil {
		return err
	}
	if harmless {
		w.goOn(c)
		return nil
	}
	if _, told := w.loop.told.LoadOrStore(r, true); !told {
		w.loop.emit(w.refusalEvent(c, r)) // first: what follows from the answer comes later in the log
	}
	c.deny(r.Errno)
	return nil
}

// excepted reports whether a call is one that its refusal is not about: numbers
// say so, and the process that they name is the one that waits.
func (w *worker) excepted(c *call, r *seccomp.ToldRefusal) (bool, error) {
	if len(r.Own) == 0 {
		return slices.Contains(r.Values, uint64(uint32(c.Args[0]))), nil
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return false, err
	}
	defer t.Close()
	for _, arg := range r.Own {
		number := int(int32(c.Args[arg]))
		if number == 0 {
			continue // the caller, or nobody
		}
		if _, own, err := t.Own(number); err != nil || !own {
			return false, err
		}
	}
	if !c.valid() {
		return false, errGone
	}
	return true, nil
}

func (w *worker) refusalEvent(c *call, r *seccomp.ToldRefusal) wire.Event {
	e := wire.Event{
		Type: wire.EventCall, Session: w.loop.cfg.Session, Op: r.Name, Decision: "deny", Mechanism: "seccomp",
		Message: "no session has it: " + r.Reason,
		Hint:    "the log tells of the first such call of a session; what depends on it belongs outside",
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return e // it is refused all the same
	}
	defer t.Close()
	if p, command, err := w.who(t); err == nil {
		e.Process, e.Command = &p, command
	}
	return e
}
