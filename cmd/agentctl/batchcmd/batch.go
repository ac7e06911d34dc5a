// Package batchcmd has the commands of agentctl batch.
package batchcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/batch"
	"agentsh/controller/harness"
	"agentsh/controller/sandbox"
	"agentsh/internal/text"
)

// batchFlags are the flags of agentctl batch.
type batchFlags struct {
	run      settings.Run // what each run works with
	out      string
	json     bool
	dryRun   bool
	once     bool
	deadline time.Duration
	tokens   int64
	usd      float64
	metrics  settings.Metrics
}

// New is agentctl batch.
func New() *cobra.Command {
	cmd := new(batchFlags).command()
	cmd.AddCommand(
		newBatchListCommand(), newBatchShowCommand(), newBatchStopCommand(), newBatchResumeCommand(), newBatchReportCommand(),
	)
	return cmd
}

// command is agentctl batch without its subcommands.
func (f *batchFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "batch FILE|-",
		Short: "Run many agents",
		Long: `batch runs the agents that a file lists: harnesses, repositories and variables, or a
matrix of them. The file says how many run at the same time, in all, on a backend and with
the models of a provider. Harnesses take turns, and so do their repositories. A run
that failed by trouble of the infrastructure is started again, an agent that failed is
not. - reads the file from standard input. Everything is checked before the first run.

Each run has its own record, as one of agentctl run, and its results are in
OUT/NAME-OF-RUN. 'agentctl sandbox' works in the sandboxes of the runs.

The first Ctrl-C stops the batch: no further run starts, and what the agents have done so
far is delivered. The second one deletes the sandboxes, and agentctl ends within 2
seconds. 'agentctl batch resume' goes on with the batch afterwards, and also after a
deadline, a budget that was used up, and an agentctl that was killed.

Exit codes: 0 all runs are done, 1 some are not, 2 usage or configuration, 4 the batch
cannot be recorded, 5 its deadline or its budget ended it, 129, 130 and 143 by SIGHUP,
SIGINT and SIGTERM.`,
		Example: "  agentctl batch examples/batch/batch.yaml\n" +
			"  agentctl batch --metrics 127.0.0.1:9464 examples/batch/batch.yaml\n" +
			"  agentctl batch --dry-run examples/batch/batch.yaml",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: settings.CompleteYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.start(cmd.Context(), args[0], cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.out, "out", "", "`DIR` for the results, with a directory for each run (default: out of the file, or out/NAME-OF-BATCH)")
	flags.BoolVar(&f.dryRun, "dry-run", false, "check everything, print the runs and start none")
	flags.BoolVar(
		&f.once,
		"once",
		false,
		"go on with the last batch of the same file, if there is one; one that has ended is not started again",
	)
	f.run.AddCommon(cmd)
	f.run.AddSpace(cmd)
	f.run.AddTelemetry(cmd)
	f.addGoing(cmd)
	f.run.Load.Add(cmd)
	return cmd
}

// addGoing adds the flags of a batch that goes on.
func (f *batchFlags) addGoing(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.json, "json", false, "print a JSON object a line for each event, the last one with the whole batch")
	flags.DurationVar(&f.deadline, "deadline", 0, "stop after `DURATION` from now, in the place of the deadline of the file")
	flags.Int64Var(&f.tokens, "budget-tokens", 0, "stop after `N` tokens, in the place of those of the file")
	flags.Float64Var(&f.usd, "budget-usd", 0, "stop after `USD` US dollars, in the place of those of the file")
	f.metrics.Add(cmd, " (default: of agentctl.yaml)")
}

func (f *batchFlags) check() error {
	switch {
	case f.deadline < 0:
		return fmt.Errorf("--deadline %s: a time from now", f.deadline)
	case f.tokens < 0:
		return fmt.Errorf("--budget-tokens %d: a number of tokens", f.tokens)
	case f.usd < 0 || math.IsNaN(f.usd) || math.IsInf(f.usd, 0):
		return fmt.Errorf("--budget-usd %v: a number of US dollars", f.usd)
	}
	return nil
}

