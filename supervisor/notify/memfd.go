package notify

import (
	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/seccomp/target"
)

// memoryFile is memfd_create without MFD_NOEXEC_SEAL, which only policies with
// exec_from have notified: it is refused whatever else is known.
func (w *worker) memoryFile(c *call) error {
	t, err := target.OpenView(c.TID)
	if err != nil {
		return err
	}
	defer t.Close()
	id, err := t.Identity()
	if err != nil {
		return err
	}
	if !c.valid() {
		return errGone
	}
	e := wire.Event{
		Type: wire.EventFile, Session: w.loop.cfg.Session, Op: "memfd_create", Decision: "deny", Mechanism: "seccomp",
		Process: &wire.Process{PID: id.PID, StartTime: id.Start, Exe: t.Exe(), Cwd: t.Cwd()},
		Message: "an executable memory file has no path that exec_from could judge",
		Hint:    "make it with MFD_NOEXEC_SEAL",
	}
	if caller, err := w.loop.images.of(t, id); err == nil {
		e.Command = caller.command.ID
	}
	w.loop.emit(e)
	c.deny(unix.EPERM)
	return nil
}
