package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/snapshot"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/supervisor/host"
)

func newChangesCommand() *cobra.Command {
	var p changePrinter
	cmd := &cobra.Command{
		Use:   "changes [SESSION]",
		Short: "Show what a session changed in its workspace",
		Long: `Show what a session changed in its workspace: the net difference since it began. What
was made and removed again is not listed; what a program only touched is not, either.
Changes that a process outside the session made are marked with (host), and files that
both changed with (both).

SESSION is the name of a running session or the id of one that has ended; without it,
the last one in the current directory. With --diff, the lines of text files of at most
1 MiB are compared with what they held when the session began.`,
		Example: "  agentsh changes\n  agentsh changes work --diff",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := p.ofSession(cmd.Context(), args)
			if err != nil {
				return err
			}
			return p.print(cmd.OutOrStdout(), list)
		},
	}
	cmd.Flags().BoolVar(&p.json, "json", false, "print a JSON list")
	cmd.Flags().BoolVar(&p.diff, "diff", false, "show the lines that changed")
	return cmd
}

// ofSession reads the change record of a session and the directories of its files.
func (p *changePrinter) ofSession(ctx context.Context, args []string) ([]wire.Change, error) {
	sessions, err := storedSessions()
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	here, err := os.Getwd()
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	running, unknown := runningSessions()
	for _, s := range slices.Backward(sessions) {
		if len(s.Workspace) == 0 {
			continue
		}
		work := s.Workspace[0]
		one, runs := running[s.Session]
		if len(args) == 0 && work.Backing != here && !strings.HasPrefix(here, work.Backing+"/") ||
			len(args) == 1 && args[0] != s.Session && args[0] != one.Name {
			continue
		}
		list, err := s.Changes()
		if runs {
			list, err = changesOf(ctx, one.Name)
		}
		if err != nil {
			return nil, failure.New(failure.Ours, err, "")
		}
		p.sides = snapshot.Sides{Before: s.Since(list), After: snapshot.InWorkspace(work.Backing)}
		return list, nil
	}
	switch {
	case len(args) == 1 && unknown != nil: // a running session is known by its name there alone
		return nil, failure.New(failure.Ours, fmt.Errorf("session %s: running sessions are not known: %w", args[0], unknown),
			"or name the session by its id, as 'agentsh events' prints it")
	case len(args) == 1:
		return nil, failure.New(failure.Ours, fmt.Errorf("session %s is not known", args[0]), "'agentsh session list' names those that run")
	}
	return nil, failure.New(failure.Ours, fmt.Errorf("no session was in %s", here), "name a session, or go to its workspace")
}

// runningSessions are the sessions in the background by their id. The error says why they
// are not known, for example as there is no runtime directory.
func runningSessions() (map[string]host.Running, error) {
	out := map[string]host.Running{}
	registry, err := host.OpenRegistry()
	if err != nil {
		return out, err
	}
	list, err := registry.List()
	for _, one := range list {
		out[one.Session] = one
	}
	return out, err
}

// changesOf asks a running session.
func changesOf(ctx context.Context, name string) ([]wire.Change, error) {
	registry, err := host.OpenRegistry()
	if err != nil {
		return nil, err
	}
	client, _, err := registry.Attach(ctx, name, version)
	if err != nil {
		return nil, err
	}
	list, err := client.Changes(ctx)
	return list, errors.Join(err, client.Close())
}

// changePrinter prints the changes of a workspace.
type changePrinter struct {
	json, diff bool
	sides      snapshot.Sides
}

// between compares a checkpoint with another, or with the workspace.
func (p *changePrinter) between(c *snapshot.Checkpoints, dir, from, until string) error {
	old, err := c.View(from)
	if err != nil {
		return err
	}
	p.sides.Before = func(path string) (io.ReadCloser, error) { return old.Open(path) }
	if until == "" {
		p.sides.After = snapshot.InWorkspace(dir)
		return nil
	}
	now, err := c.View(until)
	if err != nil {
		return err
	}
	p.sides.After = func(path string) (io.ReadCloser, error) { return now.Open(path) }
	return nil
}

// changeJSON is a change with the lines that changed.
type changeJSON struct {
	wire.Change
	Binary bool   `json:"binary,omitempty"`
	Diff   string `json:"diff,omitempty"`
}

func (p *changePrinter) print(out io.Writer, list []wire.Change) error {
	if p.json {
		return p.printJSON(out, list)
	}
	for _, c := range list {
		name := text.Visible(string(c.Path))
		if c.From != "" {
			name = text.Visible(string(c.From)) + " -> " + name
		}
		name += c.By.Mark()
		fmt.Fprintf(out, "%-8s  %s\n", c.Kind, name)
		if !p.diff {
			continue
		}
		lines, why, err := p.sides.Lines(c)
		if err != nil {
			return failure.New(failure.Ours, err, "")
		}
		if why != "" {
			fmt.Fprintf(out, "  (%s)\n", why)
		}
		for l := range strings.Lines(lines) {
			fmt.Fprintln(out, text.Line(strings.TrimSuffix(l, "\n")))
		}
	}
	return nil
}

func (p *changePrinter) printJSON(out io.Writer, list []wire.Change) error {
	all := []changeJSON{}
	for _, c := range list {
		one := changeJSON{Change: c}
		if p.diff {
			lines, why, err := p.sides.Lines(c)
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			one.Diff, one.Binary = lines, why == wire.BinaryFile
		}
		all = append(all, one)
	}
	return json.NewEncoder(out).Encode(all)
}
