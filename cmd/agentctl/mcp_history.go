package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/host"
	"agentsh/controller/tools"
	"agentsh/internal/layout"
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
	err = h.run(ctx, &list, args...)
	return list, err
}

// Create implements [tools.History].
func (h sessionHistory) Create(ctx context.Context, name string) (one snapshot.Checkpoint, err error) {
	err = h.run(ctx, &one, "checkpoint", "create", "--session", h.Name, "--name="+name, "--json")
	return one, err
}

// List implements [tools.History].
func (h sessionHistory) List(ctx context.Context) (list []snapshot.Checkpoint, err error) {
	err = h.run(ctx, &list, "checkpoint", "list", "--session", h.Name, "--json")
	return list, err
}

// Rollback implements [tools.History].
func (h sessionHistory) Rollback(ctx context.Context, id string) (list []wire.Change, err error) {
	err = h.run(ctx, &list, "checkpoint", "rollback", "--session", h.Name, "--json", "--", id)
	return list, err
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

// snapshotter is a sandbox whose earlier states are stored on this machine.
type snapshotter interface {
	// Checkpoints opens the checkpoints of the governed tree and locks them. The caller
	// closes them.
	Checkpoints() (*snapshot.Checkpoints, error)
	// Freezing freezes the files of the sandbox for a checkpoint or a rollback.
	Freezing(ctx context.Context) (*snapshot.Freeze, error)
}

// historyOf has the states of the workspace of a run; nil: its backend stores none here.
func historyOf(box sandbox.Executor) tools.History {
	if of, ok := box.(snapshotter); ok {
		return runHistory{of, box}
	}
	return nil
}

// runHistory has the states of the files of a sandbox on this machine.
type runHistory struct {
	snapshotter
	box sandbox.Executor
}

// Dir implements [tools.History].
func (h runHistory) Dir() string { return layout.Sandbox }

// Changes implements [tools.History].
func (h runHistory) Changes(ctx context.Context, lines bool) (list []tools.Change, err error) {
	if lines {
		return nil, errors.New("a sandbox of a run has no lines of changes: leave diff out, and use exec with 'git diff' in the repository")
	}
	err = h.box.EachChange(ctx, func(c wire.Change) error {
		list = append(list, tools.Change{Change: c})
		return nil
	})
	return list, err
}

// Create implements [tools.History].
func (h runHistory) Create(ctx context.Context, name string) (one snapshot.Checkpoint, err error) {
	err = h.with(func(c *snapshot.Checkpoints) error {
		one, err = c.Create(name, func() (*snapshot.Freeze, error) { return h.Freezing(ctx) })
		return err
	})
	return one, err
}

// List implements [tools.History].
func (h runHistory) List(context.Context) (list []snapshot.Checkpoint, err error) {
	err = h.with(func(c *snapshot.Checkpoints) error {
		list, err = c.List()
		return err
	})
	return list, err
}

// Rollback implements [tools.History].
func (h runHistory) Rollback(ctx context.Context, id string) (list []wire.Change, err error) {
	err = h.with(func(c *snapshot.Checkpoints) error {
		list, err = c.Rollback(id, func() (*snapshot.Freeze, error) { return h.Freezing(ctx) })
		return err
	})
	return list, err
}

func (h runHistory) with(do func(*snapshot.Checkpoints) error) error {
	c, err := h.Checkpoints()
	if err != nil {
		return err
	}
	return errors.Join(do(c), c.Close())
}
