package tools

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// History has earlier states of the workspace of a sandbox. It is safe for concurrent use.
type History interface {
	// Dir is the workspace in the sandbox: changes name files below it.
	Dir() string
	// Changes calls each with what differs since the sandbox was made, with the lines that changed
	// where lines is set.
	Changes(ctx context.Context, lines bool, each func(Change) error) error
	// Create remembers the state now.
	Create(ctx context.Context, name string) (wire.Checkpoint, error)
	// List returns all states that are remembered, oldest first.
	List(ctx context.Context) ([]wire.Checkpoint, error)
	// Rollback goes back to a state, and calls each with what changed.
	Rollback(ctx context.Context, id string, each func(wire.Change) error) error
}

// Change is a change of the workspace.
type Change struct {
	wire.Change
	Binary bool   `json:"binary,omitempty"`
	Diff   string `json:"diff,omitempty"`
}

type changesInput struct {
	Diff bool `json:"diff,omitempty" jsonschema:"show the lines that changed"`
}

type changed struct {
	Path   string `json:"path" jsonschema:"relative to workspace"`
	Kind   string `json:"kind" jsonschema:"created, modified, deleted, renamed and others"`
	From   string `json:"from,omitempty" jsonschema:"of a file that was renamed"`
	By     string `json:"by,omitempty" jsonschema:"host: changed from outside; both: from outside and inside"`
	Binary bool   `json:"binary,omitempty"`
	Diff   string `json:"diff,omitempty" jsonschema:"unified diff"`
}

type changesOutput struct {
	Workspace string    `json:"workspace"`
	Changes   []changed `json:"changes"`
	Truncated bool      `json:"truncated,omitempty" jsonschema:"there are more changes, or more lines"`
}

type checkpointInput struct {
	Name string `json:"name,omitempty" jsonschema:"what it is called in the list"`
}

type checkpoint struct {
	ID    string `json:"id"`
	Name  string `json:"name,omitempty"`
	Time  string `json:"time"`
	Files int    `json:"files"`
	Bytes int64  `json:"bytes"`
}

type checkpointsOutput struct {
	Checkpoints []checkpoint `json:"checkpoints"`
}

type rollbackInput struct {
	ID string `json:"id" jsonschema:"of checkpoint or checkpoints"`
}

// addHistory adds the tools for earlier states.
func (t *Toolbox) addHistory() {
	add(t, tool{name: "changes", title: "Show changes", reads: true, contents: true,
		description: "Show what differs in the workspace since the sandbox was made, and with diff the lines."}, t.changes)
	add(t, tool{name: "checkpoint", title: "Remember the workspace",
		description: "Remember all files of the workspace as they are now. rollback goes back to that."}, t.checkpoint)
	add(t, tool{name: "checkpoints", title: "List checkpoints", reads: true,
		description: "List the states of the workspace that are remembered."}, t.checkpoints)
	add(t, tool{name: "rollback", title: "Go back to a checkpoint", writes: true,
		description: "Make all files of the workspace what they were at a checkpoint. What is newer is lost, unless a checkpoint has it."},
		t.rollback)
}

func (t *Toolbox) changes(ctx context.Context, _ call, in changesInput) (string, changesOutput, error) {
	out := changesOutput{Workspace: t.cfg.History.Dir(), Changes: []changed{}}
	var found shownChanges
	if err := t.cfg.History.Changes(ctx, in.Diff, found.add); err != nil {
		return "", out, err
	}
	if in.Diff {
		if err := t.hide(ctx, found.list); err != nil {
			return "", out, err
		}
	}
	shown := out.add(found)
	if len(found.list) == 0 {
		shown = "[nothing has changed]\n"
	}
	return shown, out, nil
}

// shownChanges are as many changes as a result shows. A sandbox may have a million of them, whose names are long.
type shownChanges struct {
	list []Change
	size int  // bytes of names and lines
	more bool // there are others
}

// add keeps a change if there is room.
func (s *shownChanges) add(c Change) error {
	s.size += len(c.Path) + len(c.From) + len(c.Diff)
	s.more = s.more || len(s.list) == maxListed || s.size > maxRead && len(s.list) > 0
	if !s.more {
		s.list = append(s.list, c)
	}
	return nil
}

// add adds changes as far as there is room, and describes them for a model.
func (o *changesOutput) add(found shownChanges) string {
	var b strings.Builder
	for _, c := range found.list {
		if b.Len()+len(c.Diff) > maxRead {
			found.more = true
			break
		}
		o.Changes = append(o.Changes, changed{
			Path: string(c.Path), Kind: string(c.Kind), From: string(c.From), By: string(c.By), Binary: c.Binary, Diff: c.Diff,
		})
		name := text.Visible(string(c.Path))
		if c.From != "" {
			name = text.Visible(string(c.From)) + " -> " + name
		}
		fmt.Fprintf(&b, "%-8s  %s%s\n", c.Kind, name, c.By.Mark())
		if c.Binary {
			b.WriteString("  (binary)\n")
		}
		b.WriteString(c.Diff)
	}
	if o.Truncated = found.more; o.Truncated {
		b.WriteString("[there is more: use exec, as with 'git status' and 'git diff']\n")
	}
	return b.String()
}

