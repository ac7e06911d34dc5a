package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/record"
	runreport "agentsh/controller/report"
	"agentsh/internal/text"
)

func newRunsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "runs",
		Short: "List runs and show their results",
		Long: `List runs and show their results.

A run is named by its id, by a beginning of it that no other run has, or by the
word latest. Its record stays for 30 days, with the audit log, what the agent
said and the lines it changed, each up to a bound; the results of the run are
in its --out directory.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRunsListCommand(), newRunsShowCommand(), newRunsReportCommand())
	return cmd
}

// runStatuses are the values of runs list --status.
var runStatuses = []string{
	record.StatusRunning, controller.StatusDone, controller.StatusAgentFailed, controller.StatusTimeout, controller.StatusValidationFailed,
	controller.StatusPostScriptFailed, controller.StatusBlocked, controller.StatusFailed, controller.StatusCancelled, controller.StatusSkipped,
	record.StatusAbandoned,
}

func newRunsListCommand() *cobra.Command {
	var asJSON bool
	var status string
	var limit int
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List runs, the newest first",
		Example: "  agentctl runs list --status running",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if status != "" && !slices.Contains(runStatuses, status) {
				return fmt.Errorf("unknown status %q: one of %s", status, strings.Join(runStatuses, ", "))
			}
			if limit < 0 {
				return fmt.Errorf("--limit %d: a number of runs", limit)
			}
			state, err := settings.RunsState()
			if err != nil {
				return err
			}
			all, unread := record.List(state)
			without := len(slices.DeleteFunc(slices.Clone(all), func(r record.Run) bool { return r.Kind != record.KindSandbox || !r.Live }))
			all = slices.DeleteFunc(all, func(r record.Run) bool { return r.Kind != "" || status != "" && r.Status != status })
			if limit > 0 {
				all = all[:min(limit, len(all))]
			}
			if asJSON {
				err = output.WriteJSON(cmd.OutOrStdout(), append([]record.Run{}, all...))
			} else {
				err = printRuns(cmd.OutOrStdout(), all)
			}
			if without > 0 && !asJSON {
				fmt.Fprintf(cmd.ErrOrStderr(), "agentctl: sandboxes without a run: %d; 'agentctl sandbox list' names them\n", without)
			}
			if unread != nil {
				return &output.Failure{
					Code: controller.ExitSandbox,
					Err:  errors.Join(err, unread),
					Hint: "'agentctl gc --runs-older-than 0' removes records that cannot be read",
				}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	cmd.Flags().StringVar(&status, "status", "", "only runs of this `STATUS`")
	cmd.Flags().IntVarP(&limit, "limit", "n", 0, "at most `N` runs (default all)")
	settings.Complete(cmd, "status", runStatuses)
	return cmd
}

// printRuns prints a table; without runs, nothing.
func printRuns(out io.Writer, all []record.Run) error {
	if len(all) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RUN\tSTATUS\tAGENT\tSTARTED\tTOOK\tREPOSITORY")
	for _, r := range all {
		agent := r.Agent
		if agent == "" {
			agent = filepath.Base(r.Harness)
		}
		fmt.Fprintf(
			w,
			"%s\t%s\t%s\t%s\t%s\t%s\n",
			r.RunID,
			text.Visible(r.Status),
			text.Short(agent, 40),
			r.Started.Local().Format(time.DateTime),
			tookText(r),
			text.Visible(r.Repo),
		)
	}
	return w.Flush()
}

func tookText(r record.Run) string {
	switch {
	case r.Ended != nil:
		return output.Since(r.Started, *r.Ended).String()
	case r.Live:
		return output.Since(r.Started, time.Now()).Round(time.Second).String() + " so far"
	}
	return "-"
}

func newRunsShowCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "show RUN",
		Example: "  agentctl runs show latest --json",
		Short:   "Show the result of a run",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			one, err := settings.FindRun(args[0])
			if err != nil {
				return err
			}
			r, err := runreport.Load(one)
			if err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			if asJSON {
				return output.WriteJSON(cmd.OutOrStdout(), struct {
					Run    record.Run         `json:"run"`
					Result *controller.Result `json:"result"` // null: there is no result
					Notes  []string           `json:"notes"`
				}{one, r.Result, append([]string{}, r.Notes...)})
			}
			return printRun(cmd.OutOrStdout(), r)
		},
		ValidArgsFunction: settings.CompleteRuns(settings.AnyRun),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object: run, result, notes")
	return cmd
}

// printRun describes a run.
func printRun(out io.Writer, r *runreport.Report) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, "%s  %s, run %s, %s\n", r.Title(), r.Status(), r.Run.RunID, tookText(r.Run))
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	if p := r.Problem; p != nil {
		fmt.Fprintf(w, "\n%s\n", strings.TrimPrefix(p.Step+": "+p.Message, ": "))
		for _, x := range p.List {
			fmt.Fprintf(w, "  %s\n", x)
		}
		if p.Hint != "" {
			fmt.Fprintf(w, "hint: %s\n", p.Hint)
		}
	}
	fmt.Fprintln(w, "\nsteps:")
	for _, s := range r.Steps {
		took := "did not end"
		if s.Ended {
			took = s.Took.Round(time.Millisecond).String()
		}
		if s.Error != "" {
			took += "  " + s.Error
		}
		fmt.Fprintf(w, "  %-16s %s\n", s.Name, took)
	}
	printIterations(w, r)
	if len(r.Findings) > 0 {
		fmt.Fprintln(w, "\nfindings:")
		for _, f := range r.Findings {
			fmt.Fprintf(w, "  %s\n", text.Visible(f.String()))
		}
		if r.Result != nil && r.Result.Review != nil {
			fmt.Fprintf(w, "  a person is to review this run: %s\n", text.Visible(r.Result.Review.Label))
		}
	}
	printRefusals(w, r.Result)
	if len(r.Files) > 0 {
		fmt.Fprintln(w, "\nchanged:")
		for _, f := range r.Files {
			fmt.Fprintf(w, "  %-8s %s%s  +%d -%d\n", f.Status, f.Path, f.By.Mark(), f.Added, f.Removed)
		}
	}
	if len(r.Operator) > 0 {
		fmt.Fprintln(w, "\ndone by operators:")
		for _, a := range r.Operator {
			fmt.Fprintf(w, "  %s %s: %s\n", a.Time.Local().Format(time.TimeOnly), text.Visible(a.By), text.Visible(a.What))
		}
	}
	fmt.Fprintln(w)
	for _, f := range r.Facts {
		fmt.Fprintf(w, "%-14s  %s\n", f.Name, f.Value)
	}
	return w.Flush()
}

func printIterations(w io.Writer, r *runreport.Report) {
	if r.Result == nil || len(r.Result.Iterations) == 0 {
		return
	}
	fmt.Fprintln(w, "\niterations:")
	for _, it := range r.Result.Iterations {
		fmt.Fprintf(w, "  %d  %s, %s", it.Number, runreport.ExitText(it.Exit), it.Duration.Round(time.Millisecond))
		if it.Validation != "" {
			fmt.Fprintf(w, ", validation %s", text.Visible(it.Validation))
		}
		fmt.Fprintln(w)
	}
	if u := r.TotalUsage(); u != nil {
		fmt.Fprintf(w, "  %s\n", output.UsageText(*u))
	}
}

func printRefusals(w io.Writer, x *controller.Result) {
	if x == nil || x.Refusals == 0 {
		return
	}
	fmt.Fprintf(w, "\nrefused %s:\n", text.Count(x.Refusals, "time"))
	for _, r := range x.Refused {
		count := ""
		if r.Count > 1 {
			count = fmt.Sprintf("  (%d times)", r.Count)
		}
		fmt.Fprintf(w, "  %s%s\n", text.Visible(output.RefusalText(r)), count)
	}
}

func newRunsReportCommand() *cobra.Command {
	var out, format string
	cmd := &cobra.Command{
		Use:   "report RUN [--out FILE]",
		Short: "Make one page of a run",
		Long: `Make one page of a run: its steps, what the agent said and did, the lines it
changed, commands with what the policy decided, connections, findings, tokens and
cost. The HTML page needs no other file, runs no script and loads nothing.

The page is made from the files stored with the record of the run. It names what
is missing.`,
		Example: "  agentctl runs report latest --out run.html",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			one, err := settings.FindRun(args[0])
			if err != nil {
				return err
			}
			r, err := runreport.Load(one)
			if err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			return settings.WritePage(cmd, out, format, r.HTML, r.Markdown)
		},
		ValidArgsFunction: settings.CompleteRuns(settings.AnyRun),
	}
	settings.AddPageFlags(cmd, &out, &format)
	return cmd
}
