package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
)

func newRunCommand() *cobra.Command { return runCommand(new(settings.Run)) }

// runCommand is the command that the flags belong to.
func runCommand(f *settings.Run) *cobra.Command {
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
do the same. When a disk of this machine is full at the end, the run waits for room.`,
		Example: "  agentctl run examples/fix-bug/harness.yaml --repo examples/fix-bug/repo --out out/fix-bug",
		Args: func(cmd *cobra.Command, args []string) error {
			return cobra.ExactArgs(1)(cmd, f.KeepFor(cmd, args))
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			args = f.KeepFor(cmd, args)
			return startRun(cmd.Context(), f, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
		ValidArgsFunction: settings.CompleteYAML,
	}
	f.AddInputs(cmd, ".", "git repository the agent works on: its top `DIR`, or one below it in which the agent starts")
	flags := cmd.Flags()
	flags.BoolVar(&f.JSON, "json", false, "print one result object on standard output, and nothing else there")
	flags.BoolVarP(&f.Quiet, "quiet", "q", false, "do not print what the agent prints")
	flags.Int64Var(&f.Output, "max-output", controller.DefaultOutput>>20, "end an agent that prints more than `MIB` in one iteration")
	flags.DurationVar(&f.Keep, "keep-sandbox", 0,
		"if the agent fails or agentctl is killed, keep the sandbox for `DURATION` (without one: 1h); see agentctl sandbox")
	flags.Lookup("keep-sandbox").NoOptDefVal = settings.DefaultKeep.String()
	f.AddSpace(cmd)
	f.AddTelemetry(cmd)
	f.Load.Add(cmd)
	return cmd
}

// startRun runs an agent.
func startRun(ctx context.Context, f *settings.Run, file string, stdout, stderr io.Writer) error {
	if f.Output < 1 || f.Output > settings.MaxOutput {
		return fmt.Errorf("--max-output %d: 1 to %d MiB", f.Output, settings.MaxOutput)
	}
	if f.Keep < 0 || f.Keep > settings.MaxKeep {
		return fmt.Errorf("--keep-sandbox %s: at most %s", f.Keep, settings.MaxKeep)
	}
	o, err := f.Options(file)
	if err != nil {
		return err
	}
	o.Command = settings.CommandLine(os.Args, "run")
	if o.Dir, err = os.Getwd(); err != nil {
		return err
	}
	return f.Finish(ctx, o, stdout, stderr, controller.Run)
}