// readableScript prints the arguments that are files which commands can read. A link is none: the lines
// are not those of the file that it leads to. Opening a FIFO would wait for its other end.
const readableScript = `for f; do [ -f "$f" ] && [ ! -L "$f" ] && head -c 1 -- "$f" >/dev/null 2>&1 && printf '%s\0' "$f"; done; :`

// hide leaves out the lines of files that commands may not read, and of those that are gone: whether
// commands could read them cannot be tried any more. The lines were compared outside of the policy.
func (t *Toolbox) hide(ctx context.Context, list []Change) error {
	readable := map[string]bool{}
	for names := range batches(t.cfg.History.Dir(), list) {
		out, err := t.script(ctx, readableScript, nil, maxScanned, names...)
		if err != nil {
			return err
		}
		for name := range strings.SplitSeq(out.String(), "\x00") {
			readable[name] = true
		}
	}
	for i := range list {
		c := &list[i]
		if !readable[path.Join(t.cfg.History.Dir(), string(c.Path))] {
			c.Diff = ""
		}
	}
	return nil
}

// maxNames bounds the arguments of one script, in bytes: the kernel takes 128 KiB at least.
const maxNames = 64 << 10

// batches returns the names of changed files below dir, as many at a time as one script takes.
func batches(dir string, list []Change) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		var names []string
		size := 0
		for _, c := range list {
			name := path.Join(dir, string(c.Path))
			if size += len(name) + 1; size > maxNames && len(names) > 0 {
				if !yield(names) {
					return
				}
				names, size = nil, len(name)+1
			}
			names = append(names, name)
		}
		if len(names) > 0 {
			yield(names)
		}
	}
}

func (t *Toolbox) checkpoint(ctx context.Context, _ call, in checkpointInput) (string, checkpointsOutput, error) {
	if len(in.Name) > 200 {
		return "", checkpointsOutput{}, errors.New("name: at most 200 bytes")
	}
	one, err := t.cfg.History.Create(ctx, in.Name)
	if err != nil {
		return "", checkpointsOutput{}, err
	}
	return "checkpoint " + one.ID, checkpointsOutput{[]checkpoint{about(one)}}, nil
}

func about(c wire.Checkpoint) checkpoint {
	return checkpoint{ID: c.ID, Name: c.Name, Time: c.Time.UTC().Format(time.RFC3339), Files: c.Files, Bytes: c.Bytes}
}

func (t *Toolbox) checkpoints(ctx context.Context, _ call, _ struct{}) (string, checkpointsOutput, error) {
	out := checkpointsOutput{Checkpoints: []checkpoint{}}
	list, err := t.cfg.History.List(ctx)
	if err != nil {
		return "", out, err
	}
	var b strings.Builder
	for _, c := range list {
		one := about(c)
		out.Checkpoints = append(out.Checkpoints, one)
		fmt.Fprintf(&b, "%s  %s  %s  %s\n", one.ID, one.Time, text.Count(one.Files, "file"), text.Visible(one.Name))
	}
	if len(list) == 0 {
		b.WriteString("[there is no checkpoint]\n")
	}
	return b.String(), out, nil
}

func (t *Toolbox) rollback(ctx context.Context, _ call, in rollbackInput) (string, changesOutput, error) {
	out := changesOutput{Workspace: t.cfg.History.Dir(), Changes: []changed{}}
	if in.ID == "" {
		return "", out, errors.New("write the id of a checkpoint: checkpoints lists them")
	}
	var found shownChanges
	err := t.cfg.History.Rollback(ctx, in.ID, func(c wire.Change) error { return found.add(Change{Change: c}) })
	if err != nil {
		return "", out, unknown(ctx, t.cfg.History, in.ID, err)
	}
	return "the workspace is as at checkpoint " + text.Visible(in.ID) + "\n" + out.add(found), out, nil
}

// unknown says of a rollback that failed whether there is no such checkpoint.
func unknown(ctx context.Context, history History, id string, failed error) error {
	list, err := history.List(ctx)
	if err != nil || slices.ContainsFunc(list, func(c wire.Checkpoint) bool { return c.ID == id }) {
		return failed
	}
	if len(list) == 0 {
		return fmt.Errorf("there is no checkpoint %q: none was made", id)
	}
	return fmt.Errorf("there is no checkpoint %q: checkpoints lists those that there are, the newest is %q", id, list[len(list)-1].ID)
}
