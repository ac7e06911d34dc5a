package notify

import (
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// refusals answers the calls that sessions refuse whatever the policy says.
type refusals struct {
	table  seccomp.Table
	images *images
	record *recorder

	mu       sync.Mutex
	recorded map[refusal]bool       // those that have their event
	threads  map[refusalThread]bool // that made them since the last command began
}

func newRefusals(table seccomp.Table, images *images, record *recorder) *refusals {
	return &refusals{table: table, images: images, record: record, recorded: map[refusal]bool{}, threads: map[refusalThread]bool{}}
}

// refusal is a kind of refused call, made by a command; nil: its command is not known.
type refusal struct {
	call    *seccomp.RefusedCall
	command *command
}

// refusalThread is a kind of refused call, made by a thread. A thread that repeats it need
// not be identified again.
type refusalThread struct {
	call *seccomp.RefusedCall
	tid  int
}

// maxRecorded bounds what is remembered of commands and threads that have ended.
const maxRecorded = 4096

// of returns the refusal that is about a call, or nil.
func (h *refusals) of(c *call) *seccomp.RefusedCall { return h.table.Of(c.Syscall, c.Args) }

// quick returns the refusal of a call that needs no worker: it has its event, or its
// registers except it. Otherwise it returns nil.
func (h *refusals) quick(from *engine.Call) *seccomp.RefusedCall {
	if from.Check != nil || from.Unjudged || from.Arch != nativeArch {
		return nil
	}
	r := h.table.Of(from.Syscall, from.Args)
	if r == nil || len(r.Self) > 0 {
		return nil
	}
	harmless, err := excepted(&call{Call: *from}, r)
	if err == nil && harmless || h.repeats(refusalThread{r, from.TID}) {
		return r
	}
	return nil
}

// answer refuses a call unless it is excepted. Only the first call of a kind in a command
// makes an event: a command can make millions.
func (h *refusals) answer(c *call, r *seccomp.RefusedCall) (answer, error) {
	harmless, err := excepted(c, r)
	if err != nil {
		return noAnswer, err
	}
	if harmless {
		return proceed, nil
	}
	h.report(c, r) // before the answer: its consequences come later in the log
	return deny(r.Errno), nil
}

// report writes the event of a refused call. A caller that cannot be described is
// refused all the same.
func (h *refusals) report(c *call, r *seccomp.RefusedCall) {
	thread := refusalThread{r, c.TID}
	if h.repeats(thread) {
		return
	}
	kind := refusal{call: r}
	var id target.Identity
	t, err := target.OpenView(c.TID)
	if err == nil {
		defer t.Close()
		if id, err = t.Identity(); err == nil {
			if caller, err := h.images.of(t, id); err == nil {
				kind.command = caller.command
			}
		}
	}
	if h.known(kind, thread) {
		return
	}
	e := wire.Event{
		Type: wire.EventCall, Op: r.Name, Decision: "deny", Mechanism: "seccomp",
		Message: "no session has it: " + r.Reason,
		Hint:    "what depends on it belongs outside; the log has the first such call of each command",
	}
	if r.Name == "ptrace" {
		e.Hint = "strace, gdb and other tracers work outside of sessions only; the log has the programs that a command starts"
	}
	if kind.command != nil {
		e.Command = kind.command.ID
	}
	if err == nil {
		e.Process = process(t, id)
	}
	h.record.report(e)
}

// begin forgets threads, as a new command can have their numbers.
func (h *refusals) begin() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.threads)
}

func (h *refusals) repeats(t refusalThread) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.threads[t]
}

// known notes a refusal and reports whether it was noted before.
func (h *refusals) known(r refusal, t refusalThread) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.threads) >= maxRecorded {
		clear(h.threads)
	}
	h.threads[t] = true
	if h.recorded[r] {
		return true
	}
	if len(h.recorded) >= maxRecorded {
		clear(h.recorded)
	}
	h.recorded[r] = true
	return false
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
