package supervisor

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

// ErrEnded is in the chain of every error of a session that has ended.
var ErrEnded = errors.New("the session has ended")

// Ended is the error of a session that has ended. [ErrEnded] is in its chain.
type Ended struct {
	Cause  wire.Cause
	Reason error // nil: the cause says everything
}

func (e *Ended) Error() string { return e.Cause.Sentence(e.detail()) }

func (e *Ended) detail() string {
	if e.Reason == nil {
		return ""
	}
	return e.Reason.Error()
}

// Unwrap returns ErrEnded and the reason.
func (e *Ended) Unwrap() []error {
	if e.Reason == nil {
		return []error{ErrEnded}
	}
	return []error{ErrEnded, e.Reason}
}

// exit is the exit of a command that this end of the session ended.
func (e *Ended) exit() wire.Exit { return e.Cause.Exit(e.detail()) }

// shortages are the errors of a machine or a process that has too little of something.
// They are the cause wherever they occur.
var shortages = []struct {
	err   error
	cause wire.Cause
}{
	{audit.ErrNotWritten, wire.CauseAudit},
	{syscall.EMFILE, wire.CauseDescriptors},
	{syscall.ENFILE, wire.CauseDescriptors},
	{syscall.ENOMEM, wire.CauseMemory},
	{syscall.ENOBUFS, wire.CauseMemory},
}

// shortage is the cause behind an error, if the error is a shortage.
func shortage(err error) (wire.Cause, bool) {
	for _, s := range shortages {
		if errors.Is(err, s.err) {
			return s.cause, true
		}
	}
	return "", false
}

// newEnded is the end of a session by a cause, unless the reason is a shortage.
func newEnded(cause wire.Cause, reason error) *Ended {
	if other, short := shortage(reason); short {
		cause = other
	}
	return &Ended{cause, reason}
}

// lostExit is the exit of a command whose end is not known, or that was not started
// because its session had ended.
func lostExit(err error) wire.Exit {
	if ended := (*Ended)(nil); errors.As(err, &ended) {
		return ended.exit()
	}
	return wire.Exit{Kind: wire.ExitLost, Message: err.Error()}
}

// End ends the session. The commands that run get exits with the cause.
func (s *Session) End(cause wire.Cause) { s.life.end(cause, nil) }

// partEnded ends the session if one of its processes has ended.
func (s *Session) partEnded() {
	select {
	case <-s.files.Dead():
		s.life.end(s.files.Cause(), s.files.Err())
		return
	default:
	}
	select {
	case <-s.init.Dead():
		cause, err := s.init.Err()
		s.life.end(cause, err)
	default:
	}
}

// fileServerEnd is the time that a file server takes to end once it answers no more.
const fileServerEnd = 5 * time.Second

// settle ends the session if a command ended only because a part of it did. The
// command can notice this before the supervisor: its calls fail when the file server
// dies.
func (s *Session) settle(exit wire.Exit) {
	if exit.ExitCode() == 0 || s.life.why() != nil {
		return
	}
	if err := s.files.Drain(); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		select {
		case <-s.files.Dead():
		case <-s.init.Dead():
		case <-time.After(fileServerEnd):
		}
	}
	s.partEnded()
}

// explained is the exit of a command that agentsh itself ended: one of its events
// could not be written (unwritten), or its session ended (ended).
func explained(exit wire.Exit, unwritten error, ended *Ended) wire.Exit {
	if unwritten == nil && ended != nil && ended.Cause == wire.CauseAudit {
		unwritten = ended.Reason
	}
	if unwritten != nil {
		message := fmt.Sprintf("the audit log cannot be written, and what it cannot record is refused: %v", unwritten)
		return wire.Exit{Kind: wire.ExitLost, Rusage: exit.Rusage, Message: message, Hint: AuditHint, Cause: wire.CauseAudit}
	}
	mayBe := exit.Kind == wire.ExitSignaled || exit.Kind == wire.ExitExited || exit.Kind == wire.ExitLost
	if ended == nil || exit.Cause != "" || exit.ExitCode() == 0 || !mayBe {
		return exit
	}
	last := ended.exit()
	last.Rusage = exit.Rusage
	return last
}

// AuditHint says how to go on when the audit log cannot be written.
var AuditHint = wire.CauseAudit.Ending().Hint
