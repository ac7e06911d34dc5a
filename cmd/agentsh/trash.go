package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/snapshot"
	"agentsh/internal/text"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/supervisor/host"
)

func newTrashCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trash",
		Short: "Show, restore and purge soft-deleted files",
		Long: `Show, restore and purge soft-deleted files.

Where a policy says soft_delete, what a command deletes, empties or writes over is
kept outside every session. The trash of all sessions of a user has 4 GiB and
200,000 files, or what trash: in the configuration says; when it is full, such
operations are denied. What a run of agentctl kept is in its results: --from names
that trash.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	var from string
	cmd.PersistentFlags().StringVar(&from, "from", "", "the trash of a run, `DIR`/trash of its results")
	cmd.AddCommand(newTrashListCommand(&from), newTrashRestoreCommand(&from), newTrashPurgeCommand(&from))
	return cmd
}

// trashEntry is one deleted file as the commands show it.
type trashEntry struct {
	ID      string       `json:"id"` // of the session, a slash, and in its trash
	Path    wire.Name    `json:"path"`
	Type    string       `json:"type"`
	Op      string       `json:"op"`
	Size    int64        `json:"size"`
	Time    time.Time    `json:"time"`
	Session string       `json:"session"`
	Running bool         `json:"running"`
	Rule    *wire.RuleAt `json:"rule,omitempty"`

	session *snapshot.Session
	id      string
}

// trashScope is the trash that a command works on.
type trashScope struct {
	from string // of a run, in its results; empty: that of the user's sessions
	to   string // replaces the workspace of the run; empty: not known
}

func (p trashScope) sessions() ([]*snapshot.Session, error) {
	if p.from != "" {
		one, err := snapshot.ReadExported(p.from, p.to)
		return []*snapshot.Session{one}, err
	}
	return storedSessions()
}

// entries are the deleted files below dir; of all sessions when dir is
// empty.
func (p trashScope) entries(dir string) ([]trashEntry, error) {
	sessions, err := p.sessions()
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	out := []trashEntry{}
	for _, s := range sessions {
		list, err := s.Trash()
		if err != nil {
			return nil, failure.New(failure.Ours, err, "")
		}
		running := p.from == "" && len(list) > 0 && s.Running()
		for _, e := range list {
			backing, rel, ok := s.Backing(string(e.Path))
			path := filepath.Join(backing, rel)
			if !ok {
				path = string(e.Path)
			}
			if dir != "" && path != dir && !strings.HasPrefix(path, dir+"/") {
				continue
			}
			out = append(out, trashEntry{
				ID: s.Session + "/" + strings.TrimLeft(e.ID, "0"), Path: wire.Name(path), Type: e.Type, Op: e.Op, Size: e.Size, Time: e.Time,
				Session: s.Session, Running: running, Rule: e.Rule, session: s, id: e.ID,
			})
		}
	}
	return out, nil
}

// trashHere is the directory whose files are meant: the current one, unless all
// are.
func trashHere(all bool) (string, error) {
	if all {
		return "", nil
	}
	here, err := os.Getwd()
	if err != nil {
		return "", failure.New(failure.Ours, err, "")
	}
	return here, nil
}

func newTrashListCommand(from *string) *cobra.Command {
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List deleted files from below the current directory",
		Example: "  agentsh trash list\n  agentsh trash list --all --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			here, err := trashHere(all || *from != "")
			if err != nil {
				return err
			}
			list, err := trashScope{from: *from}.entries(here)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(list)
			}
			return printTrash(cmd.OutOrStdout(), here, list)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	cmd.Flags().BoolVar(&all, "all", false, "wherever they lay")
	return cmd
}

// printTrash prints a table; of an empty trash, nothing.
func printTrash(out io.Writer, here string, list []trashEntry) error {
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tKEPT\tBY\tTYPE\tSIZE\tPATH")
	for _, e := range list {
		path := e.Path
		if rel, err := filepath.Rel(here, string(path)); here != "" && err == nil {
			path = wire.Name(rel)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\n", e.ID, e.Time.Format(time.RFC3339), e.Op, e.Type, e.Size, text.Visible(string(path)))
	}
	return w.Flush()
}

func newTrashRestoreCommand(from *string) *cobra.Command {
	var force bool
	var to string
	cmd := &cobra.Command{
		Use:   "restore ID ...",
		Short: "Restore deleted files to their old paths",
		Long: `Restore deleted files to their old paths, with their content, mode, owner and time.

