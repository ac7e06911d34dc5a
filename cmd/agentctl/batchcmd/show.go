package batchcmd

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/batch"
	runreport "agentsh/controller/report"
	"agentsh/controller/runtime"
	"agentsh/internal/text"
)

func newBatchListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List batches, the newest first",
		Example: "  agentctl batch list",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := settings.RunsState()
			if err != nil {
				return err
			}
			all, unread := batch.List(state)
			if asJSON {
				err = output.WriteJSON(cmd.OutOrStdout(), append([]*batch.View{}, all...))
			} else {
				err = printBatches(cmd.OutOrStdout(), all)
			}
			if unread != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: errors.Join(err, unread)}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}

// printBatches prints a table; without batches, nothing.
func printBatches(w io.Writer, all []*batch.View) error {
	if len(all) == 0 {
		return nil
	}
	rows := [][]string{{"BATCH", "STATUS", "NAME", "STARTED", "DONE", "FAILED", "RUNNING", "WAITING"}}
	for _, v := range all {
		c := v.Counts
		rows = append(rows, []string{
			v.ID, text.Visible(v.Status), text.Short(v.Name, 40), v.Created.Local().Format(time.DateTime),
			fmt.Sprintf("%d of %d", c.Done(), c.All), fmt.Sprint(c.Failed() + c.Dropped), fmt.Sprint(c.Running), fmt.Sprint(c.Waiting),
		})
	}
	return output.PrintRows(w, rows)
}

