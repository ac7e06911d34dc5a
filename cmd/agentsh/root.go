package main

import (
	"context"
	"errors"
	"os"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/cmd/agentsh/policycmd"
	"agentsh/cmd/agentsh/projectcmd"
	"agentsh/internal/cli"
	"agentsh/internal/foreground"
	"agentsh/seccomp"
)

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var f *failure.Failure
	if err != nil && !errors.As(err, &f) {
		err = failure.New(failure.Usage, err, "run '"+cmd.CommandPath()+" --help' for usage")
	}
	return failure.Report(foreground.Messages(ctx, os.Stderr), err)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
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
	root.AddCommand(
		newExecCommand(),
		newShellCommand(),
		newSessionCommand(),
		newMCPCommand(),
		newServeCommand(),
		projectcmd.NewInit(),
		projectcmd.NewTrust(),
		policycmd.New(logFile),
		policycmd.NewEnv(),
		newDetectCommand(),
		newShimCommand(),
		newEventsCommand(),
		newReportCommand(),
		newAuditCommand(),
		newApproveCommand(),
		newApprovalsCommand(),
		newNetCommand(),
		newTrashCommand(),
		newCheckpointCommand(),
		newChangesCommand(),
		newHookCommand(),
		newSFTPCommand(),
		newForwardCommand(),
		newScanCommand(),
	)
	root.AddCommand(
		cli.NewVersion(cli.Build{Program: "agentsh", Version: version, Commit: commit, Libseccomp: seccomp.LibraryVersion()}),
		cli.NewMan("agentsh"),
	)
	cli.AddCompletion(root)
	completions(root)
	return root
}
