package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/cmd/agentsh/asking"
	"agentsh/controller"
	"agentsh/controller/attach"
	"agentsh/controller/record"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// NewApprovals is agentctl approvals.
func NewApprovals() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "List and answer what waits for a person, in all runs",
		Long: `List and answer what waits for a person in the sandboxes of this user's runs: what a rule
with 'decision: approve' holds back, where the policy has approvals: {via: channel} or {via:
webhook}. An answer covers the one thing that is shown.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newApprovalsListCommand(), newAnswerCommand("allow", true), newAnswerCommand("deny", false))
	return cmd
}

// Question is a question of a run.
type Question struct {
	ID    string `json:"question"` // RUN/ID
	Agent string `json:"agent"`
	Batch string `json:"batch,omitempty"`
	Run   string `json:"batch_run,omitempty"` // name of the run in the batch
	wire.Pending
}

// askTime is how long the sandbox of one run may take to answer.
const askTime = 10 * time.Second

// Questions asks the sandboxes of all runs for what waits. The error names the runs that did not
// answer.
func Questions(ctx context.Context) ([]Question, error) {
	state, err := settings.RunsState()
	if err != nil {
		return nil, err
	}
	all, _ := attach.List(state) // a record that cannot be read has no sandbox
	found := make([][]Question, len(all))
	failed := make([]error, len(all))
	var asked sync.WaitGroup
	room := make(chan struct{}, 16)
	for i, one := range all {
		asked.Go(func() {
			room <- struct{}{}
			defer func() { <-room }()
			found[i], failed[i] = questionsOf(ctx, one)
		})
	}
	asked.Wait()
	var out []Question
	for _, list := range found {
		out = append(out, list...)
	}
	return out, errors.Join(failed...)
}

func questionsOf(ctx context.Context, one record.Run) ([]Question, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, fmt.Errorf("sandbox %s does not answer", one.Sandbox))
	defer cancel()
	client, err := Dial(ctx, one)
	if err != nil {
		return nil, err
	}
	defer func() { _ = client.Close() }() // the sandbox goes on without us
	list, err := client.Approvals(ctx)
	if err != nil {
		return nil, fmt.Errorf("sandbox %s: %w", one.Sandbox, err)
	}
	out := make([]Question, len(list))
	for i, p := range list {
		out[i] = Question{ID: one.Sandbox + "/" + p.ID, Agent: one.Agent, Pending: p}
		if m := one.Batch; m != nil {
			out[i].Batch, out[i].Run = m.ID, m.Name
		}
	}
	return out, nil
}

func newApprovalsListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List what waits in the sandboxes of all runs",
		Example: "  agentctl approvals list --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, unasked := Questions(cmd.Context())
			var err error
			if asJSON {
				err = output.WriteJSON(cmd.OutOrStdout(), append([]Question{}, list...))
			} else {
				err = printQuestions(cmd.OutOrStdout(), list, time.Now())
			}
			if unasked != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: errors.Join(err, unasked)}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}

// printQuestions prints a table; when nothing waits, nothing.
func printQuestions(w io.Writer, list []Question, now time.Time) error {
	if len(list) == 0 {
		return nil
	}
	rows := [][]string{{"QUESTION", "AGENT", "KIND", "DENIED IN", "RULE", "WHAT"}}
	for _, q := range list {
		rule := "-"
		if q.Rule != nil {
			rule = text.Visible(q.Rule.String())
		}
		agent := q.Agent
		if q.Run != "" {
			agent = q.Run
		}
		rows = append(rows, []string{
			q.ID, text.Short(agent, 40), text.Visible(q.Kind), max(q.Ends.Sub(now), 0).Round(time.Second).String(), rule, asking.What(q.Question),
		})
	}
	return output.PrintRows(w, rows)
}

func newAnswerCommand(verb string, allow bool) *cobra.Command {
	var always bool
	cmd := &cobra.Command{
		Use:     verb + " QUESTION...",
		Short:   strings.ToUpper(verb[:1]) + verb[1:] + " what waits in a sandbox",
		Long:    verb + " answers questions of 'agentctl approvals list': RUN/NUMBER, where RUN is named as for 'agentctl sandbox'.",
		Example: "  agentctl approvals " + verb + " latest/1",
		Args:    cobra.MinimumNArgs(1),
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			list, _ := Questions(cmd.Context()) // without those of sandboxes that do not answer
			var out []cobra.Completion
			for _, q := range list {
				out = append(out, cobra.CompletionWithDesc(q.ID, text.Short(asking.What(q.Question), 60)))
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range args {
				if err := Answer(cmd.Context(), name, wire.ApprovalAnswer{Allow: allow, Always: always, By: asking.Answerer()}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	if allow {
		cmd.Flags().BoolVar(&always, "always", false, "allow the same later in the run too, without a question")
	}
	return cmd
}

// Answer answers one question, RUN/NUMBER.
func Answer(ctx context.Context, name string, answer wire.ApprovalAnswer) error {
	run, id, found := strings.Cut(name, "/")
	if !found || run == "" || id == "" {
		return &output.Failure{
			Code: controller.ExitConfiguration, Err: fmt.Errorf("%.64q is no question: write RUN/NUMBER", name),
			Hint: "'agentctl approvals list' shows what waits",
		}
	}
	client, _, err := attachTo(ctx, run)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // the sandbox goes on without us
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	answer.ID = id
	if err := client.Answer(ctx, answer); err != nil {
		return &output.Failure{Code: controller.ExitSandbox, Err: err, Hint: "'agentctl approvals list' shows what waits"}
	}
	return nil
}
