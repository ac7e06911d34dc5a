package main

import (
	"context"
	"crypto/rand"
	"errors"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/channel"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/host"
)

// attached is a running session that a command runs in.
type attached struct {
	client *channel.Client
	one    host.Running
	cwd    string
	shim   bool
}

// attach connects to the session that the flags name.
func (o *execOptions) attach(ctx context.Context) (runner, error) {
	registry, err := host.OpenRegistry()
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	client, one, err := registry.Attach(ctx, o.session, version)
	if err != nil {
		return nil, sessionFailure(err)
	}
	a := &attached{client: client, one: one, cwd: o.cwd}
	if a.cwd == "" {
		a.cwd = hereIn(one.Workspace)
	}
	return a, nil
}

// sessionFailure adds advice where there is no such session, or where it has died.
func sessionFailure(err error) error {
	if died := (*host.Died)(nil); errors.As(err, &died) {
		return exitFailure("", died.Gone())
	}
	if errors.Is(err, host.ErrNoSession) {
		return failure.New(failure.Ours, err, "'agentsh session list' names those that run")
	}
	return failure.New(failure.Ours, err, "")
}

func (a *attached) start() string { return a.cwd }

func (a *attached) workspace() string { return a.one.Workspace }

func (a *attached) close() error { return a.client.Close() }

// execute runs one command in the session and disconnects.
func (a *attached) execute(ctx context.Context, request wire.ExecRequest, streams wire.Streams) (result, error) {
	r := result{exit: wire.Exit{Kind: wire.ExitLost}, auditPath: a.one.Audit}
	before, err := audit.Size(a.one.Audit)
	if err != nil {
		return r, errors.Join(err, a.close())
	}
	noteAdvisory(a.one.Advisory)
	request.ID = rand.Text()
	caller := a.terminal(ctx, request, &streams)
	caller.tell(ctx, request.ID, eventsIn(a.one.Audit, before))
	r.exit, err = a.client.Run(ctx, request, streams)
	last := caller.leave(a.one.Audit)
	if err != nil {
		if r.exit.Cause == wire.CauseSupervisor {
			r.exit = a.one.Gone()
		}
		return r, errors.Join(err, a.close())
	}
	r.refused, err = refusedSince(a.one.Audit, before, last)
	return r, errors.Join(err, a.close())
}

// terminal takes the terminal of this process and asks the questions of one command on it. A
// shell that stands in for another asks nobody.
func (a *attached) terminal(ctx context.Context, request wire.ExecRequest, streams *wire.Streams) *callerTerminal {
	caller, _ := takeTerminal(ctx, !a.shim, request.TTY, streams)
	if !a.shim {
		follow := func(ctx context.Context, fn func([]wire.Pending) error) error {
			return a.client.FollowApprovals(ctx, request.ID, fn)
		}
		caller.ask(ctx, follow, func(answer wire.ApprovalAnswer) error { return a.client.Answer(ctx, answer) })
	}
	return caller
}
