package main

import (
	"github.com/spf13/cobra"

	"agentsh/controller/harness"
)

func newLintCommand() *cobra.Command {
	var forge string
	cmd := &cobra.Command{
		Use:   "lint FILE",
		Short: "Check harness files",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, ps := harness.Load(args[0], harness.Options{Forge: forge})
			for _, p := range ps {
				cmd.Println(p)
			}
			if ps.HasErrors() {
				return &failure{code: exitUsage}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&forge, "forge", "", "merge the blocks of this forge")
	return cmd
}
