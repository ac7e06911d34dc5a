package main

import (
	"errors"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/batchcmd"
	"agentsh/cmd/agentctl/mcpcmd"
	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/sandboxcmd"
	"agentsh/cmd/agentctl/uicmd"
	"agentsh/controller"
	"agentsh/internal/cli"
)

// newRoot returns the command line of agentctl.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "agentctl",
		Short: "Run agents in sandboxes",
		Long: `agentctl describes agents in harness files and runs them in sandboxes.

Exit codes: 0 done, 1 the agent failed, 2 usage or configuration, 3 blocked by
a scan, 4 sandbox or backend, 5 timeout, 6 validation failed, 7 post_script
failed, 129, 130 and 143 cancelled by SIGHUP, SIGINT and SIGTERM.`,
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(
		newRunCommand(),
		batchcmd.New(),
		newAttachCommand(),
		newRunsCommand(),
		sandboxcmd.New(),
		sandboxcmd.NewConnect(),
		sandboxcmd.NewSSHConfig(),
		sandboxcmd.NewApprovals(),
		uicmd.New(),
		newMCPCommand(),
		mcpcmd.NewPins(),
		newGCCommand(),
		newImageCommand(),
		newInitCommand(),
		newLintCommand(),
		newProfilesCommand(),
		newRenderCommand(),
		newMigrateCommand(),
		newPolicyCommand(),
		newSchemaCommand(),
		newProvidersCommand(),
		cli.NewVersion(cli.Build{Program: "agentctl", Version: version, Commit: commit}),
		cli.NewMan("agentctl"),
		newScanCommand(),
	)
	cli.AddCompletion(root)
	explainUsage(root)
	return root
}

// explainUsage gives the errors in the arguments and flags of a command, and of those below it, a hint.
func explainUsage(cmd *cobra.Command) {
	explain := func(cmd *cobra.Command, err error) error {
		if err == nil || errors.As(err, new(*output.Failure)) {
			return err
		}
		return &output.Failure{Code: controller.ExitConfiguration, Err: err, Hint: "run '" + cmd.CommandPath() + " --help' for usage"}
	}
	cmd.SetFlagErrorFunc(explain)
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return explain(cmd, check(cmd, args)) }
	}
	for _, below := range cmd.Commands() {
		explainUsage(below)
	}
}