// start starts a batch, or goes on with one.
func (f *batchFlags) start(ctx context.Context, file string, cmd *cobra.Command) error {
	if err := f.check(); err != nil {
		return err
	}
	spec, digest, ps := batch.Load(file, cmd.InOrStdin())
	base, err := f.run.Options(file)
	if err != nil {
		return err
	}
	places := map[string]sandbox.Backend{}
	if spec != nil {
		ps = append(ps, spec.Check(func(file string) (batch.Described, harness.Problems) { return describe(base, file, places) })...)
	}
	if err := output.PrintProblems(cmd.ErrOrStderr(), ps.Sorted(), output.FormatText); err != nil {
		return err
	}
	if ps.HasErrors() {
		return &output.Failure{Code: controller.ExitConfiguration}
	}
	if f.out != "" {
		spec.Out = f.out
	}
	if f.dryRun {
		return printSpec(cmd.OutOrStdout(), spec, f.json)
	}
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if f.once {
		v, err := batch.OfFile(base.State, file, dir, digest)
		switch {
		case err != nil:
			return &output.Failure{Code: controller.ExitSandbox, Err: err}
		case v != nil && !v.Live && !v.CanResume():
			newBatchProgress(cmd.OutOrStdout(), cmd.ErrOrStderr(), f.json).end(v)
			return f.ended(ctx, v, nil)
		case v != nil:
			return f.goOn(ctx, v, cmd)
		}
	}
	endExport, err := f.run.Export(&base, true, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer endExport()
	o := f.options(base, places)
	return f.work(ctx, cmd, o, func() (*batch.Batch, error) {
		return batch.Start(
			o.Options,
			batch.Stored{File: file, Digest: digest, Command: settings.CommandLine(os.Args, "batch"), Dir: dir, Spec: *spec},
		)
	})
}

// describe tells what a harness says, and notes its backend.
func describe(base controller.Options, file string, places map[string]sandbox.Backend) (batch.Described, harness.Problems) {
	d, ps := controller.Describe(file, base.Load, base.Images, base.Backend)
	if d.Backend == nil {
		return batch.Described{}, ps
	}
	places[d.Backend.Name()] = d.Backend
	return batch.Described{Backend: d.Backend.Name(), Provider: d.Provider}, ps
}

// batchOptions are the options of a batch with what its progress needs.
type batchOptions struct {
	batch.Options
	show *batchProgress
}

// options makes the options of a batch from those that all of its runs have.
func (f *batchFlags) options(base controller.Options, places map[string]sandbox.Backend) *batchOptions {
	return &batchOptions{Options: batch.Options{
		State: base.State, Once: f.once, Deadline: f.deadline, Budget: batch.Budget{Tokens: f.tokens, USD: f.usd},
		Prepare: func(one batch.Item) (controller.Options, error) {
			o := base
			o.Harness, o.Repo, o.Environ = one.Harness, one.Repo, withVars(base.Environ, one.Vars)
			return o, nil
		},
		Collect: func(ctx context.Context) error {
			places[base.Backend.Name()] = base.Backend
			var errs []error
			for _, name := range slices.Sorted(maps.Keys(places)) {
				_, err := controller.Collect(ctx, base.State, places[name], controller.CollectOptions{RunsOlderThan: controller.RecordAge})
				errs = append(errs, err)
			}
			_, err := batch.Sweep(base.State, controller.RecordAge, false)
			return errors.Join(append(errs, err)...)
		},
	}}
}

// withVars is an environment with other values of some variables.
func withVars(environ []string, vars map[string]string) []string {
	out := slices.DeleteFunc(slices.Clone(environ), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		_, has := vars[name]
		return has
	})
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		out = append(out, name+"="+vars[name])
	}
	return out
}

// work opens a batch and works on it.
func (f *batchFlags) work(ctx context.Context, cmd *cobra.Command, o *batchOptions, open func() (*batch.Batch, error)) error {
	stdout, stderr := cmd.OutOrStdout(), cmd.ErrOrStderr()
	id := ""
	ctx, force, stop := settings.Interruptible(ctx, func(s syscall.Signal) {
		settings.Abandon(stderr, s, "the batch", "'agentctl batch resume "+id+"' goes on with it")
	})
	defer stop()
	c := newCounts()
	served, err := f.metrics.Serve(ctx, true, stderr, c.gather)
	if err != nil {
		return err
	}
	defer served.Close()
	o.show = newBatchProgress(stdout, stderr, f.json)
	o.Force, o.Notify = force, o.show.event
	b, err := open()
	if err != nil {
		return batchFailure(err)
	}
	id = b.ID()
	c.of.Store(b)
	o.show.begin(b)
	v, err := b.Run(ctx)
	o.show.end(v)
	return f.ended(ctx, v, err)
}

// ended is the error of a batch that has ended.
func (f *batchFlags) ended(ctx context.Context, v *batch.View, err error) error {
	hint := "'agentctl batch show " + v.ID + "' lists the runs"
	if v.CanResume() {
		hint = "'agentctl batch resume " + v.ID + "' goes on with it"
	}
	if err != nil {
		if why := output.Unwritable(err); why != "" {
			hint = why + "; then " + hint
		}
		return &output.Failure{Code: controller.ExitSandbox, Err: err, Hint: hint}
	}
	left := func(why string) error {
		return fmt.Errorf("%s: %s not done", why, text.Count(v.Counts.All-v.Counts.Done(), "run"))
	}
	var i controller.Interrupted
	switch v.Status {
	case batch.StatusDone:
		return nil
	case batch.StatusDeadline, batch.StatusBudget:
		more := " --deadline 1h"
		if v.Status == batch.StatusBudget {
			more = " --budget-usd USD, or --budget-tokens N"
		}
		return &output.Failure{
			Code: controller.ExitTimeout,
			Err:  left("the " + v.Status + " of the batch ended it"),
			Hint: strings.Replace(hint, "'"+" goes", more+"' goes", 1),
		}
	case batch.StatusFailed:
		return &output.Failure{
			Code: controller.ExitAgentFailed,
			Err:  fmt.Errorf("%s of %d not done", text.Count(v.Counts.Failed()+v.Counts.Dropped, "run"), v.Counts.All),
			Hint: hint,
		}
	}
	if errors.As(context.Cause(ctx), &i) {
		return &output.Failure{Code: 128 + int(i.Signal), Err: i, Hint: hint}
	}
	return &output.Failure{Code: controller.ExitSandbox, Err: left("the batch was stopped"), Hint: hint}
}