What has the name now is not overwritten without --force. Directories come before
what lay in them, whatever the order of the arguments. The sandbox of a run is
gone: --to names the directory that stands for its workspace.`,
		Example: "  agentsh trash restore 3kq0c1r7x2ab/4\n  agentsh trash restore --from out/trash --to recovered 3kq0c1r7x2ab/4",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, ids []string) error {
			place, err := restoreScope(*from, to)
			if err != nil {
				return err
			}
			entries, err := place.find(ids)
			if err != nil {
				return err
			}
			for _, dirs := range []bool{true, false} {
				for _, e := range inOrder(entries) {
					if (e.Type == "dir") != dirs {
						continue
					}
					if err := e.restore(cmd.Context(), force); err != nil {
						return trashFailure(err)
					}
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace files that have the names now")
	cmd.Flags().StringVar(&to, "to", "", "with --from: the `DIR` that stands for the workspace of the run")
	return cmd
}

// restoreScope is the trash that the flags name, with the directory for its files.
func restoreScope(from, to string) (p trashScope, err error) {
	if (from == "") != (to == "") {
		return p, failure.Usagef("--from and --to belong together: the trash of a run, and where its files go")
	}
	p.from = from
	if to == "" {
		return p, nil
	}
	if p.to, err = filepath.Abs(to); err == nil {
		p.to, err = filepath.EvalSymlinks(p.to)
	}
	if err != nil {
		return p, failure.New(failure.Ours, err, "make the directory first")
	}
	return p, nil
}

// inOrder sorts the shortest paths first: a directory before its content.
func inOrder(list []trashEntry) []trashEntry {
	return slices.SortedStableFunc(slices.Values(list), func(a, b trashEntry) int { return len(a.Path) - len(b.Path) })
}

// find finds deleted files by the ids that list prints.
func (p trashScope) find(ids []string) ([]trashEntry, error) {
	all, err := p.entries("")
	if err != nil {
		return nil, err
	}
	var out []trashEntry
next:
	for _, id := range ids {
		for _, e := range all {
			if e.ID == id {
				out = append(out, e)
				continue next
			}
		}
		return nil, failure.New(failure.Ours, fmt.Errorf("the trash has no file %q", id), "'agentsh trash list --all' names them")
	}
	return out, nil
}

func trashFailure(err error) error {
	switch {
	case errors.Is(err, os.ErrExist):
		return failure.New(failure.Ours, err, "--force replaces what has the name now")
	case errors.Is(err, trash.ErrInUse):
		return failure.New(failure.Ours, err, "wait until its command has ended")
	}
	return failure.New(failure.Ours, err, "")
}

// restore puts one file back, by its session while that runs.
func (e *trashEntry) restore(ctx context.Context, force bool) error {
	done, err := e.ask(ctx, wire.RecoveryRequest{Restore: e.id, Force: force})
	if done || err != nil {
		return err
	}
	path, err := e.session.Restore(e.id, force)
	if err != nil {
		return err
	}
	return announce(ctx, path)
}

// purge removes one file for good.
func (e *trashEntry) purge(ctx context.Context) error {
	done, err := e.ask(ctx, wire.RecoveryRequest{Purge: []string{e.id}})
	if done || err != nil {
		return err
	}
	return e.session.Purge(e.id)
}

// ask has the entry's session do something if it runs and can be reached.
func (e *trashEntry) ask(ctx context.Context, r wire.RecoveryRequest) (done bool, err error) {
	if !e.Running {
		return false, nil
	}
	return eachRunning(ctx, func(one host.Running) (wire.RecoveryRequest, bool) {
		return r, one.Session == e.session.Session
	})
}

// announce reports a written path to the running sessions that show it.
func announce(ctx context.Context, path string) error {
	_, err := eachRunning(ctx, func(one host.Running) (wire.RecoveryRequest, bool) {
		return wire.RecoveryRequest{Changed: []string{path}}, path == one.Workspace || strings.HasPrefix(path, one.Workspace+"/")
	})
	return err
}

// eachRunning asks every running session for which want has a request, and
// reports whether there was one.
func eachRunning(ctx context.Context, want func(host.Running) (wire.RecoveryRequest, bool)) (asked bool, err error) {
	registry, err := host.OpenRegistry()
	if err != nil {
		return false, nil //nolint:nilerr // without a runtime directory no session can be running in the background
	}
	list, err := registry.List()
	if err != nil {
		return false, err
	}
	for _, one := range list {
		r, ok := want(one)
		if !ok {
			continue
		}
		client, _, err := registry.Attach(ctx, one.Name, version)
		if errors.Is(err, host.ErrNoSession) {
			continue
		}
		if err != nil {
			return asked, err
		}
		asked = true
		if err := errors.Join(client.Recover(ctx, r), client.Close()); err != nil {
			return asked, err
		}
	}
	return asked, nil
}

func newTrashPurgeCommand(from *string) *cobra.Command {
	var all bool
	var older time.Duration
	cmd := &cobra.Command{
		Use:   "purge [ID ...]",
		Short: "Remove deleted files for good",
		Long: `Remove deleted files for good: those that are named, or with --all or --older those
of every session.`,
		Example: "  agentsh trash purge 3kq0c1r7x2ab/4\n  agentsh trash purge --older 168h",
		RunE: func(cmd *cobra.Command, ids []string) error {
			if (len(ids) > 0) == (all || older > 0) {
				return failure.Usagef("name files, or give --all or --older")
			}
			place := trashScope{from: *from}
			entries, err := place.find(ids)
			if len(ids) == 0 {
				entries, err = place.entries("")
			}
			if err != nil {
				return err
			}
			for _, e := range entries {
				if older > 0 && time.Since(e.Time) < older {
					continue
				}
				if err := e.purge(cmd.Context()); err != nil {
					return trashFailure(err)
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "all files of all sessions")
	cmd.Flags().DurationVar(&older, "older", 0, "all files that were deleted longer than `DURATION` ago")
	return cmd
}
