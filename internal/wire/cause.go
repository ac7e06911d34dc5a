package wire

import "slices"

// Cause is why a session ended. The last event of the session has it, and the exit of
// each command that it ended.
type Cause string

// The causes.
const (
	CauseClosed         Cause = "closed"
	CauseLifetime       Cause = "lifetime"
	CauseSessionTimeout Cause = "session_timeout"
	CauseIdleTimeout    Cause = "idle_timeout"
	CauseSupervisor     Cause = "supervisor_died" // no event has it: clients and readers of the log find it
	CauseInit           Cause = "init_died"
	CauseFileServer     Cause = "file_server_died"
	CauseFileServerHung Cause = "file_server_hung"
	CauseMessage        Cause = "bad_message"
	CauseAudit          Cause = "audit_not_written"
	CauseDescriptors    Cause = "no_descriptors"
	CauseMemory         Cause = "no_memory"
	CauseThreads        Cause = "no_threads"
	CauseNotifications  Cause = "notifications_failed"
	CauseNetwork        Cause = "network_failed"
	CauseReload         Cause = "reload_failed"
)

// Ending says what a cause means to the caller of a command.
type Ending struct {
	Cause    Cause
	Sentence string // follows "the session has ended: "
	Hint     string
	Kind     string // of the exits of commands that the end of the session ended
}

const again = "start a new session and repeat the command; the end of the audit log has the details"

// Endings is the table of all causes.
func Endings() []Ending {
	return []Ending{
		{CauseClosed, "its owner closed it", "start a new session", ExitLost},
		{CauseLifetime, "its lifetime is over", "start a session with a longer --timeout", ExitDeadline},
		{CauseSessionTimeout, "its session_timeout is over", "raise resource_limits.session_timeout in the policy", ExitDeadline},
		{CauseIdleTimeout, "its idle_timeout is over", "start a new session, or raise resource_limits.idle_timeout in the policy", ExitLost},
		{CauseSupervisor, "its supervisor was killed or crashed",
			"'dmesg' says whether the kernel killed it for want of memory; the log beside the session's socket has a crash", ExitLost},
		{CauseInit, "its first process died", again, ExitLost},
		{CauseFileServer, "its file server died", again + "; what was synced to disk is there", ExitLost},
		{CauseFileServerHung, "its file server did not answer and was killed", again + "; a disk or network file system may hang", ExitLost},
		{CauseMessage, "a message between its processes was malformed", again, ExitLost},
		{CauseAudit, "its audit log could not be written",
			"free space on the disk of the audit log and repeat the command, or name a file on another one with --audit", ExitLost},
		{CauseDescriptors, "its supervisor had no descriptor left", "raise the limit with 'ulimit -n', and LimitNOFILE of a service", ExitLost},
		{CauseMemory, "its supervisor had no memory left", "give the machine or the control group of the supervisor more memory", ExitLost},
		{CauseThreads, "its supervisor could start no thread", "raise the limit of processes: 'ulimit -u', or pids of the container", ExitLost},
		{CauseNotifications, "the calls of its commands could not be answered any more", again, ExitLost},
		{CauseNetwork, "its proxy or its name server failed", again, ExitLost},
		{CauseReload, "a reload of its policy failed when the files had a part of it", again, ExitLost},
	}
}

// Ending returns what a cause means. The zero value is of an unknown cause.
func (c Cause) Ending() Ending {
	all := Endings()
	if i := slices.IndexFunc(all, func(e Ending) bool { return e.Cause == c }); i >= 0 {
		return all[i]
	}
	return Ending{Cause: c, Sentence: "the cause is " + string(c), Kind: ExitLost}
}

// Exit is the exit of a command that the end of its session ended. detail is what is
// known besides the cause; it may be empty.
func (c Cause) Exit(detail string) Exit {
	e := c.Ending()
	return Exit{Kind: e.Kind, Message: c.Sentence(detail), Hint: e.Hint, Cause: c}
}

// Sentence says that a session has ended, and why.
func (c Cause) Sentence(detail string) string {
	said := "the session has ended: " + c.Ending().Sentence
	if detail != "" {
		said += ": " + detail
	}
	return said
}
