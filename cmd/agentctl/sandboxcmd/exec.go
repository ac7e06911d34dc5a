package sandboxcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/attach"
	"agentsh/controller/record"
	"agentsh/controller/tools"
	"agentsh/internal/channel"
	"agentsh/internal/foreground"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// exitAgentctl is the exit code of sandbox exec and shell if agentctl itself
// could not run the command. It distinguishes this error from the command's own
// exit codes.
const exitAgentctl = 125

// maxExecOutput is the default of --max-output, in MiB.
const maxExecOutput = 4096

// sandboxExec are the flags of sandbox exec.
type sandboxExec struct {
	tty     bool
	cwd     string
	env     []string
	timeout time.Duration
	output  int64 // MiB of both outputs; 0: no limit
	json    bool
	request string // file with the command as JSON
}

var errNoCommand = errors.New("no command: write it after the sandbox, as in 'agentctl sandbox exec latest -- ls'")

const cwdUsage = "`DIR` in the sandbox to start in, relative to the repository (default: the repository)"

func newSandboxExecCommand() *cobra.Command {
	var e sandboxExec
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX -- COMMAND [ARG ...] | exec --request FILE SANDBOX",
		Short: "Run one command in a sandbox",
		Long: `Run one command in a sandbox, under the policy of its run. It starts in the
repository. Variables of --env that env_policy drops are named on standard error.

The exit status is the command's own; 124 means the timeout, 125 that agentctl could
not run it, 126 denied, 127 not found, and 128 and its number that a signal ended it.
Standard input is passed on, and so are SIGINT, SIGTERM, SIGHUP and SIGQUIT; the
second of a kind ends all that the command started, and agentctl ends within 2
seconds, or 4 where nobody reads its messages. An output that cannot be written ends them as well, with 125; one whose
reader has gone gives the command SIGPIPE. What the policy refused stands on standard
error after the output.

With --json the result is one JSON object with both outputs, of at most 1 MiB each, and
the exit status is 0 whenever the command ran. --request reads the command as JSON, from
standard input with -. doc/sandboxes.md has both forms.`,
		Example: "  agentctl sandbox exec latest -- git status\n  agentctl sandbox exec --json latest -- ./grade.sh",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if e.json || e.request != "" {
				return e.runJSON(cmd, args)
			}
			if len(args) == 1 {
				return errNoCommand
			}
			argv := args[1:]
			if argv[0] == "--" { // ends the flags after SANDBOX
				argv = argv[1:]
			}
			if len(argv) == 0 {
				return errNoCommand
			}
			return e.run(cmd, args[0], argv)
		},
		ValidArgsFunction: settings.CompleteRuns(settings.HasSandbox),
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.BoolVarP(&e.tty, "tty", "t", false, "give the command a terminal, and pass this one's size and keys on")
	f.StringVar(&e.cwd, "cwd", "", cwdUsage)
	f.StringArrayVarP(&e.env, "env", "e", nil, "set `NAME=VALUE` for the command, subject to env_policy")
	f.Int64Var(&e.output, "max-output", maxExecOutput, "end a command that prints more than `MIB`; 0: no limit")
	f.DurationVar(&e.timeout, "timeout", 0, "end the command after this long")
	f.BoolVar(&e.json, "json", false, "print one JSON object when the command has ended")
	f.StringVar(&e.request, "request", "", "`FILE` with the command as JSON, or - for standard input; implies --json")
	for _, name := range []string{"json", "request"} {
		cmd.MarkFlagsMutuallyExclusive("tty", name)
	}
	for _, name := range []string{"cwd", "env", "timeout"} {
		cmd.MarkFlagsMutuallyExclusive("request", name)
	}
	return cmd
}

