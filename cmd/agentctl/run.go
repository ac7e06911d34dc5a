package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"agentsh/controller"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/foreground"
	"agentsh/internal/statedir"
)

// runFlags are the flags of agentctl run.
type runFlags struct {
	load       loadFlags
	repo       string
	out        string
	place      placeFlags
	agentsh    string
	config     string
	json       bool
	quiet      bool
	allowDirty bool
	keep       time.Duration
	output     int64 // MiB
	scanner    string
	images     imageFlags
	approvals  approvalFlags
}

// maxOutput is the maximum of --max-output, in MiB.
const maxOutput = 1 << 20

// defaultKeep is the lease of --keep-sandbox without a duration, maxKeep the
// longest.
const (
	defaultKeep = time.Hour
	maxKeep     = 24 * time.Hour
)

// keepFor reads the duration of --keep-sandbox where it is an argument of its
// own, since the flag also stands without one.
func (f *runFlags) keepFor(cmd *cobra.Command, args []string) []string {
	if !cmd.Flags().Changed("keep-sandbox") {
		return args
	}
	for i, arg := range args {
		if d, err := time.ParseDuration(arg); err == nil {
			f.keep = d
			return slices.Delete(slices.Clone(args), i, i+1)
		}
	}
	return args
}

func newRunCommand() *cobra.Command { return new(runFlags).command() }

// command is the command that the flags belong to.
func (f *runFlags) command() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run FILE --repo DIR [--out DIR]",
		Short: "Run an agent in a sandbox",
		Long: `run checks a harness file, creates a sandbox, copies the repository and
the agent into it and runs the agent. The agent's commits become a branch of the
repository. The output directory gets the changed files, the audit log and
result.json. The sandbox is deleted, unless --keep-sandbox keeps that of an agent
that failed.

The agent starts from the commit that HEAD of the repository points to.
Uncommitted changes are refused, unless --allow-dirty leaves them out. Submodules
are empty in the sandbox, and the run names them.

The first Ctrl-C stops the agent and delivers the work done so far. The second
one deletes the sandbox, and agentctl ends within 2 seconds. SIGTERM and SIGHUP
do the same.`,
		Example: "  agentctl run examples/fix-bug/harness.yaml --repo examples/fix-bug/repo --out out/fix-bug",
		Args: func(cmd *cobra.Command, args []string) error {
			return cobra.ExactArgs(1)(cmd, f.keepFor(cmd, args))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			args = f.keepFor(cmd, args)
			return f.run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
		ValidArgsFunction: completeYAML,
	}
	f.addInputs(cmd, ".", "git repository the agent works on: its top `DIR`, or one below it in which the agent starts")
	flags := cmd.Flags()
	flags.BoolVar(&f.json, "json", false, "print one result object on standard output, and nothing else there")
	flags.BoolVarP(&f.quiet, "quiet", "q", false, "do not print what the agent prints")
	flags.Int64Var(&f.output, "max-output", controller.DefaultOutput>>20, "end an agent that prints more than `MIB` in one iteration")
	flags.DurationVar(&f.keep, "keep-sandbox", 0,
		"if the agent fails or agentctl is killed, keep the sandbox for `DURATION` (without one: 1h); see agentctl sandbox")
	flags.Lookup("keep-sandbox").NoOptDefVal = defaultKeep.String()
	f.load.add(cmd)
	return cmd
}

// addInputs adds the flags that say what a run works with. The commands that check a
// run have them too.
func (f *runFlags) addInputs(cmd *cobra.Command, repo, repoUsage string) {
	flags := cmd.Flags()
	flags.StringVar(&f.repo, "repo", repo, repoUsage)
	flags.StringVar(&f.out, "out", "", "`DIR` for the results, made or replaced (default out/NAME-OF-HARNESS)")
	f.addPlace(cmd)
}

// addPlace adds the flags of addInputs that many runs can have in common.
func (f *runFlags) addPlace(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.place.add(cmd)
	flags.StringVar(&f.agentsh, "agentsh", "", "`FILE` of the supervisor (default: beside agentctl, then /usr/lib/agentsh, then PATH)")
	flags.StringVar(
		&f.config,
		"agentsh-config",
		"",
		"configuration `FILE` of the supervisor (default /etc/agentsh/config.yaml where it exists)",
	)
	flags.BoolVar(&f.allowDirty, "allow-dirty", false, "run from HEAD although files are changed; the agent does not see the changes")
	flags.StringVar(
		&f.scanner,
		"scanner",
		"",
		"`FILE` of a program that scores texts, for llm_guard of the harness; see agentctl scan context",
	)
	f.images.add(cmd)
	f.approvals.add(cmd)
}

func (f *runFlags) run(ctx context.Context, file string, stdout, stderr io.Writer) error {
	if f.output < 1 || f.output > maxOutput {
		return fmt.Errorf("--max-output %d: 1 to %d MiB", f.output, maxOutput)
	}
	if f.keep < 0 || f.keep > maxKeep {
		return fmt.Errorf("--keep-sandbox %s: at most %s", f.keep, maxKeep)
	}
	o, err := f.options(file)
	if err != nil {
		return err
	}
	o.Command = commandLine(os.Args, "run")
	if o.Dir, err = os.Getwd(); err != nil {
		return err
	}
	return f.finish(ctx, o, stdout, stderr, controller.Run)
}

// commandLine are the arguments of a command in a command line of it.
func commandLine(argv []string, command string) []string {
	return slices.Clone(argv[slices.Index(argv, command)+1:])
}

