package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"agentsh/internal/cli"
	"agentsh/internal/foreground"
	"agentsh/seccomp"
)

// Exit codes of agentsh itself; a command's own status passes through.
const (
	exitUsage = 2
	exitOurs  = 125
)

// failure is an error with the advice and the exit code that go with it.
// A nil err prints nothing: the message is already out.
type failure struct {
	err  error
	hint string
	code int
}

func (f *failure) Error() string {
	if f.err == nil {
		return ""
	}
	return f.err.Error()
}

func (f *failure) Unwrap() error { return f.err }

// fail makes a failure that exits with code.
func fail(code int, err error, hint string) error {
	return &failure{err: err, hint: hint, code: code}
}

// run executes the command line and returns the exit code.
func run(ctx context.Context, args []string) int {
	root := newRoot()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	var f *failure
	if err != nil && !errors.As(err, &f) {
		err = fail(exitUsage, err, "run '"+cmd.CommandPath()+" --help' for usage")
	}
	return report(foreground.Messages(ctx, os.Stderr), err)
}

// report prints err the way every message of agentsh looks: what is wrong, one
// line each, then what a person would do about it.
func report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var f *failure
	if !errors.As(err, &f) {
		f = &failure{err: err, code: exitUsage, hint: "run 'agentsh help' for usage"}
	}
	if f.err != nil {
		fmt.Fprintf(w, "agentsh: %v\n", f.err)
	}
	if f.hint != "" {
		fmt.Fprintf(w, "agentsh: hint: %s\n", f.hint)
	}
	return f.code
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
		newServeCommand(),
		newPolicyCommand(),
		newEnvCommand(),
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
		newScanCommand(),
	)
	root.AddCommand(
		cli.NewVersion(cli.Build{Program: "agentsh", Version: version, Commit: commit, Libseccomp: seccomp.LibraryVersion()}),
		cli.NewMan("agentsh"),
	)
	return root
}