// batchFailure is the error of a batch that was not opened.
func batchFailure(err error) error {
	f := &output.Failure{Code: controller.ExitSandbox, Err: err}
	switch {
	case errors.As(err, new(*batch.InUse)):
		f.Hint = "'agentctl batch stop' ends it"
	default:
		f.Hint = output.Unwritable(err)
	}
	return f
}

// printSpec prints the runs of a batch.
func printSpec(w io.Writer, s *batch.Spec, asJSON bool) error {
	if asJSON {
		return output.WriteJSON(w, s)
	}
	rows := [][]string{{"RUN", "HARNESS", "REPOSITORY", "BACKEND", "MODEL", "VARIABLES"}}
	for _, one := range s.Items {
		var vars []string
		for _, name := range slices.Sorted(maps.Keys(one.Vars)) {
			vars = append(vars, name+"="+text.Short(one.Vars[name], 40))
		}
		rows = append(rows, []string{
			one.Name, text.Visible(one.Harness), text.Visible(one.Repo), one.Backend, cmp.Or(one.Provider, "-"), cmp.Or(strings.Join(vars,
				" "), "-"),
		})
	}
	return output.PrintRows(w, rows)
}

func newBatchResumeCommand() *cobra.Command {
	f := new(batchFlags)
	cmd := &cobra.Command{
		Use:   "resume BATCH",
		Short: "Go on with a batch that was stopped or killed",
		Long: `resume starts the runs of a batch that have not ended, with the files and flags of the
batch and the variables of its own environment. A run that was stopped with the batch is
started again. One that had delivered its results when agentctl was killed is not; its
post_script is not run again either, and the run says so. Where a sandbox on another
machine has outlived the agentctl that was killed, the work of an agent that had ended is
delivered from it. Runs that 'agentctl batch stop' stopped stay as they are.

A deadline counts from the start of the batch, and a budget holds for all of it: give another
one to go on after it.`,
		Example:           "  agentctl batch resume latest\n  agentctl batch resume latest --deadline 1h",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeBatches((*batch.View).CanResume),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.check(); err != nil {
				return err
			}
			v, err := findBatch(args[0])
			if err != nil {
				return err
			}
			return f.goOn(cmd.Context(), v, cmd)
		},
	}
	f.addGoing(cmd)
	return cmd
}

// goOn goes on with a batch that this process has not begun.
func (f *batchFlags) goOn(ctx context.Context, v *batch.View, cmd *cobra.Command) error {
	var of batchFlags
	if err := of.command().ParseFlags(v.Command); err != nil {
		return fmt.Errorf("command line of batch %s: %w", v.ID, err)
	}
	if v.Live {
		return batchFailure(fmt.Errorf("batch %s: %w", v.ID, &batch.InUse{Process: v.Process}))
	}
	if err := os.Chdir(v.Dir); err != nil {
		return &output.Failure{Code: controller.ExitConfiguration, Err: fmt.Errorf("directory of batch %s: %w", v.ID, err)}
	}
	base, err := of.run.Options(v.File)
	if err != nil {
		return err
	}
	places := map[string]sandbox.Backend{}
	seen := map[string]bool{}
	for _, one := range v.Items {
		if !seen[one.Harness] {
			_, _ = describe(base, one.Harness, places) // a harness that has a problem now fails as a run
			seen[one.Harness] = true
		}
	}
	endExport, err := of.run.Export(&base, true, cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	defer endExport()
	f.metrics = f.metrics.Or(of.metrics)
	o := f.options(base, places)
	return f.work(ctx, cmd, o, func() (*batch.Batch, error) { return batch.Resume(o.Options, v.ID) })
}

// findBatch finds a batch, or returns an error with a hint.
func findBatch(name string) (*batch.View, error) {
	state, err := settings.RunsState()
	if err != nil {
		return nil, err
	}
	v, err := batch.Find(state, name)
	switch {
	case errors.Is(err, batch.ErrNone):
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: "'agentctl batch list' names them"}
	case err != nil:
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	return v, nil
}

// completeBatches completes the first argument with the ids of those batches for which keep returns
// true.
func completeBatches(keep func(*batch.View) bool) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		state, err := settings.RunsState()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, _ := batch.List(state) // ignores those that cannot be read
		var out []cobra.Completion
		for _, v := range all {
			if keep(v) {
				out = append(out, cobra.CompletionWithDesc(v.ID, text.Short(v.Name+" "+v.Status, 60)))
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
