// Package sandboxcmd has the commands by which people and programs work in sandboxes.
package sandboxcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/attach"
	"agentsh/controller/record"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/channel"
	"agentsh/internal/text"
)

// New is agentctl sandbox.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sandbox",
		Short: "Make sandboxes, and work in them and in those of running runs",
		Long: `Make sandboxes, and work in them and in those of running runs.

'create' makes a sandbox that goes on until 'delete', or until nobody has used it for a
time. The sandbox of a run exists while the run is running. With agentctl run
--keep-sandbox it goes on after an agent that failed, or an agentctl that was killed, until
its lease ends: list says when. A sandbox is named by its id, by a beginning of it that no
other sandbox has, or by the word latest.

Commands are subject to the policy of the sandbox. Its record and its audit log name them as
the operator's. Most commands print JSON with --json; doc/sandboxes.md has the forms.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newSandboxCreateCommand(),
		newSandboxListCommand(),
		newSandboxExecCommand(),
		newSandboxShellCommand(),
		newSandboxConnectCommand(),
		newSandboxCpCommand(),
		newSandboxSnapshotCommand(),
		newSandboxRollbackCommand(),
		newSandboxSaveCommand(),
		newSandboxLogsCommand(),
		newSandboxDeleteCommand(),
		newSandboxServeCommand(),
		newSandboxHoldCommand(),
	)
	return cmd
}

// findSandbox finds the run of a sandbox, or returns an error with a hint.
func findSandbox(name string) (record.Run, error) {
	state, err := settings.RunsState()
	if err != nil {
		return record.Run{}, err
	}
	one, err := attach.Find(state, name)
	switch {
	case errors.Is(err, attach.ErrNoSandbox):
		return one, &output.Failure{
			Code: controller.ExitConfiguration,
			Err:  err,
			Hint: "'agentctl sandbox list' names them; 'agentctl runs list' has the runs that ended",
		}
	case err != nil:
		return one, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	return one, nil
}

// attachTo connects to a sandbox. The caller closes the client.
func attachTo(ctx context.Context, name string) (*channel.Client, record.Run, error) {
	one, err := findSandbox(name)
	if err != nil {
		return nil, one, err
	}
	client, err := Dial(ctx, one)
	if err != nil {
		return nil, one, &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	return client, one, nil
}

// Dial connects to the sandbox of a run, whether its controller is alive or not.
func Dial(ctx context.Context, one record.Run) (*channel.Client, error) {
	if one.Live {
		return attach.Dial(ctx, one, output.Version)
	}
	kept, err := keptSandbox(one)
	if err != nil {
		return nil, err
	}
	return attach.DialKept(ctx, one, kept, output.Version)
}

// keptSandbox is the sandbox of a run whose controller is gone.
func keptSandbox(one record.Run) (local.Kept, error) {
	state, err := settings.RunsState()
	if err != nil {
		return local.Kept{}, err
	}
	kept, ok := local.FindKept(state, one.Sandbox)
	if !ok {
		return kept, fmt.Errorf("sandbox %s has ended", one.Sandbox)
	}
	return kept, nil
}

// SandboxJSON is one sandbox of the list.
type SandboxJSON struct {
	Sandbox string            `json:"sandbox"`
	RunID   string            `json:"run_id"`
	Backend string            `json:"backend"`
	Kind    string            `json:"kind"` // run, or sandbox: it was made without one
	Agent   string            `json:"agent,omitempty"`
	Repo    string            `json:"repo"`
	Step    string            `json:"step"` // current step of the run
	Started time.Time         `json:"started"`
	Until   *time.Time        `json:"kept_until,omitempty"` // the sandbox is retained until then
	Labels  map[string]string `json:"labels,omitempty"`
	Idle    int64             `json:"idle_seconds,omitempty"` // it ends when nobody has used it for that long
	Dir     string            `json:"dir,omitempty"`          // where commands start
}

func newSandboxListCommand() *cobra.Command {
	var asJSON bool
	var labels []string
	cmd := &cobra.Command{
		Use:     "list",
		Example: "  agentctl sandbox list --json\n  agentctl sandbox list --label task=7",
		Short:   "List sandboxes, the newest first",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := settings.RunsState()
			if err != nil {
				return err
			}
			wanted, err := pairs("--label", labels)
			if err != nil {
				return err
			}
			all, unread := attach.List(state)
			list := []SandboxJSON{}
			for _, one := range all {
				if !hasLabels(one.Labels, wanted) {
					continue
				}
				s := SandboxJSON{
					Sandbox: one.Sandbox,
					RunID:   one.RunID,
					Backend: one.Backend,
					Kind:    cmp.Or(one.Kind, "run"),
					Agent:   one.Agent,
					Repo:    one.Repo,
					Started: one.Started,
					Until:   one.KeptUntil,
					Labels:  one.Labels, Idle: one.LeaseSeconds, Dir: one.Workdir,
				}
				if one.Kind == record.KindSandbox {
					s.Agent = ""
				}
				if n := len(one.Steps); n > 0 {
					s.Step = one.Steps[n-1].Name
				}
				list = append(list, s)
			}
			if asJSON {
				err = output.WriteJSON(cmd.OutOrStdout(), list)
			} else {
				err = printSandboxes(cmd.OutOrStdout(), list)
			}
			if err = errors.Join(err, unread); err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "only those with the label `NAME=VALUE`; may be given again")
	return cmd
}

// hasLabels reports whether a sandbox has all wanted labels.
func hasLabels(has, wanted map[string]string) bool {
	for name, value := range wanted {
		if got, ok := has[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// printSandboxes prints a table; without sandboxes, nothing.
func printSandboxes(out io.Writer, list []SandboxJSON) error {
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SANDBOX\tBACKEND\tAGENT\tSTEP\tSTARTED\tKEPT UNTIL\tREPOSITORY")
	for _, s := range list {
		until := "-"
		if s.Until != nil {
			until = s.Until.Local().Format(time.DateTime)
		}
		fmt.Fprintf(
			w,
			"%s\t%s\t%s\t%s\t%s\t%s\t%s\n",
			s.Sandbox,
			s.Backend,
			text.Short(cmp.Or(s.Agent, "-"), 40),
			s.Step,
			s.Started.Local().Format(time.DateTime),
			until,
			text.Visible(cmp.Or(s.Repo, "-")),
		)
	}
	return w.Flush()
}

// deleteKept deletes the sandbox of a run whose controller is gone.
func deleteKept(ctx context.Context, one record.Run) error {
	kept, err := keptSandbox(one)
	if err == nil {
		err = errors.Join(kept.Delete(ctx), attach.Remove(one.Path))
	}
	if err != nil {
		return &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	return nil
}

func newSandboxDeleteCommand() *cobra.Command {
	var force, asJSON bool
	cmd := &cobra.Command{
		Use:     "delete SANDBOX [--force]",
		Example: "  agentctl sandbox delete 20260102-fix",
		Short:   "Delete a sandbox and wait until nothing of it is left",
		Long: `Delete a sandbox and wait until nothing of it is left. One of a run ends the run: the
agent is stopped and what it did so far is taken out, as at Ctrl-C of agentctl run; with
--force it is not. One without a run, and one that is kept after its run, is deleted at
once. The record with the audit log stays.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			one, err := findSandbox(args[0])
			if err != nil {
				return err
			}
			if !one.Live {
				return deleteKept(cmd.Context(), one)
			}
			client, one, err := attachTo(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			err = client.StopRun(cmd.Context(), force)
			if err = errors.Join(err, client.Close()); err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			if err := one.WaitEnd(cmd.Context()); err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: fmt.Errorf("wait for the end of run %s: %w", one.RunID, err)}
			}
			if asJSON {
				return output.WriteJSON(cmd.OutOrStdout(), map[string]string{"sandbox": one.Sandbox, "record": one.Path})
			}
			return nil
		},
		ValidArgsFunction: settings.CompleteRuns(settings.HasSandbox),
	}
	cmd.Flags().BoolVar(&force, "force", false, "take nothing out")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object with the directory of the record")
	return cmd
}
