package main

import (
	"os"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/harness"
)

func newRenderCommand() *cobra.Command {
	var flags settings.Load
	var expand, policy bool
	cmd := &cobra.Command{
		Use:     "render FILE",
		Example: "  agentctl render --forge github harness/fix.yaml",
		Short:   "Print a harness with its bases and forge block merged",
		Long: `render prints the merged harness as YAML. Each line ends with the place that
wrote its value. With --expand the references of env and host_files are
replaced by the host's variables: the output then holds their values. With
--policy the policy of the sandbox is printed instead. Policies and provider
profiles of OpenShell are rendered in the language of this project.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: settings.CompleteYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			h, err := loadFor(cmd, args[0], &flags)
			if err != nil {
				return err
			}
			if policy {
				text, err := controller.PolicyText(h)
				if err != nil {
					return &output.Failure{Code: controller.ExitConfiguration, Err: err}
				}
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			if !expand {
				return h.Render(cmd.OutOrStdout())
			}
			x, ps := h.Expand(os.LookupEnv)
			if err := stderrProblems(cmd, ps); err != nil {
				return err
			}
			return x.Render(cmd.OutOrStdout())
		},
	}
	flags.Add(cmd)
	cmd.Flags().BoolVar(&policy, "policy", false, "print the policy, with the rules of its provider profiles")
	cmd.Flags().BoolVar(&expand, "expand", false, "replace references by the host's variables")
	return cmd
}

// loadFor loads a harness and prints its problems to standard error.
func loadFor(cmd *cobra.Command, name string, flags *settings.Load) (*harness.Harness, error) {
	o, err := flags.Options()
	if err != nil {
		return nil, err
	}
	h, ps := harness.Load(name, o)
	return h, stderrProblems(cmd, ps)
}

// stderrProblems prints problems to standard error. It returns a failure if one
// of them is an error.
func stderrProblems(cmd *cobra.Command, ps harness.Problems) error {
	if err := output.PrintProblems(cmd.ErrOrStderr(), ps, output.FormatText); err != nil {
		return err
	}
	if ps.HasErrors() {
		return &output.Failure{Code: controller.ExitConfiguration}
	}
	return nil
}
