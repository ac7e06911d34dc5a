package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"

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

// sessionFailure adds advice where there is no such session.
func sessionFailure(err error) error {
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
	before, err := logSize(a.one.Audit)
	if err != nil {
		return r, errors.Join(err, a.close())
	}
	noteAdvisory(a.one.Advisory)
	request.ID = rand.Text()
	if r.exit, err = a.client.Run(ctx, request, streams); err != nil {
		if r.exit.Cause == wire.CauseSupervisor {
			r.exit = r.exit.Cause.Exit(fmt.Sprintf("process %d of session %s is gone, and all that it ran", a.one.PID, a.one.Name))
		}
		return r, errors.Join(err, a.close())
	}
	r.refused, err = refusedSince(a.one.Audit, before)
	return r, errors.Join(err, a.close())
}

func logSize(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("audit log: %w", err)
	}
	return info.Size(), nil
}

// refusedSince reads the denials since the log had a size. The supervisor has
// written everything about a command when it reports its end.
func refusedSince(path string, from int64) (denials, error) {
	var d denials
	if err := audit.ReadSince(path, from, d.note); err != nil {
		return d, fmt.Errorf("audit log %s: %w", path, err)
	}
	return d, nil
}
