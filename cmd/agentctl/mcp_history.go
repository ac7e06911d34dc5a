package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"agentsh/controller/sandbox/host"
	"agentsh/controller/tools"
	"agentsh/internal/snapshot"
	"agentsh/internal/wire"
)

// sessionHistory has the states of the workspace of a session. agentsh of this machine makes
// them: it freezes the files of all sessions that use the workspace.
type sessionHistory struct{ wire.HandedSession }

// historyTime bounds one command of agentsh, historyOutput its output in bytes.
const (
	historyTime   = 10 * time.Minute
	historyOutput = 64 << 20
)

// Dir implements [tools.History].
func (h sessionHistory) Dir() string { return h.Workspace }

// Changes implements [tools.History].
func (h sessionHistory) Changes(ctx context.Context, lines bool) (list []tools.Change, err error) {
	args := []string{"changes", h.Name, "--json"}
	if lines {
		args = append(args, "--diff")
	}
	return list, h.run(ctx, &list, args...)
}

// Create implements [tools.History].
func (h sessionHistory) Create(ctx context.Context, name string) (one snapshot.Checkpoint, err error) {
	return one, h.run(ctx, &one, "checkpoint", "create", "--session", h.Name, "--name="+name, "--json")
}

// List implements [tools.History].
func (h sessionHistory) List(ctx context.Context) (list []snapshot.Checkpoint, err error) {
	return list, h.run(ctx, &list, "checkpoint", "list", "--session", h.Name, "--json")
}

// Rollback implements [tools.History].
func (h sessionHistory) Rollback(ctx context.Context, id string) (list []wire.Change, err error) {
	return list, h.run(ctx, &list, "checkpoint", "rollback", "--session", h.Name, "--json", "--", id)
}

// run runs a command of agentsh that prints JSON.
func (h sessionHistory) run(ctx context.Context, into any, args ...string) error {
	res, err := host.Run(ctx, host.Command{
		Argv: append([]string{h.Program}, args...), Dir: "/", Env: os.Environ(), MaxOutput: historyOutput, Timeout: historyTime,
	})
	if err != nil {
		return err
	}
	if res.Err() != nil {
		return errors.New(strings.TrimSpace(strings.ReplaceAll(string(res.Stderr), "agentsh: ", "")))
	}
	if err := json.Unmarshal(res.Stdout, into); err != nil {
		return fmt.Errorf("agentsh %s: %w", strings.Join(args[:2], " "), err)
	}
	return nil
}
