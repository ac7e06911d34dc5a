package settings

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/host"
	"agentsh/controller/tools"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
)

// SessionHistory has the states of the workspace of a session. agentsh of this machine makes
// them: it freezes the files of all sessions that use the workspace.
type SessionHistory struct{ wire.HandedSession }

// historyTime bounds one command of agentsh, historyOutput its output in bytes.
const (
	historyTime   = 10 * time.Minute
	historyOutput = 64 << 20
)

// Dir implements [tools.History].
func (h SessionHistory) Dir() string { return h.Workspace }

// Changes implements [tools.History].
func (h SessionHistory) Changes(ctx context.Context, lines bool, each func(tools.Change) error) error {
	args := []string{"changes", h.Name, "--json"}
	if lines {
		args = append(args, "--diff")
	}
	var list []tools.Change
	if err := h.run(ctx, &list, args...); err != nil {
		return err
	}
	return all(list, each)
}

// all calls each with the elements of a list.
func all[T any](list []T, each func(T) error) error {
	for _, one := range list {
		if err := each(one); err != nil {
			return err
		}
	}
	return nil
}

// Create implements [tools.History].
func (h SessionHistory) Create(ctx context.Context, name string) (one wire.Checkpoint, err error) {
	err = h.run(ctx, &one, "checkpoint", "create", "--session", h.Name, "--name="+name, "--json")
	return one, err
}

// List implements [tools.History].
func (h SessionHistory) List(ctx context.Context) (list []wire.Checkpoint, err error) {
	err = h.run(ctx, &list, "checkpoint", "list", "--session", h.Name, "--json")
	return list, err
}

// Rollback implements [tools.History].
func (h SessionHistory) Rollback(ctx context.Context, id string, each func(wire.Change) error) error {
	var list []wire.Change
	if err := h.run(ctx, &list, "checkpoint", "rollback", "--session", h.Name, "--json", "--", id); err != nil {
		return err
	}
	return all(list, each)
}

// run runs a command of agentsh that prints JSON.
func (h SessionHistory) run(ctx context.Context, into any, args ...string) error {
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

// historian is a sandbox that remembers states of its files.
type historian interface {
	History(ctx context.Context, r wire.HistoryRequest, fn func(wire.HistoryEntry) error) error
}

// historyOf has the states of the files of a sandbox; nil: it remembers none.
func historyOf(box sandbox.Executor) tools.History {
	if of, ok := box.(historian); ok {
		return boxHistory{of}
	}
	return nil
}

// boxHistory has the states of the files of a sandbox.
type boxHistory struct{ historian }

// Dir implements [tools.History].
func (boxHistory) Dir() string { return layout.Sandbox }

// Changes implements [tools.History].
func (h boxHistory) Changes(ctx context.Context, lines bool, each func(tools.Change) error) error {
	if box, ok := h.historian.(sandbox.Executor); ok && !lines {
		return box.EachChange(ctx, func(c wire.Change) error { return each(tools.Change{Change: c}) })
	}
	return h.History(ctx, wire.HistoryRequest{Changes: true}, func(e wire.HistoryEntry) error {
		if e.Change == nil {
			return nil
		}
		return each(tools.Change{Change: *e.Change, Binary: e.Without == wire.BinaryFile, Diff: e.Lines})
	})
}

// Create implements [tools.History].
func (h boxHistory) Create(ctx context.Context, name string) (one wire.Checkpoint, err error) {
	list, err := h.checkpoints(ctx, wire.HistoryRequest{Create: true, Name: name})
	if err == nil && len(list) != 1 {
		err = errors.New("the supervisor names no checkpoint")
	}
	if err != nil {
		return one, err
	}
	return list[0], nil
}

// List implements [tools.History].
func (h boxHistory) List(ctx context.Context) (list []wire.Checkpoint, err error) {
	return h.checkpoints(ctx, wire.HistoryRequest{List: true})
}

// Rollback implements [tools.History].
func (h boxHistory) Rollback(ctx context.Context, id string, each func(wire.Change) error) error {
	return h.History(ctx, wire.HistoryRequest{Rollback: id}, func(e wire.HistoryEntry) error {
		if e.Change == nil {
			return nil
		}
		return each(*e.Change)
	})
}

func (h boxHistory) checkpoints(ctx context.Context, r wire.HistoryRequest) (list []wire.Checkpoint, err error) {
	err = h.History(ctx, r, func(e wire.HistoryEntry) error {
		if e.Checkpoint != nil {
			list = append(list, *e.Checkpoint)
		}
		return nil
	})
	return list, err
}

// ToolsOf are the tools of the sandbox of a run.
func ToolsOf(box sandbox.Executor) tools.Config {
	return tools.Config{Program: "agentctl", Version: output.Version, History: historyOf(box)}
}
