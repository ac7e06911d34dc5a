package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/asking"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/channel"
	"agentsh/internal/foreground"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/supervisor/host"
)

func newApprovalsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "List and answer what waits for a person",
		Long: `List and answer what waits for a person: what a rule with 'decision: approve' holds
back. An answer covers the one thing that is shown. 'agentsh approve' asks on a
terminal instead.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newApprovalsListCommand(), newAnswerCommand("allow", true), newAnswerCommand("deny", false))
	return cmd
}

func newApprovalsListCommand() *cobra.Command {
	var session string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List what waits in a running session",
		Example: "  agentsh approvals list --session work --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, _, err := attachOne(cmd.Context(), session)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the session goes on without us
			list, err := client.Approvals(cmd.Context())
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(append([]wire.Pending{}, list...))
			}
			return printPending(cmd.OutOrStdout(), list, time.Now())
		},
	}
	cmd.Flags().StringVarP(&session, "session", "s", "", "the running session `NAME` (default: the only one)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}

// printPending prints a table; when nothing waits, nothing.
func printPending(out io.Writer, list []wire.Pending, now time.Time) error {
	if len(list) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ID\tKIND\tDENIED IN\tRULE\tWHAT")
	for _, p := range list {
		fmt.Fprintf(
			w,
			"%s\t%s\t%s\t%s\t%s\n",
			p.ID,
			p.Kind,
			p.Ends.Sub(now).Round(time.Second),
			text.Visible(ruleName(p.Rule)),
			asking.What(p.Question),
		)
	}
	return w.Flush()
}

func ruleName(r *wire.RuleAt) string {
	if r == nil {
		return "-"
	}
	return r.String()
}

func newAnswerCommand(verb string, allow bool) *cobra.Command {
	var session string
	var asJSON, always bool
	cmd := &cobra.Command{
		Use:     verb + " ID",
		Short:   strings.ToUpper(verb[:1]) + verb[1:] + " one thing that waits in a running session",
		Example: "  agentsh approvals " + verb + " --session work 7",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, _, err := attachOne(cmd.Context(), session)
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the session goes on without us
			answer := wire.ApprovalAnswer{ID: args[0], Allow: allow, Always: always, By: asking.Answerer()}
			if err := client.Answer(cmd.Context(), answer); err != nil {
				return failure.New(failure.Ours, err, "'agentsh approvals list' shows what waits")
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(answer)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&session, "session", "s", "", "the running session `NAME` (default: the only one)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print the answer as JSON")
	if allow {
		cmd.Flags().BoolVar(&always, "always", false, "allow the same later in the session too, without a question")
	}
	return cmd
}

// attachOne connects to a running session; without a name to the only one.
func attachOne(ctx context.Context, name string) (*channel.Client, host.Running, error) {
	registry, err := host.OpenRegistry()
	if err != nil {
		return nil, host.Running{}, failure.New(failure.Ours, err, "")
	}
	if name == "" {
		list, err := registry.List()
		if err != nil {
			return nil, host.Running{}, failure.New(failure.Ours, err, "")
		}
		if len(list) != 1 {
			return nil, host.Running{}, failure.New(failure.Ours, fmt.Errorf("%d sessions run", len(list)),
				"name one; 'agentsh session list' shows them")
		}
		name = list[0].Name
	}
	client, one, err := registry.Attach(ctx, name, version)
	if err != nil {
		return nil, one, sessionFailure(err)
	}
	return client, one, nil
}

func newApproveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "approve [SESSION]",
		Short: "Ask on this terminal about what waits for a person",
		Long: `Ask on this terminal about what a running session holds back for a person, until
interrupted. While it runs the session has an approver, which a policy with
'approvals: {via: tty}' needs. Nothing that a command writes reaches this terminal.`,
		Example: "  agentsh approve work",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !foreground.IsTerminal(cmd.InOrStdin()) {
				return failure.New(failure.Ours, errors.New("standard input is not a terminal"),
					"use 'agentsh approvals list' and 'agentsh approvals allow'")
			}
			client, one, err := attachOne(cmd.Context(), strings.Join(args, ""))
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the session goes on without us
			p := asking.NewPrompt(cmd.InOrStdin(), cmd.OutOrStdout(),
				func(a wire.ApprovalAnswer) error { return client.Answer(cmd.Context(), a) })
			var once sync.Once
			err = client.FollowApprovals(cmd.Context(), "", func(list []wire.Pending) error {
				once.Do(func() {
					fmt.Fprintf(cmd.OutOrStdout(), "agentsh: waiting for questions of session %s; end with ctrl-c\n", one.Name)
				})
				return p.Update(list)
			})
			if cmd.Context().Err() != nil {
				return nil
			}
			return failure.New(failure.Ours, err, "")
		},
	}
}
