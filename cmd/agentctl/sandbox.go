package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsh/controller"
	"agentsh/controller/attach"
	"agentsh/controller/record"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/channel"
	"agentsh/internal/text"
)

func newSandboxCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sandbox",
		Short: "Work in the sandboxes of running runs",
		Long: `Work in the sandboxes of running runs.

A sandbox exists while its run is running. With agentctl run --keep-sandbox it goes
on after an agent that failed, or an agentctl that was killed, until its lease ends:
list says when. It is named as its run is: by its id, by a beginning of it that no
other sandbox has, or by the word latest.

Commands are subject to the policy of the run. The run's record and its audit log
name them as the operator's.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newSandboxListCommand(),
		newSandboxExecCommand(),
		newSandboxShellCommand(),
		newSandboxCpCommand(),
		newSandboxLogsCommand(),
		newSandboxDeleteCommand(),
	)
	return cmd
}

// findSandbox finds the run of a sandbox, or returns an error with a hint.
func findSandbox(name string) (record.Run, error) {
	state, err := runsState()
	if err != nil {
		return record.Run{}, err
	}
	one, err := attach.Find(state, name)
	switch {
	case errors.Is(err, attach.ErrNoSandbox):
		return one, &failure{
			code: controller.ExitConfiguration,
			err:  err,
			hint: "'agentctl sandbox list' names them; 'agentctl runs list' has the runs that ended",
		}
	case err != nil:
		return one, &failure{code: controller.ExitConfiguration, err: err}
	}
	return one, nil
}

// attachTo connects to a sandbox. The caller closes the client.
func attachTo(ctx context.Context, name string) (*channel.Client, record.Run, error) {
	one, err := findSandbox(name)
	if err != nil {
		return nil, one, err
	}
	client, err := dial(ctx, one)
	if err != nil {
		return nil, one, &failure{code: controller.ExitSandbox, err: err}
	}
	return client, one, nil
}

// dial connects to the sandbox of a run, whether its controller is alive or not.
func dial(ctx context.Context, one record.Run) (*channel.Client, error) {
	if one.Live {
		return attach.Dial(ctx, one, version)
	}
	kept, err := keptSandbox(one)
	if err != nil {
		return nil, err
	}
	return attach.DialKept(ctx, one, kept, version)
}

// keptSandbox is the sandbox of a run whose controller is gone.
func keptSandbox(one record.Run) (local.Kept, error) {
	state, err := runsState()
	if err != nil {
		return local.Kept{}, err
	}
	kept, ok := local.FindKept(state, one.Sandbox)
	if !ok {
		return kept, fmt.Errorf("sandbox %s has ended", one.Sandbox)
	}
	return kept, nil
}

// hasSandbox reports whether a run may have a sandbox that accepts connections.
func hasSandbox(one record.Run) bool { return one.Sandbox != "" && (one.Live || one.KeptUntil != nil) }

// sandboxJSON is one sandbox of the list.
type sandboxJSON struct {
	Sandbox string     `json:"sandbox"`
	RunID   string     `json:"run_id"`
	Backend string     `json:"backend"`
	Agent   string     `json:"agent"`
	Repo    string     `json:"repo"`
	Step    string     `json:"step"` // current step of the run
	Started time.Time  `json:"started"`
	Until   *time.Time `json:"kept_until,omitempty"` // the sandbox is retained until then
}

func newSandboxListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Example: "  agentctl sandbox list --json",
		Short:   "List sandboxes, the newest first",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := runsState()
			if err != nil {
				return err
			}
			all, unread := attach.List(state)
			list := []sandboxJSON{}
			for _, one := range all {
				s := sandboxJSON{
					Sandbox: one.Sandbox,
					RunID:   one.RunID,
					Backend: one.Backend,
					Agent:   one.Agent,
					Repo:    one.Repo,
					Started: one.Started,
					Until:   one.KeptUntil,
				}
				if n := len(one.Steps); n > 0 {
					s.Step = one.Steps[n-1].Name
				}
				list = append(list, s)
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), list)
			} else {
				err = printSandboxes(cmd.OutOrStdout(), list)
			}
			if err = errors.Join(err, unread); err != nil {
				return &failure{code: controller.ExitSandbox, err: err}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}

// printSandboxes prints a table; without sandboxes, nothing.
func printSandboxes(out io.Writer, list []sandboxJSON) error {
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
			text.Short(s.Agent, 40),
			s.Step,
			s.Started.Local().Format(time.DateTime),
			until,
			text.Visible(s.Repo),
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
		return &failure{code: controller.ExitSandbox, err: err}
	}
	return nil
}

func newSandboxDeleteCommand() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "delete SANDBOX [--force]",
		Example: "  agentctl sandbox delete 20260102-fix",
		Short:   "End the run of a sandbox and wait until nothing of it is left",
		Long: `End the run of a sandbox and wait until the sandbox is deleted. The agent is stopped
and what it did so far is taken out, as at Ctrl-C of agentctl run; with --force it
is not. A sandbox that is kept after its run is deleted at once.`,
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
				return &failure{code: controller.ExitSandbox, err: err}
			}
			if err := one.WaitEnd(cmd.Context()); err != nil {
				return &failure{code: controller.ExitSandbox, err: fmt.Errorf("wait for the end of run %s: %w", one.RunID, err)}
			}
			return nil
		},
		ValidArgsFunction: completeRuns(hasSandbox),
	}
	cmd.Flags().BoolVar(&force, "force", false, "take nothing out")
	return cmd
}