func newBatchShowCommand() *cobra.Command {
	var asJSON bool
	var labels []string
	cmd := &cobra.Command{
		Use:               "show BATCH",
		Short:             "Show the runs of a batch",
		Example:           "  agentctl batch show latest\n  agentctl batch show latest --label harness=fix --json",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeBatches(func(*batch.View) bool { return true }),
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted, err := labelsOf(labels)
			if err != nil {
				return err
			}
			v, err := findBatch(args[0])
			if err != nil {
				return err
			}
			v.State = slices.DeleteFunc(v.State, func(i batch.ItemView) bool { return !i.Matches(wanted) })
			if asJSON {
				return output.WriteJSON(cmd.OutOrStdout(), v)
			}
			w := bufio.NewWriter(cmd.OutOrStdout())
			if err := printBatch(w, v); err != nil {
				return err
			}
			return w.Flush()
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	addLabels(cmd, &labels, "only the runs with `NAME=VALUE`")
	return cmd
}

func addLabels(cmd *cobra.Command, into *[]string, usage string) {
	cmd.Flags().StringArrayVarP(into, "label", "", nil,
		usage+": a label of the file, or run, harness, repo, backend or model; may be given again")
}

// labelsOf reads the values of --label.
func labelsOf(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, one := range list {
		name, value, found := strings.Cut(one, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("--label %q: write NAME=VALUE", one)
		}
		if other, twice := out[name]; twice && other != value {
			return nil, fmt.Errorf("--label %s: %q and %q: a run has one value", name, other, value)
		}
		out[name] = value
	}
	return out, nil
}

// printBatch describes a batch.
func printBatch(w io.Writer, v *batch.View) error {
	fmt.Fprintf(w, "%s  %s, batch %s\n%s\n\n", text.Visible(v.Name), text.Visible(v.Status), v.ID, countsText(v))
	rows := [][]string{{"RUN", "STATE", "ATTEMPTS", "TOOK", "TOKENS", "COST", "ID", ""}}
	for i := range v.State {
		one := &v.State[i]
		rows = append(rows, []string{
			one.Name, stateText(one), fmt.Sprint(one.Attempts), tookItem(one), tokensText(one.Usage), costText(one.Usage.CostUSD),
			orNone(one.RunID), whyText(one),
		})
	}
	return output.PrintRows(w, rows)
}

func orNone(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// stateText is the state of a run; of one that has ended, how.
func stateText(one *batch.ItemView) string {
	if one.State == batch.StateEnded && one.End != nil {
		return strings.ReplaceAll(text.Visible(one.End.Status), "_", " ")
	}
	return strings.ReplaceAll(text.Visible(one.State), "_", " ")
}

// whyText says why a run is as it is.
func whyText(one *batch.ItemView) string {
	switch {
	case one.State == batch.StateDropped:
		return "stopped by " + text.Visible(one.By)
	case one.End == nil || one.State == batch.StateRunning:
		return ""
	case one.End.Message != "":
		return text.Short(strings.TrimPrefix(one.End.Step+": "+one.End.Message, ": "), 200)
	case one.End.Branch != "":
		return one.End.Branch
	}
	return ""
}

func tookItem(one *batch.ItemView) string {
	switch {
	case one.State == batch.StateRunning:
		return output.Since(one.Started, time.Now()).Round(time.Second).String() + " so far"
	case one.End != nil:
		return output.Since(one.End.Started, one.End.Ended).String()
	}
	return "-"
}

// tokensText is a number of tokens in a few characters.
func tokensText(u runtime.Usage) string {
	n := u.Tokens()
	switch {
	case n == 0:
		return "-"
	case n < 10_000:
		return fmt.Sprint(n)
	case n < 10_000_000:
		return fmt.Sprintf("%dk", n/1000)
	}
	return fmt.Sprintf("%dM", n/1_000_000)
}

func costText(usd float64) string {
	if usd == 0 {
		return "-"
	}
	return fmt.Sprintf("$%.2f", usd)
}

// countsText counts the runs of a batch on one line.
func countsText(v *batch.View) string {
	c := v.Counts
	parts := []string{fmt.Sprintf("%d of %d done", c.Done(), c.All)}
	for _, status := range slices.Sorted(maps.Keys(c.Ended)) {
		if status != controller.StatusDone {
			parts = append(parts, fmt.Sprintf("%d %s", c.Ended[status], strings.ReplaceAll(text.Visible(status), "_", " ")))
		}
	}
	for _, p := range []struct {
		n    int
		name string
	}{{c.Running, "running"}, {c.Waiting, "waiting"}, {c.Dropped, "dropped"}} {
		if p.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", p.n, p.name))
		}
	}
	if v.Usage.Tokens() > 0 || v.Budget.Tokens > 0 {
		parts = append(parts, ofBudget(tokensText(v.Usage), tokensText(runtime.Usage{Input: v.Budget.Tokens}))+" tokens")
	}
	if v.Usage.CostUSD > 0 || v.Budget.USD > 0 {
		parts = append(parts, ofBudget(fmt.Sprintf("$%.2f", v.Usage.CostUSD), costText(v.Budget.USD)))
	}
	return strings.Join(parts, ", ")
}

func ofBudget(used, budget string) string {
	if budget == "-" {
		return used
	}
	return used + " of " + budget
}

func newBatchStopCommand() *cobra.Command {
	var labels []string
	cmd := &cobra.Command{
		Use:   "stop BATCH",
		Short: "Stop runs of a batch",
		Long: `stop stops the runs of a batch that have all given labels, without --label all of them:
those that go on are stopped as by Ctrl-C, with the work done so far delivered, and
those that wait are not started. Neither is started again, also not by 'batch resume'. The
other runs of the batch go on.`,
		Example:           "  agentctl batch stop latest --label repo=site\n  agentctl batch stop latest",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeBatches(func(v *batch.View) bool { return v.Live }),
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted, err := labelsOf(labels)
			if err != nil {
				return err
			}
			v, err := findBatch(args[0])
			if err != nil {
				return err
			}
			if !v.Live {
				return &output.Failure{Code: controller.ExitConfiguration, Err: fmt.Errorf("batch %s is not going on: %s", v.ID, v.Status)}
			}
			stopped, dropped, err := v.Stop(cmd.Context(), wanted)
			if err != nil {
				return &output.Failure{Code: controller.ExitSandbox, Err: err}
			}
			if stopped+dropped == 0 {
				return &output.Failure{
					Code: controller.ExitConfiguration, Err: errors.New("no run that goes on or waits has these labels"),
					Hint: "'agentctl batch show " + v.ID + " --json' has the labels",
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "stopped %s, dropped %d\n", text.Count(stopped, "run"), dropped)
			return nil
		},
	}
	addLabels(cmd, &labels, "only the runs with `NAME=VALUE`")
	return cmd
}

func newBatchReportCommand() *cobra.Command {
	var out, format string
	cmd := &cobra.Command{
		Use:   "report BATCH [--out FILE]",
		Short: "Make one page of a batch",
		Long: `Make one page of a batch: its runs with how they ended, attempts, times, tokens and
cost. The HTML page needs no other file, runs no script and loads nothing. The page of
a run is made by 'agentctl runs report'.`,
		Example:           "  agentctl batch report latest --out batch.html",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeBatches(func(*batch.View) bool { return true }),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := findBatch(args[0])
			if err != nil {
				return err
			}
			page := runreport.NewBatch(v)
			return settings.WritePage(cmd, out, format, page.HTML, page.Markdown)
		},
	}
	settings.AddPageFlags(cmd, &out, &format)
	return cmd
}
