package notify

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
)

// refusals answers the calls that sessions refuse whatever the policy says.
type refusals struct {
	table    seccomp.Table
	images   *images
	record   *recorder
	recorded sync.Map // *seccomp.RefusedCall that has its event
}

// of returns the refusal that is about a call, or nil.
func (h *refusals) of(c *call) *seccomp.RefusedCall { return h.table.Of(c.Syscall, c.Args) }

// answer refuses a call unless it is excepted. Only the first call of a kind makes an
// event: a command can make millions.
func (h *refusals) answer(c *call, r *seccomp.RefusedCall) (answer, error) {
	harmless, err := excepted(c, r)
	if err != nil {
		return noAnswer, err
	}
	if harmless {
		return proceed, nil
	}
	if _, known := h.recorded.LoadOrStore(r, true); !known {
		h.record.report(h.event(c, r)) // before the answer: its consequences come later in the log
	}
	return deny(r.Errno), nil
}

// excepted reports whether a call is an exception of its refusal: its arguments say
// so, or the processes that they name are the caller itself.
func excepted(c *call, r *seccomp.RefusedCall) (bool, error) {
	if o := r.Owner; o != nil {
		uid, gid := int(int32(c.Args[r.First])), int(int32(c.Args[r.First+1]))
		return (uid == -1 || uid == o.UID) && (gid == -1 || gid == o.GID), nil
	}
	if len(r.Self) == 0 {
		return slices.Contains(r.Values, uint64(uint32(c.Args[0]))), nil
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return false, err
	}
	defer t.Close()
	for _, arg := range r.Self {
		number := int(int32(c.Args[arg]))
		if number == 0 {
			continue // the caller, or nobody
		}
		if _, own, err := t.Identify(number); err != nil || !own {
			return false, err
		}
	}
	if !c.valid() {
		return false, errGone
	}
	return true, nil
}

func (h *refusals) event(c *call, r *seccomp.RefusedCall) wire.Event {
	e := wire.Event{
		Type: wire.EventCall, Op: r.Name, Decision: "deny", Mechanism: "seccomp",
		Message: "no session has it: " + r.Reason,
		Hint:    "the log tells of the first such call of a session; what depends on it belongs outside",
	}
	t, err := target.OpenView(c.TID)
	if err != nil {
		return e // it is refused all the same
	}
	defer t.Close()
	if p, command, err := h.images.identify(t); err == nil {
		e.Process, e.Command = &p, command
	}
	return e
}

// memoryFile answers memfd_create without MFD_NOEXEC_SEAL. The filter notifies it only
// for policies with exec_from, and it is always refused.
func (h *refusals) memoryFile(c *call) (answer, error) {
	t, err := target.OpenView(c.TID)
	if err != nil {
		return noAnswer, err
	}
	defer t.Close()
	id, err := t.Identity()
	if err != nil {
		return noAnswer, err
	}
	if !c.valid() {
		return noAnswer, errGone
	}
	e := wire.Event{
		Type: wire.EventFile, Op: "memfd_create", Decision: "deny", Mechanism: "seccomp", Process: process(t, id),
		Message: "an executable memory file has no path that exec_from could judge",
		Hint:    "make it with MFD_NOEXEC_SEAL",
	}
	if caller, err := h.images.of(t, id); err == nil {
		e.Command = caller.command.ID
	}
	h.record.report(e)
	return deny(unix.EPERM), nil
}
