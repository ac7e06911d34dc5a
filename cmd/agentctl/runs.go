package main

import (
	"bufio"
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

	"agentsh/controller"
	"agentsh/controller/record"
	runreport "agentsh/controller/report"
	"agentsh/internal/statedir"
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

// runsState opens the state directory.
func runsState() (statedir.Dir, error) {
	state, _, err := placeFlags{}.openState("", "")
	return state, err
}

// findRun finds a run, or returns an error with a hint.
func findRun(name string) (record.Run, error) {
	state, err := runsState()
	if err != nil {
		return record.Run{}, err
	}
	one, err := record.Find(state, name)
	switch {
	case errors.Is(err, record.ErrNoRun):
		return one, &failure{code: controller.ExitConfiguration, err: err, hint: "'agentctl runs list' names them"}
	case err != nil:
		return one, &failure{code: controller.ExitConfiguration, err: err}
	}
	return one, nil
}

// completeRuns completes the first argument with the ids of those runs for
// which keep returns true.
func completeRuns(keep func(record.Run) bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		state, err := runsState()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, _ := record.List(state) // ignores unreadable records
		var out []cobra.Completion
		for _, one := range all {
			if keep(one) {
				out = append(out, cobra.CompletionWithDesc(one.RunID, text.Short(one.Agent+" "+one.Status, 60)))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

func anyRun(record.Run) bool { return true }

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
			state, err := runsState()
			if err != nil {
				return err
			}
			all, unread := record.List(state)
			all = slices.DeleteFunc(all, func(r record.Run) bool { return r.Kind != "" || status != "" && r.Status != status })
			if limit > 0 {
				all = all[:min(limit, len(all))]
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), append([]record.Run{}, all...))
			} else {
				err = printRuns(cmd.OutOrStdout(), all)
			}
			if unread != nil {
				return &failure{
					code: controller.ExitSandbox,
					err:  errors.Join(err, unread),
					hint: "'agentctl gc --runs-older-than 0' removes records that cannot be read",
				}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	cmd.Flags().StringVar(&status, "status", "", "only runs of this `STATUS`")
	cmd.Flags().IntVarP(&limit, "limit", "n", 0, "at most `N` runs (default all)")
	complete(cmd, "status", runStatuses)
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
		return since(r.Started, *r.Ended).String()
	case r.Live:
		return since(r.Started, time.Now()).Round(time.Second).String() + " so far"
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
			one, err := findRun(args[0])
			if err != nil {
				return err
			}
			r, err := runreport.Load(one)
			if err != nil {
				return &failure{code: controller.ExitSandbox, err: err}
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), struct {
					Run    record.Run         `json:"run"`
					Result *controller.Result `json:"result"` // null: there is no result
					Notes  []string           `json:"notes"`
				}{one, r.Result, append([]string{}, r.Notes...)})
			}
			return printRun(cmd.OutOrStdout(), r)
		},
		ValidArgsFunction: completeRuns(anyRun),
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
		fmt.Fprintf(w, "  %s\n", usageText(*u))
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
		fmt.Fprintf(w, "  %s%s\n", text.Visible(refusalText(r)), count)
	}
}

const (
	formatHTML     = "html"
	formatMarkdown = "markdown"
)

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
			one, err := findRun(args[0])
			if err != nil {
				return err
			}
			r, err := runreport.Load(one)
			if err != nil {
				return &failure{code: controller.ExitSandbox, err: err}
			}
			return writeReport(cmd, out, format, r.HTML, r.Markdown)
		},
		ValidArgsFunction: completeRuns(anyRun),
	}
	addReportFlags(cmd, &out, &format)
	return cmd
}

// addReportFlags adds the flags of the commands that make pages.
func addReportFlags(cmd *cobra.Command, out, format *string) {
	cmd.Flags().StringVar(out, "out", "", "write the page into `FILE`")
	cmd.Flags().StringVarP(format, "output", "o", "", "`FORMAT` of the page: html or markdown (default html, or what the name of FILE says)")
	complete(cmd, "output", []string{formatHTML, formatMarkdown})
}

// writeReport writes a page in a format.
func writeReport(cmd *cobra.Command, out, format string, html, markdown func(io.Writer) error) error {
	if format == "" {
		format = formatHTML
		if strings.HasSuffix(out, ".md") {
			format = formatMarkdown
		}
	}
	write := html
	switch format {
	case formatHTML:
	case formatMarkdown:
		write = markdown
	default:
		return fmt.Errorf("--output %s: use %s or %s", format, formatHTML, formatMarkdown)
	}
	if out == "" || out == "-" {
		return writePage(cmd.OutOrStdout(), write)
	}
	return writePageFile(out, write)
}

func writePage(out io.Writer, write func(io.Writer) error) error {
	w := bufio.NewWriter(out)
	if err := errors.Join(write(w), w.Flush()); err != nil {
		return &failure{code: controller.ExitSandbox, err: err}
	}
	return nil
}

// writePageFile replaces a file by the page, completely or not at all.
func writePageFile(name string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".")
	if err != nil {
		return &failure{code: controller.ExitConfiguration, err: fmt.Errorf("write page: %w", err)}
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	if err = errors.Join(writePage(f, write), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), name); err != nil {
		return &failure{code: controller.ExitConfiguration, err: fmt.Errorf("write page: %w", err)}
	}
	return nil
}
