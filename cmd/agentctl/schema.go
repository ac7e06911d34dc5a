package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"agentsh/controller/harness"
)

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "schema harness|provider",
		Short:     "Print the JSON Schema of a kind of file, for editors",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"harness", "provider"},
		RunE: func(cmd *cobra.Command, args []string) error {
			make := harness.Schema
			if args[0] == "provider" {
				make = harness.ProviderSchema
			}
			text, err := make()
			if err != nil {
				return fmt.Errorf("make the schema: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