func newSandboxShellCommand() *cobra.Command {
	e := sandboxExec{tty: true, output: maxExecOutput}
	cmd := &cobra.Command{
		Use:     "shell SANDBOX",
		Example: "  agentctl sandbox shell 20260102-fix",
		Short:   "Work in a bash in a sandbox",
		Long: `Work in an interactive bash in a sandbox, under the policy of its run. A builtin of
bash starts no program, so command_rules do not apply to it. file_rules and
network_rules apply to the files and hosts that it reaches.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !foreground.IsTerminal(cmd.InOrStdin()) {
				return &output.Failure{
					Code: exitAgentctl,
					Err:  errors.New("standard input is not a terminal"),
					Hint: "run a script with 'agentctl sandbox exec SANDBOX -- bash SCRIPT'",
				}
			}
			return e.run(cmd, args[0], []string{"bash"})
		},
		ValidArgsFunction: settings.CompleteRuns(settings.HasSandbox),
	}
	cmd.Flags().StringVar(&e.cwd, "cwd", "", cwdUsage)
	return cmd
}

// run runs a command in a sandbox with the standard streams of this process.
func (e *sandboxExec) run(cmd *cobra.Command, name string, argv []string) error {
	if e.timeout < 0 {
		return fmt.Errorf("--timeout %s: a time from now on", e.timeout)
	}
	if e.output < 0 {
		return fmt.Errorf("--max-output %d: a number of MiB", e.output)
	}
	client, one, err := attachTo(cmd.Context(), name)
	if err != nil {
		var f *output.Failure
		if errors.As(err, &f) {
			f.Code = exitAgentctl
		}
		return err
	}
	request := wire.ExecRequest{
		ID: channel.OperatorCommand(), Argv: argv, Cwd: e.dir(cmd.Context(), client, one.Workdir), Env: e.env,
		DeadlineMS: e.timeout.Milliseconds(),
	}
	finish := e.refusals(cmd, client, request.ID)
	in, out, errOut := cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	if e.output > 0 {
		limit := foreground.NewLimit(e.output<<20, "--max-output")
		out, errOut = limit.Writer(out), limit.Writer(errOut)
	}
	run := foreground.Leave(foreground.PassSignals(
		foreground.Connect(client.Run, unread),
		func(_, early wire.Exit) wire.Exit { return early },
	))
	if e.tty { // also a command that is left gives the terminal back
		run = foreground.OnTerminal(in, run)
	}
	exit, err := run(cmd.Context(), request, wire.Streams{
		Stdin: in, Stdout: out, Stderr: errOut, Dropped: e.reportDropped(cmd.ErrOrStderr()),
	})
	if errors.Is(err, foreground.ErrLeft) { // a further signal must not end this process before it says so
		return &output.Failure{Code: exitAgentctl, Err: err, Hint: "what it started ends with its sandbox at the latest"}
	}
	foreground.SignalsEnd()
	if exit.Kind != wire.ExitDenied { // else the error of the command says it
		finish(exit)
	}
	err = errors.Join(err, client.Close())
	if failed := (*foreground.StreamError)(nil); errors.As(err, &failed) {
		return &output.Failure{Code: failed.Code(exit.ExitCode()), Err: failed, Hint: failed.Hint()}
	}
	if err != nil {
		return endOf(one, exit, &output.Failure{Code: exitAgentctl, Err: err, Hint: text.Visible(exit.Hint)})
	}
	return sandboxExit(argv[0], exit)
}

// refusals collects what the policy refuses to a command. finish prints it after the command's end; a shell
// on a terminal goes on with its next command, so it has none.
func (e *sandboxExec) refusals(cmd *cobra.Command, client *channel.Client, id string) (finish func(wire.Exit)) {
	if e.tty {
		return func(wire.Exit) {}
	}
	refused, err := tools.NewRefused(cmd.Context(), client)
	if cmd.Context().Err() != nil { // the command does not start
		return func(wire.Exit) {}
	}
	if err != nil { // the command runs all the same
		return func(wire.Exit) {
			fmt.Fprintln(cmd.ErrOrStderr(), "agentctl: what the policy refused is not known:", text.Visible(err.Error()))
		}
	}
	refused.Begin(id)
	return func(exit wire.Exit) {
		for _, r := range refused.Finish(id, exit) {
			fmt.Fprintln(cmd.ErrOrStderr(), r)
		}
	}
}

// dir is the directory in which the command starts. The repository is not there
// before the sandbox is filled: the command then starts in the workspace.
func (e *sandboxExec) dir(ctx context.Context, client *channel.Client, workdir string) string {
	switch {
	case path.IsAbs(e.cwd) || workdir == "":
		return e.cwd
	case e.cwd != "":
		return path.Join(workdir, e.cwd)
	}
	if _, err := client.Stat(ctx, workdir); errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	return workdir // after another error, the command says whether it can start there
}

// reportDropped returns a function that names the variables of --env that the
// command did not get. On a terminal in raw mode, a line ends with \r\n.
func (e *sandboxExec) reportDropped(out io.Writer) func([]wire.DroppedVar) {
	end := "\n"
	if e.tty {
		end = "\r\n"
	}
	return func(vars []wire.DroppedVar) {
		for _, v := range vars {
			fmt.Fprintf(out, "agentctl: --env %s was dropped: %s%s", text.Visible(v.Name), text.Visible(v.Reason), end)
		}
	}
}

// unread adapts the exit of a command whose output was not read to its end. If
// the command exited with status 0, it is changed to the exit of a command that
// writes to a closed pipe.
func unread(exit wire.Exit) wire.Exit {
	if exit.ExitCode() == 0 {
		return wire.Exit{Kind: wire.ExitSignaled, Signal: int(syscall.SIGPIPE)}
	}
	return exit
}

// sandboxExit makes the error of agentctl from the exit of a command.
func sandboxExit(name string, exit wire.Exit) error {
	code := exit.ExitCode()
	f := &output.Failure{Code: code, Hint: text.Visible(exit.Hint)}
	if exit.Cause != "" {
		f.Err = fmt.Errorf("%s: %s", text.Short(name, 200), text.Visible(exit.Message))
		return f
	}
	switch exit.Kind {
	case wire.ExitDeadline:
		f.Err = fmt.Errorf("%s: ended by its timeout", text.Short(name, 200))
	case wire.ExitDenied:
		rule := ""
		if exit.Rule != nil {
			rule = " (rule " + text.Visible(strings.TrimSpace(exit.Rule.Name+" "+exit.Rule.Position())) + ")"
		}
		f.Err = fmt.Errorf("denied: %s: %s%s", text.Short(name, 200), text.Visible(exit.Message), rule)
	case wire.ExitSpawnFailed, wire.ExitLost, wire.ExitOOM:
		message := strings.TrimPrefix(exit.Message, name+": ") // a program that is not found is named there
		f.Err = fmt.Errorf("%s: %s", text.Short(name, 200), text.Visible(message))
	default:
		f.Hint = ""
		if code == controller.ExitDone {
			return nil
		}
	}
	return f
}

// endOf explains the end of a command whose sandbox has ended in the meantime. The connection to a live run leads over its
// controller: this process sees only that it has ended.
func endOf(one record.Run, exit wire.Exit, f *output.Failure) error {
	if exit.Cause != wire.CauseSupervisor || !one.Live {
		return f
	}
	ended := endedBy(one, attach.DeletedBy(one))
	f.Err, f.Hint = ended.Err, ended.Hint
	return f
}

// endedBy says that a sandbox has ended, and who deleted it; empty: nobody.
func endedBy(one record.Run, by string) *output.Failure {
	if by != "" {
		by = ": " + text.Visible(by) + " deleted it"
	}
	f := &output.Failure{Code: controller.ExitSandbox, Err: errors.New("the sandbox has ended" + by)}
	f.Hint = "'agentctl runs show " + one.RunID + "' has the end; make another one with 'agentctl sandbox create'"
	if one.Kind != record.KindSandbox {
		f.Hint = "'agentctl runs show " + one.RunID + "' has the end of its run"
	}
	return f
}
