package supervisor

import (
	"strings"
	"sync"
	"sync/atomic"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/reasons"
)

// journal writes the events of one session to the audit log. It is safe for
// concurrent use.
type journal struct {
	session  string
	log      *audit.Log
	settings func() policy.AuditSettings // of the policy in force
	begun    bool                        // the log has its beginning
	reasons  reasons.Writer              // of refusals, for commands that want them
	refused  atomic.Uint64               // events of refusals
	denials  sync.Map                    // by command: the *wire.Exit of one that was denied at its own execve

	mu        sync.Mutex
	failures  map[string]error // by command: why the first of its events could not be written
	unwritten int              // events since the last one that was written
}

// begin writes the event of a session's start. It has the engine that stops calls, what
// holds the guarantees, and the missing mechanisms. end is silent unless begin succeeded.
func (j *journal) begin(p *policy.Policy, engine string, c confined) error {
	e := wire.Event{
		Type: wire.EventSession, Phase: "begin", Mechanism: engine, HeldBy: c.requested.Holders(c.missing),
		Message: "policy " + p.Name() + " " + p.Digest(),
	}
	e.GitGuard, _ = p.GitGuard()
	if advisory := c.missing.Advisory(); advisory != "" {
		e.Message += "; " + advisory
	}
	if len(c.missing) > 0 {
		e.Decision, e.Hint = "degraded", c.missing.String()
	}
	if beside := c.beside.String(); beside != "" {
		e.Decision, e.Hint = "degraded", strings.TrimPrefix(e.Hint+"; "+beside, "; ")
	}
	if err := j.emit(e); err != nil {
		return err
	}
	j.begun = true
	return nil
}

// end writes the event of a session's end, with its cause.
func (j *journal) end(why *Ended) error {
	if !j.begun {
		return nil
	}
	e := wire.Event{Type: wire.EventSession, Phase: "end", Cause: why.Cause, Message: why.Error()}
	if why.Cause != wire.CauseClosed {
		e.Hint = why.Cause.Ending().Hint
	}
	return j.emit(e)
}

// emit writes one event. If it fails, what the event describes must not happen.
func (j *journal) emit(e wire.Event) error {
	e.Session = j.session
	if e.Decision == policy.Deny.String() && e.Type != wire.EventApproval { // the event of the operation follows
		j.refused.Add(1)
		j.reasons.Refused(e)
	}
	if e.Op == wire.OpUnreachable {
		j.reasons.Refused(e)
	}
	settings := j.settings()
	if !settings.LogAllowed && e.Type == wire.EventExec && e.Decision == policy.Allow.String() {
		return nil
	}
	if settings.Redact {
		redact(&e, j.log.Digest)
	}
	return j.append(e, j.log.Append)
}

// emitExec is emit for the notification loop. A denial of a command's own execve
// becomes the command's exit: see denial.
func (j *journal) emitExec(e wire.Event) error {
	if e.Type == wire.EventExec && e.Decision == policy.Deny.String() {
		exit := &wire.Exit{Kind: wire.ExitDenied, Message: e.Message, Hint: e.Hint, Rule: e.Rule}
		if e.Rule == nil { // the supervisor could not judge it
			exit.Kind, exit.Code = wire.ExitSpawnFailed, 125
		}
		j.denials.Store(e.Command, exit)
	}
	return j.emit(e)
}

// append writes an event. The first event that is written after others failed is
// followed by one that counts them.
func (j *journal) append(e wire.Event, write func(wire.Event) error) error {
	err := write(e)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.unwritten++
		if j.failures == nil {
			j.failures = map[string]error{}
		}
		if j.failures[e.Command] == nil {
			j.failures[e.Command] = err
		}
		return err
	}
	if j.unwritten > 0 {
		count := wire.Event{
			Type:    wire.EventFault,
			Session: e.Session,
			Message: wire.Unwritten(j.unwritten),
		}
		if write(count) == nil {
			j.unwritten = 0
		}
	}
	return nil
}

// Refusals counts the refusals that the audit log of the session has, with those that a
// full disk kept out of it.
func (s *Session) Refusals() uint64 { return s.journal.refused.Load() }

// denial returns the exit of a command that was denied at its own execve; nil: it
// was not. A second call returns nil.
func (j *journal) denial(command string) *wire.Exit {
	exit, found := j.denials.LoadAndDelete(command)
	if !found {
		return nil
	}
	return exit.(*wire.Exit)
}

// failure returns why an event of a command could not be written; nil: all were.
// A second call returns nil.
func (j *journal) failure(command string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := j.failures[command]
	delete(j.failures, command)
	return err
}

// redact replaces what a command chose, and what names a file, by digests. It
// removes messages, which quote both. Left are time, process, kind of program or
// operation, decision, rule and exit.
func redact(e *wire.Event, digest func(string) string) {
	hide := func(s *string) {
		if *s != "" {
			*s = digest(*s)
		}
	}
	if e.Type == wire.EventSession {
		return
	}
	argv := make([]string, len(e.Argv))
	for i, arg := range e.Argv {
		argv[i] = digest(arg)
	}
	e.Argv = argv
	chain := make([]string, len(e.Chain))
	for i, file := range e.Chain {
		chain[i] = digest(file)
	}
	e.Chain = chain
	hide(&e.Path)
	hide(&e.Called)
	hide(&e.Target)
	if e.Process != nil {
		p := *e.Process
		hide(&p.Exe)
		hide(&p.Cwd)
		e.Process = &p
	}
	if e.Net != nil {
		n := *e.Net
		hide(&n.Address)
		e.Net = &n
	}
	e.Message, e.Hint = "", ""
	if e.Exit != nil {
		x := *e.Exit
		x.Message, x.Hint = "", ""
		e.Exit = &x
	}
}
