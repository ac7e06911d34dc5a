package supervisor

import (
	"errors"
	"fmt"
	"sync"

	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

// auditFaults are the events of a session that could not be written: what they
// tell of was refused. The zero value has none.
type auditFaults struct {
	mu       sync.Mutex
	commands map[string]error // by command, until its end is told
	lost     int              // events since the last one that was written
}

// append writes an event. The first that can be written after others could not is
// followed by one that says so.
func (f *auditFaults) append(e wire.Event, write func(wire.Event) error) error {
	err := write(e)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err != nil {
		f.lost++
		if f.commands == nil {
			f.commands = map[string]error{}
		}
		if f.commands[e.Command] == nil {
			f.commands[e.Command] = err
		}
		return err
	}
	if f.lost > 0 {
		told := wire.Event{
			Type:    wire.EventFault,
			Session: e.Session,
			Message: fmt.Sprintf("%d events could not be written; what they tell of was refused", f.lost),
		}
		if write(told) == nil {
			f.lost = 0
		}
	}
	return nil
}

// take returns why an event of a command is missing, if one is.
func (f *auditFaults) take(command string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.commands[command]
	delete(f.commands, command)
	return err
}

// explained is how a command ended where agentsh itself had a part in it: an event
// of it could not be written, or its session ended.
func explained(s *Session, id string, exit wire.Exit) wire.Exit {
	s.mu.Lock()
	fault := s.fault
	s.mu.Unlock()
	err := s.faults.take(id)
	if err == nil && errors.Is(fault, audit.ErrNotWritten) {
		err = fault
	}
	if err != nil {
		return wire.Exit{Kind: wire.ExitLost, Rusage: exit.Rusage,
			Message: fmt.Sprintf("the audit log cannot be written, and what it cannot tell of does not happen: %v", err), Hint: AuditHint}
	}
	if fault != nil && fault != ErrEnded && exit.Kind == wire.ExitSignaled { //nolint:errorlint // ErrEnded alone: it was closed
		exit.Kind, exit.Message = wire.ExitLost, fault.Error()
	}
	return exit
}

// AuditHint says what to do about an audit log that cannot be written.
const AuditHint = "free space on the disk of the audit log and repeat the command, or name a file on another one with --audit"
