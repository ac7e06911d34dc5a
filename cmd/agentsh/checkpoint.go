package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/beneath"
	"agentsh/internal/snapshot"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/supervisor/host"
)

// checkpointOptions are the flags that say whose checkpoints are meant.
type checkpointOptions struct {
	workspace string
	session   string
	json      bool
}

func newCheckpointCommand() *cobra.Command {
	var o checkpointOptions
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "Remember a workspace and go back to it",
		Long: `Remember a workspace and go back to it.

A checkpoint holds every file of a workspace: content, mode, owner, time, links. Content
is stored once, under its digest, and shared with the workspace where the filesystem
can; what did not change since the last checkpoint is not read again. Checkpoints lie in
the state directory, outside every session. They are made and gone back to while a
session runs in the workspace, too.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.PersistentFlags().StringVarP(&o.workspace, "workspace", "w", ".", "`DIR` that is meant")
	cmd.PersistentFlags().StringVar(&o.session, "session", "", "the workspace of this running session")
	cmd.AddCommand(newCheckpointCreateCommand(&o), newCheckpointListCommand(&o), newCheckpointDiffCommand(&o),
		newCheckpointRollbackCommand(&o), newCheckpointDeleteCommand(&o))
	return cmd
}

// open opens the checkpoints of the workspace that the flags name.
func (o *checkpointOptions) open() (*snapshot.Checkpoints, string, error) {
	dir := o.workspace
	if o.session != "" {
		registry, err := host.OpenRegistry()
		if err != nil {
			return nil, "", failure.New(failure.Ours, err, "")
		}
		one, err := registry.Find(o.session)
		if err != nil {
			return nil, "", sessionFailure(err)
		}
		dir = one.Workspace
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, "", failure.New(failure.Ours, fmt.Errorf("workspace: %w", err), "")
	}
	store, err := openStore()
	if err != nil {
		return nil, "", failure.New(failure.Ours, err, "")
	}
	c, err := store.Checkpoints(dir)
	if err != nil {
		return nil, "", failure.New(failure.Ours, err, "")
	}
	return c, dir, nil
}

// checkpointFailure adds advice to an error.
func checkpointFailure(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return failure.New(failure.Ours, err, "'agentsh checkpoint list' names those of this workspace")
	}
	return failure.New(failure.Ours, err, "")
}

func newCheckpointCreateCommand(o *checkpointOptions) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:     "create",
		Short:   "Remember the workspace as it is and print the checkpoint's number",
		Example: "  agentsh checkpoint create --name 'before the refactoring'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			c, dir, err := o.open()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			one, err := c.Create(name, func() (*snapshot.Freeze, error) { return freeze(cmd.Context(), dir) })
			if err != nil {
				return checkpointFailure(err)
			}
			if o.json {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(one)
			}
			fmt.Fprintln(cmd.OutOrStdout(), one.ID)
			for _, path := range one.LeftOut {
				fmt.Fprintf(cmd.ErrOrStderr(), "agentsh: left out, since only what listens there or the machine can make it: %s\n", text.Visible(path))
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "what it is called in the list")
	cmd.Flags().BoolVar(&o.json, "json", false, "print the checkpoint as JSON")
	return cmd
}

// freeze freezes the files of the running sessions whose workspace is dir.
// Sessions of a single command cannot be asked.
func freeze(ctx context.Context, dir string) (*snapshot.Freeze, error) {
	lost := make(chan struct{})
	var once sync.Once
	var held []func([]wire.Change) error
	f := &snapshot.Freeze{Ended: lost, Release: func(list []wire.Change) error {
		var errs []error
		for _, release := range held {
			errs = append(errs, release(list))
		}
		return errors.Join(errs...)
	}}
	asked := map[string]bool{}
	if registry, err := host.OpenRegistry(); err == nil { // without a runtime directory none runs in the background
		list, err := registry.List()
		if err != nil {
			return nil, err
		}
		for _, one := range list {
			if one.Workspace != dir {
				continue
			}
			asked[one.Session] = true
			ended, release, err := freezeSession(ctx, registry, one.Name)
			if err != nil {
				return nil, errors.Join(err, f.Release(nil))
			}
			if release == nil {
				continue
			}
			held = append(held, release)
			go func() { // ends with the freeze
				<-ended
				once.Do(func() { close(lost) })
			}()
		}
	}
	if err := refuseOthers(dir, asked); err != nil {
		return nil, errors.Join(err, f.Release(nil))
	}
	return f, nil
}

// freezeSession freezes the files of one session; release is nil when the session
// has ended.
func freezeSession(
	ctx context.Context,
	registry *host.Registry,
	name string,
) (lost <-chan struct{}, release func([]wire.Change) error, err error) {
	client, _, err := registry.Attach(ctx, name, version)
	if errors.Is(err, host.ErrNoSession) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	lost, end, err := client.Freeze(ctx)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("session %s: %w", name, err), client.Close())
	}
	return lost, func(list []wire.Change) error { return errors.Join(end(list), client.Close()) }, nil
}

// refuseOthers fails if a session that is not frozen uses files of dir.
func refuseOthers(dir string, asked map[string]bool) error {
	sessions, err := storedSessions()
	if err != nil {
		return err
	}
	for _, s := range sessions {
		for _, g := range s.Workspace {
			if snapshot.Overlap(g.Backing, dir) && !asked[s.Session] && s.Running() {
				return fmt.Errorf("a command runs in %s: wait until it has ended, or run it in a session (agentsh session create)", g.Backing)
			}
		}
	}
	return nil
}

func newCheckpointListCommand(o *checkpointOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "list",
		Example: "  agentsh checkpoint list --workspace ~/src/app",
		Short:   "List the checkpoints of the workspace",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			c, _, err := o.open()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			list, err := c.List()
			if err != nil {
				return checkpointFailure(err)
			}
			if o.json {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(list)
			}
			return printCheckpoints(cmd.OutOrStdout(), list)
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print a JSON list")
	return cmd
}

func printCheckpoints(out io.Writer, list []snapshot.Checkpoint) error {
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tMADE\tFILES\tBYTES\tSTORED\tNAME")
	for _, one := range list {
		name := text.Visible(one.Name)
		if one.Unfinished {
			name = strings.TrimSpace(name + " (a rollback to it was broken off: do it again)")
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%s\n", one.ID, one.Time.Format(time.RFC3339), one.Files, one.Bytes, one.Stored, name)
	}
	return w.Flush()
}

func newCheckpointDiffCommand(o *checkpointOptions) *cobra.Command {
	var content bool
	cmd := &cobra.Command{
		Use:     "diff ID [ID]",
		Short:   "Show what changed since a checkpoint, or between two",
		Example: "  agentsh checkpoint diff 1\n  agentsh checkpoint diff 1 2 --diff",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, ids []string) (err error) {
			c, dir, err := o.open()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			until := ""
			if len(ids) == 2 {
				until = ids[1]
			}
			list, err := c.Diff(ids[0], until)
			if err != nil {
				return checkpointFailure(err)
			}
			p := changePrinter{json: o.json, diff: content}
			if content {
				if err := p.between(c, dir, ids[0], until); err != nil {
					return checkpointFailure(err)
				}
			}
			return p.print(cmd.OutOrStdout(), list)
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print a JSON list")
	cmd.Flags().BoolVar(&content, "diff", false, "show the lines that changed")
	return cmd
}

func newCheckpointRollbackCommand(o *checkpointOptions) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollback ID",
		Short: "Make the workspace what it was at a checkpoint",
		Long: `Make the workspace what it was at a checkpoint: content, names, modes, owners, times,
extended attributes and links. What was made since is removed. Each file changes in one step; a rollback that
was broken off is done again. Programs of a running session that have files open keep
the old ones.`,
		Example: "  agentsh checkpoint rollback 1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) (err error) {
			c, dir, err := o.open()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			list, err := c.Rollback(ids[0], func() (*snapshot.Freeze, error) { return freeze(cmd.Context(), dir) })
			if errors.Is(err, snapshot.ErrFreezeEnded) || errors.Is(err, beneath.ErrReplaced) {
				return failure.New(failure.Ours, err, "the rollback is not complete; do it again: agentsh checkpoint rollback "+ids[0])
			}
			if err != nil {
				return checkpointFailure(err)
			}
			p := changePrinter{json: o.json}
			return p.print(cmd.OutOrStdout(), list)
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print what was changed as a JSON list")
	return cmd
}

func newCheckpointDeleteCommand(o *checkpointOptions) *cobra.Command {
	return &cobra.Command{
		Use:     "delete ID ...",
		Example: "  agentsh checkpoint delete 1 2",
		Short:   "Forget checkpoints and remove content that no other needs",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, ids []string) (err error) {
			c, _, err := o.open()
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, c.Close()) }()
			if err := c.Delete(ids...); err != nil {
				return checkpointFailure(err)
			}
			return nil
		},
	}
}
