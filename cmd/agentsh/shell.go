package main

import (
	"errors"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/foreground"
)

func newShellCommand() *cobra.Command {
	o := execOptions{tty: true}
	cmd := &cobra.Command{
		Use:   "shell [flags]",
		Short: "Work in a bash under a policy",
		Long: `Work in an interactive bash under a policy, in a session of its own that ends with it.

It reads the startup script that the policy or the configuration injects as BASH_ENV,
which bash itself does only where it is not interactive. What is refused is printed
when it happens. Questions of 'approvals: {via: tty}' are asked on this terminal.`,
		Example: "  agentsh shell --policy examples/policies/demo.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.shell(cmd, stdio{cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()})
		},
	}
	o.sessionFlags(cmd.Flags())
	o.commandFlags(cmd.Flags())
	return cmd
}

func (o *execOptions) shell(cmd *cobra.Command, std stdio) error {
	if !foreground.IsTerminal(std.in) {
		return failure.New(failure.Ours, errors.New("standard input is not a terminal"), "run a script with 'agentsh exec -- bash SCRIPT'")
	}
	p, err := o.openOneShot()
	if err != nil {
		return err
	}
	return o.runWith(cmd.Context(), p, p.shell(), std)
}

// shell is the command line of an interactive bash that reads the operator's
// startup script.
func (p *oneShot) shell() []string {
	startup := p.config.Policy.EnvInject()["BASH_ENV"]
	if startup == "" {
		startup = p.config.Environment.Inject["BASH_ENV"]
	}
	if startup == "" {
		return []string{"bash"}
	}
	return []string{"bash", "--rcfile", startup}
}
