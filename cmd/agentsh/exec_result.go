package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/refusals"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/supervisor"
	"agentsh/supervisor/audit"
)

// result is how a command ended, with the denials meanwhile.
type result struct {
	exit      wire.Exit
	refused   refusals.List
	auditPath string
}

// earlier is the result of a command that a signal ended before it ran.
func earlier(r result, exit wire.Exit) result {
	r.exit = exit
	return r
}

// auditHint is the advice for an error of the audit log; empty: it is another one.
func auditHint(err error) string {
	if errors.Is(err, audit.ErrNotWritten) {
		return supervisor.AuditHint
	}
	return ""
}

// unread is the result of a command whose reader went before it had read all. A
// command that did not notice ends as one does that writes to a closed pipe.
func unread(r result) result {
	if r.exit.ExitCode() == 0 {
		r.exit = wire.Exit{Kind: wire.ExitSignaled, Signal: int(syscall.SIGPIPE)}
	}
	return r
}

// exitFailure turns the end of a command into the exit of this one. A denial has
// already been printed with the others.
func exitFailure(name string, exit wire.Exit) error {
	code := exit.ExitCode()
	if message, hint := exit.Said(name); message != "" {
		return failure.New(code, errors.New(message), hint)
	}
	if code == 0 {
		return nil
	}
	return failure.New(code, nil, "")
}

// refusalsOf reads the denials since event from.
func refusalsOf(ctx context.Context, log *audit.Log, from uint64) (refusals.List, error) {
	var d refusals.List
	last := log.Head().Seq
	if last < from {
		return d, nil
	}
	follower, err := log.Subscribe(from)
	if err != nil {
		return d, err
	}
	for err == nil {
		var e wire.Event
		if e, err = follower.Next(context.WithoutCancel(ctx)); err != nil {
			break
		}
		d.Note(e)
		if e.Seq >= last {
			break
		}
	}
	return d, errors.Join(err, follower.Close())
}

// refusedSince reads the denials since the log had a size, after the event last. The supervisor has
// written everything about a command when it reports its end.
func refusedSince(path string, from int64, last uint64) (refusals.List, error) {
	var d refusals.List
	note := func(e wire.Event) {
		if e.Seq > last {
			d.Note(e)
		}
	}
	if err := audit.ReadSince(path, from, note); err != nil {
		return d, fmt.Errorf("audit log %s: %w", path, err)
	}
	return d, nil
}

// printable escapes control characters: an agent chooses these texts.
func printable(s string) string { return text.Visible(s) }
