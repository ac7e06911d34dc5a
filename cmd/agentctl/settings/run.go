// Package settings reads what several commands of agentctl have in common: flags, configuration
// files, and the names of runs.
package settings

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

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/controller/telemetry"
	"agentsh/internal/foreground"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
)

// GatewayDir is the directory of the local gateway.
func GatewayDir() (string, error) {
	state, err := layout.FindState(os.Getenv, os.Geteuid())
	return state.Gateway(), err
}

// State is the state directory of the user.
func State() (statedir.Dir, error) {
	path, err := layout.FindState(os.Getenv, os.Geteuid())
	if err != nil {
		return statedir.Dir{}, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	state, err := statedir.Open(path)
	if err != nil {
		return statedir.Dir{}, &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	return state, nil
}

// Run are the flags of agentctl run.
type Run struct {
	Load       Load
	Repo       string
	out        string
	Place      Placement
	Agentsh    string
	Config     string
	JSON       bool
	Quiet      bool
	AllowDirty bool
	Keep       time.Duration
	Space      time.Duration // how long a run waits for room
	Output     int64         // MiB
	scanner    string
	images     imageFlags
	approvals  approvalFlags
	telemetry  telemetryFlags
	collector  telemetry.Config // of the flags and the configuration, set by Options
}

// MaxOutput is the maximum of --max-output, in MiB.
const MaxOutput = 1 << 20

// DefaultSpace is how long a run waits for room on a full disk of this machine.
const DefaultSpace = 10 * time.Minute

// DefaultKeep is the lease of --keep-sandbox without a duration, maxKeep the
// longest.
const (
	DefaultKeep = time.Hour
	MaxKeep     = 24 * time.Hour
)

// KeepFor reads the duration of --keep-sandbox where it is an argument of its
// own, since the flag also stands without one.
func (f *Run) KeepFor(cmd *cobra.Command, args []string) []string {
	if !cmd.Flags().Changed("keep-sandbox") {
		return args
	}
	for i, arg := range args {
		if d, err := time.ParseDuration(arg); err == nil {
			f.Keep = d
			return slices.Delete(slices.Clone(args), i, i+1)
		}
	}
	return args
}

// AddInputs adds the flags that say what a run works with. The commands that check a
// run have them too.
func (f *Run) AddInputs(cmd *cobra.Command, repo, repoUsage string) {
	flags := cmd.Flags()
	flags.StringVar(&f.Repo, "repo", repo, repoUsage)
	flags.StringVar(&f.out, "out", "", "`DIR` for the results, made or replaced (default out/NAME-OF-HARNESS)")
	f.AddCommon(cmd)
}

// AddCommon adds the flags of AddInputs that many runs can have in common.
func (f *Run) AddCommon(cmd *cobra.Command) {
	f.AddPlace(cmd)
	cmd.Flags().BoolVar(&f.AllowDirty, "allow-dirty", false, "run from HEAD although files are changed; the agent does not see the changes")
}

// AddPlace adds the flags that say where a run works and with what.
func (f *Run) AddPlace(cmd *cobra.Command) {
	flags := cmd.Flags()
	f.Place.Add(cmd)
	flags.StringVar(&f.Agentsh, "agentsh", "", "`FILE` of the supervisor (default: beside agentctl, then /usr/lib/agentsh, then PATH)")
	flags.StringVar(
		&f.Config,
		"agentsh-config",
		"",
		"configuration `FILE` of the supervisor (default /etc/agentsh/config.yaml where it exists)",
	)
	flags.StringVar(
		&f.scanner,
		"scanner",
		"",
		"`FILE` of a program that scores texts, for llm_guard of the harness; see agentctl scan context",
	)
	f.images.add(cmd)
	f.approvals.add(cmd)
}

// AddSpace adds the flag that says how long a run waits for room on a full disk.
func (f *Run) AddSpace(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&f.Space, "wait-for-space", DefaultSpace,
		"wait `DURATION` for room when a disk of this machine is full at the end, so that no work is lost; 0: fail at once")
}

// CommandLine are the arguments of a command in a command line of it.
func CommandLine(argv []string, command string) []string {
	return slices.Clone(argv[slices.Index(argv, command)+1:])
}

// Finish starts a run, or goes on with one, and shows its progress and its result.
func (f *Run) Finish(
	ctx context.Context, o controller.Options, stdout, stderr io.Writer,
	run func(context.Context, controller.Options) (controller.Result, error),
) error {
	progress := output.NewProgress(stdout, stderr, f.Quiet)
	if f.JSON {
		progress = output.NewProgress(stderr, stderr, f.Quiet)
	}
	ctx, force, stop := Interruptible(ctx, AbandonRun(stderr))
	defer stop()
	endExport, err := f.Export(&o, false, stderr)
	if err != nil {
		return err
	}
	o.Progress, o.Force = progress.Update, force
	result, err := run(ctx, o)
	progress.End()
	endExport()
	if f.JSON {
		if err := output.WriteJSON(stdout, result); err != nil {
			return err
		}
	} else if len(result.Iterations) > 0 {
		output.PrintResult(stdout, result)
	}
	return RunFailure(stderr, err)
}

// Options makes the options of a run.
func (f *Run) Options(file string) (controller.Options, error) {
	var o controller.Options
	if f.Space < 0 {
		return o, fmt.Errorf("--wait-for-space %s: 0 or more", f.Space)
	}
	load, err := f.Load.Options()
	if err != nil {
		return o, err
	}
	scanner, err := Absolute(f.scanner)
	if err != nil {
		return o, err
	}
	of, err := readConfig()
	if err != nil {
		return o, err
	}
	load.Cluster = of.cluster
	images, err := f.images.config(of)
	if err != nil {
		return o, err
	}
	approvals, err := f.approvals.sender(of)
	if err != nil {
		return o, err
	}
	if f.collector, err = f.telemetry.config(of); err != nil {
		return o, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	gateway, err := GatewayDir()
	if err != nil {
		return o, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	f.Place.images, f.Place.harness = images.Places, true
	state, backend, err := f.Place.OpenState(f.Agentsh, f.Config)
	if err != nil {
		return o, err
	}
	config, err := Absolute(f.Config)
	if err != nil {
		return o, err
	}
	out := f.out
	if out == "" {
		name := filepath.Base(file)
		out = filepath.Join("out", name[:len(name)-len(filepath.Ext(name))])
	}
	return controller.Options{
		Harness: file, Load: load, Repo: f.Repo, Out: out, AllowDirty: f.AllowDirty,
		Backend: backend, State: state, Model: controller.ModelOptions{Program: scanner, Config: config},
		Gateway: gateway, Caller: controller.Caller{Environ: os.Environ(), Approvals: approvals}, Images: images,
		EndOptions: controller.EndOptions{KeepSandbox: f.Keep, WaitForSpace: f.Space},
		Agent:      controller.AgentOptions{MaxOutput: f.Output << 20, Session: f.agentSession(state, config), Tools: ToolsOf},
	}, nil
}

// agentSession makes sessions of agents' programs on this machine.
func (f *Run) agentSession(state statedir.Dir, config string) sandbox.Backend {
	agentsh, err := Absolute(f.Agentsh)
	if err != nil { // openState has made it
		return nil
	}
	return local.New(local.Config{State: state, Agentsh: agentsh, Operator: config})
}

// Absolute is the absolute path of a file in a flag; empty stays empty.
func Absolute(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	return filepath.Abs(name)
}

// forcedEnd is the time that a run has to end after the second signal.
const forcedEnd = 1800 * time.Millisecond

// Interruptible makes two contexts. The first signal that ends a program ends the
// first context, with the signal as its cause. The second signal ends the second
// context. If stop is not called in time after that, abandon is called. parent is
// the context of main. If a signal has ended it, the first context has ended, too.
func Interruptible(parent context.Context, abandon func(syscall.Signal)) (first, second context.Context, stop func()) {
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

// AbandonRun ends this process although a run has not ended. Its sandbox and its
// scripts end with it.
func AbandonRun(stderr io.Writer) func(syscall.Signal) {
	return func(s syscall.Signal) {
		Abandon(stderr, s, "the run", "the next run or 'agentctl gc' removes what it left")
	}
}

// Abandon ends this process although its work has not ended.
func Abandon(stderr io.Writer, s syscall.Signal, what, hint string) {
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

// RunFailure prints the problems of a run that failed and returns the error
// with the run's exit code.
func RunFailure(stderr io.Writer, err error) error {
	if err == nil {
		return nil
	}
	var f *controller.Failure
	if !errors.As(err, &f) {
		return &output.Failure{Code: controller.ExitSandbox, Err: err}
	}
	if len(f.Problems) > 0 {
		if err := output.PrintProblems(stderr, f.Problems, output.FormatText); err != nil {
			return err
		}
		return &output.Failure{Code: f.Code}
	}
	return &output.Failure{Code: f.Code, Err: f, Hint: f.Hint}
}
