package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/controller"
	"agentsh/internal/cli"
	"agentsh/internal/text"
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
		newBatchCommand(),
		newAttachCommand(),
		newRunsCommand(),
		newSandboxCommand(),
		newConnectCommand(),
		newSSHConfigCommand(),
		newApprovalsCommand(),
		newMCPCommand(),
		newGCCommand(),
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
	return root
}

// failure is an error with the exit code of the command.
type failure struct {
	code int
	err  error  // nil: already printed
	hint string // how to fix it; may be empty
}

func (f *failure) Error() string {
	if f.err == nil {
		return fmt.Sprintf("exit code %d", f.code)
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

// report prints the error of a command and returns the exit code. It is the
// only function that prints errors. An error without an exit code is an error
// of usage or configuration.
func report(err error, w io.Writer) int {
	if err == nil {
		return controller.ExitDone
	}
	f := &failure{code: controller.ExitConfiguration, err: err}
	errors.As(err, &f)
	if f.err != nil {
		fmt.Fprintf(w, "agentctl: %s\n", printable(f.err.Error()))
	}
	if f.hint != "" {
		fmt.Fprintf(w, "agentctl: hint: %s\n", printable(f.hint))
	}
	return f.code
}

// maxPrinted bounds a printed message, in bytes.
const maxPrinted = 16 << 10

// printable returns a message that may contain text of a sandbox: control
// characters are escaped. Its further lines begin with a bar, so that none of them
// looks like a message of its own or like a command of a CI system.
func printable(message string) string {
	if len(message) > maxPrinted {
		message = fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(message[:maxPrinted], ""), len(message))
	}
	lines := strings.Split(strings.TrimRight(message, "\n"), "\n")
	for i, line := range lines {
		lines[i] = text.Line(line)
	}
	return strings.Join(lines, "\n  | ")
}
