package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/cmd/agentsh/mcpcmd"
	"agentsh/cmd/agentsh/policycmd"
	"agentsh/cmd/agentsh/projectcmd"
	"agentsh/controller/mcpfilter"
	"agentsh/internal/cli"
	"agentsh/internal/foreground"
	"agentsh/internal/wire"
	"agentsh/seccomp"
)

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	root := newRootFor(args)
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var f *failure.Failure
	if err != nil && !errors.As(err, &f) {
		err = failure.New(failure.Usage, err, "run '"+cmd.CommandPath()+" --help' for usage")
	}
	return failure.Report(foreground.Messages(ctx, os.Stderr), err)
}

// commands make the commands below root, by their names.
var commands = []struct {
	name string
	make func() *cobra.Command
}{
	{"exec", newExecCommand},
	{"shell", newShellCommand},
	{"session", newSessionCommand},
	{"mcp", newMCPCommand},
	{"serve", newServeCommand},
	{"copy-self", newCopySelfCommand},
	{"init", projectcmd.NewInit},
	{"trust", projectcmd.NewTrust},
	{"policy", func() *cobra.Command { return policycmd.New(logFile) }},
	{"env", policycmd.NewEnv},
	{"detect", newDetectCommand},
	{"shim", newShimCommand},
	{"events", newEventsCommand},
	{"report", newReportCommand},
	{"audit", newAuditCommand},
	{"approve", newApproveCommand},
	{"approvals", newApprovalsCommand},
	{"net", newNetCommand},
	{"trash", newTrashCommand},
	{"checkpoint", newCheckpointCommand},
	{"changes", newChangesCommand},
	{"hook", newHookCommand},
	{mcpfilter.CommandFilter, mcpcmd.NewFilter},
	{mcpfilter.CommandList, mcpcmd.NewList},
	{mcpfilter.CommandCall, mcpcmd.NewCall},
	{wire.CommandSFTP, newSFTPCommand},
	{wire.CommandForward, newForwardCommand},
	{"scan", newScanCommand},
	{"version", func() *cobra.Command {
		return cli.NewVersion(cli.Build{Program: "agentsh", Version: version, Commit: commit, Libseccomp: seccomp.LibraryVersion()})
	}},
}

// newRootFor makes the root of a command line. Of one that begins with the name of a command
// it makes that command alone: the others take a tenth of the time that agentsh version does.
func newRootFor(args []string) *cobra.Command {
	if len(args) > 0 {
		for _, c := range commands {
			if c.name == args[0] {
				root := bareRoot()
				root.CompletionOptions.DisableDefaultCmd = true
				root.AddCommand(c.make())
				return root
			}
		}
	}
	return newRoot()
}

func bareRoot() *cobra.Command {
	return &cobra.Command{
		Use:           "agentsh",
		Short:         "Run commands under policy",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       version,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
}

// newRoot makes the root with all commands.
func newRoot() *cobra.Command {
	root := bareRoot()
	for _, c := range commands {
		root.AddCommand(c.make())
	}
	root.AddCommand(cli.NewMan("agentsh"))
	cli.AddCompletion(root)
	completions(root)
	return root
}
