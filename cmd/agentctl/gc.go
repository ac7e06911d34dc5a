package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"agentsh/controller"
	"agentsh/controller/sandbox/local"
)

func newGCCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Remove what killed runs left behind",
		Long: `gc removes sandboxes with their processes, files and unpublished results of
runs whose agentctl was killed. Runs that are going on are not touched. A run
does the same when it starts.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, backend, err := openState(local.Name, "", "")
			if err != nil {
				return err
			}
			found, failed := controller.Collect(cmd.Context(), state, backend)
			if asJSON {
				if found == nil {
					found = []controller.Collected{}
				}
				if err := writeJSON(cmd.OutOrStdout(), found); err != nil {
					return err
				}
			} else {
				for _, c := range found {
					if c.Sandbox != "" {
						fmt.Fprintf(cmd.OutOrStdout(), "removed sandbox %s\n", c.Sandbox)
					} else {
						fmt.Fprintf(cmd.OutOrStdout(), "removed files of run %s\n", c.RunID)
					}
				}
			}
			if failed != nil {
				return &failure{code: controller.ExitSandbox, err: failed}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON list")
	return cmd
}
