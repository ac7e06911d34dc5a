package probe

import (
	"golang.org/x/sys/unix"

	"agentsh/internal/silence"
)

// ErrSilent is in the chain of the error of a trial whose call gets no answer from the
// listener of another supervisor. Further trials would wait as long.
var ErrSilent = silence.Err

// prompt are calls that trials make. They never wait for a lock or a disk, so a thread waits in
// one only because a listener stopped it.
var prompt = map[int]string{
	unix.SYS_KILL: "kill", unix.SYS_TKILL: "tkill", unix.SYS_TGKILL: "tgkill", unix.SYS_PIDFD_SEND_SIGNAL: "pidfd_send_signal",
	unix.SYS_BIND: "bind", unix.SYS_LISTEN: "listen",
}

// watchSilence begins to look for a call without an answer in the process of a trial and in the
// processes that it started. It ends the process where it finds one. The caller calls End.
func (p *process) watchSilence(names map[int]string) *silence.Watch {
	return silence.Process(p.server.PID(), names, p.server.Kill)
}
