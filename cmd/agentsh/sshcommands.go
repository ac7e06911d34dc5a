package main

import (
	"os"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/sshcommand"
	"agentsh/internal/wire"
)

// newSFTPCommand serves files in a sandbox. Sessions of ssh start it.
func newSFTPCommand() *cobra.Command {
	return &cobra.Command{
		Use:    wire.CommandSFTP,
		Short:  "Serve sftp on standard input and output",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			return failed(sshcommand.ServeFiles(os.Stdin, os.Stdout), "")
		},
	}
}

// newForwardCommand makes a connection in a sandbox. Sessions of ssh start it.
func newForwardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    wire.CommandForward + " ADDRESS",
		Short:  "Connect standard input and output to an address",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := sshcommand.Forward(cmd.Context(), args[0], os.Stdin, os.Stdout, os.Stderr)
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			return nil
		},
	}
}