// finish starts a run, or goes on with one, and shows its progress and its result.
func (f *runFlags) finish(
	ctx context.Context, o controller.Options, stdout, stderr io.Writer,
	run func(context.Context, controller.Options) (controller.Result, error),
) error {
	progress := newProgress(stdout, stderr, f.quiet)
	if f.json {
		progress = newProgress(stderr, stderr, f.quiet)
	}
	ctx, force, stop := interruptible(ctx, abandonRun(stderr))
	defer stop()
	o.Progress, o.Force = progress.update, force
	result, err := run(ctx, o)
	progress.end()
	if f.json {
		if err := writeJSON(stdout, result); err != nil {
			return err
		}
	} else if len(result.Iterations) > 0 {
		printResult(stdout, result)
	}
	return runFailure(stderr, err)
}

// options makes the options of a run.
func (f *runFlags) options(file string) (controller.Options, error) {
	var o controller.Options
	load, err := f.load.options()
	if err != nil {
		return o, err
	}
	scanner, err := absolute(f.scanner)
	if err != nil {
		return o, err
	}
	of, err := readConfig()
	if err != nil {
		return o, err
	}
	images, err := f.images.config(of)
	if err != nil {
		return o, err
	}
	approvals, err := f.approvals.sender(of)
	if err != nil {
		return o, err
	}
	gateway, err := gatewayDir()
	if err != nil {
		return o, &failure{code: controller.ExitConfiguration, err: err}
	}
	state, backend, err := f.place.openState(f.agentsh, f.config)
	if err != nil {
		return o, err
	}
	config, err := absolute(f.config)
	if err != nil {
		return o, err
	}
	out := f.out
	if out == "" {
		name := filepath.Base(file)
		out = filepath.Join("out", name[:len(name)-len(filepath.Ext(name))])
	}
	return controller.Options{
		Harness: file, Load: load, Repo: f.repo, Out: out, AllowDirty: f.allowDirty,
		Backend: backend, State: state, Model: controller.ModelOptions{Program: scanner, Config: config},
		Gateway: gateway, Caller: controller.Caller{Environ: os.Environ(), Approvals: approvals}, Images: images, KeepSandbox: f.keep,
		Agent: controller.AgentOptions{MaxOutput: f.output << 20, Session: f.agentSession(state, config), Tools: toolsOf},
	}, nil
}

// agentSession makes sessions of agents' programs on this machine.
func (f *runFlags) agentSession(state statedir.Dir, config string) sandbox.Backend {
	agentsh, err := absolute(f.agentsh)
	if err != nil { // openState has made it
		return nil
	}
	return local.New(local.Config{State: state, Agentsh: agentsh, Operator: config})
}

// absolute is the absolute path of a file in a flag; empty stays empty.
func absolute(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	return filepath.Abs(name)
}

// forcedEnd is the time that a run has to end after the second signal.
const forcedEnd = 1800 * time.Millisecond

// interruptible makes two contexts. The first signal that ends a program ends the
// first context, with the signal as its cause. The second signal ends the second
// context. If stop is not called in time after that, abandon is called. parent is
// the context of main. If a signal has ended it, the first context has ended, too.
func interruptible(parent context.Context, abandon func(syscall.Signal)) (first, second context.Context, stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, foreground.EndSignals()...)
	pipe := make(chan os.Signal, 1) // never read: a reader of the output that has gone does not end the run
	signal.Notify(pipe, syscall.SIGPIPE)
	early := context.Cause(parent)
	parent = context.WithoutCancel(parent)
	first, cancelFirst := context.WithCancelCause(parent)
	second, cancelSecond := context.WithCancelCause(parent)
	if early != nil {
		cancelFirst(early)
	}
	done := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var last syscall.Signal
		for _, cancel := range []context.CancelCauseFunc{cancelFirst, cancelSecond} {
			select {
			case s := <-signals:
				last, _ = s.(syscall.Signal)
				cancel(controller.Interrupted{Signal: last})
			case <-done:
				return
			}
		}
		select {
		case <-time.After(forcedEnd):
			abandon(last)
		case <-done:
		}
	}()
	return first, second, func() {
		signal.Stop(signals)
		signal.Stop(pipe)
		close(done)
		<-ended
		cancelFirst(nil)
		cancelSecond(nil)
	}
}

// abandonRun ends this process although a run has not ended. Its sandbox and its
// scripts end with it.
func abandonRun(stderr io.Writer) func(syscall.Signal) {
	return func(s syscall.Signal) {
		abandon(stderr, s, "the run", "the next run or 'agentctl gc' removes what it left")
	}
}

// abandon ends this process although its work has not ended.
func abandon(stderr io.Writer, s syscall.Signal, what, hint string) {
	said := make(chan struct{})
	go func() { // a terminal may accept nothing
		defer close(said)
		fmt.Fprintf(stderr, "agentctl: %s did not end in time after the second signal\nagentctl: hint: %s\n", what, hint)
	}()
	select {
	case <-said:
	case <-time.After(100 * time.Millisecond):
	}
	os.Exit(128 + int(s))
}

// runFailure prints the problems of a run that failed and returns the error
// with the run's exit code.
func runFailure(stderr io.Writer, err error) error {
	if err == nil {
		return nil
	}
	var f *controller.Failure
	if !errors.As(err, &f) {
		return &failure{code: controller.ExitSandbox, err: err}
	}
	if len(f.Problems) > 0 {
		if err := printProblems(stderr, f.Problems, formatText); err != nil {
			return err
		}
		return &failure{code: f.Code}
	}
	return &failure{code: f.Code, err: f, hint: f.Hint}
}

// since formats a duration.
func since(start, end time.Time) time.Duration { return end.Sub(start).Round(100 * time.Millisecond) }
