package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"agentsh/controller"
	"agentsh/controller/batch"
	"agentsh/controller/harness"
)

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "schema harness|provider|batch|result",
		Example:   "  agentctl schema harness > harness.schema.json",
		Short:     "Print the JSON Schema of a kind of file",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"harness", "provider", "batch", "result"},
		RunE: func(cmd *cobra.Command, args []string) error {
			schemas := map[string]func() ([]byte, error){
				"harness": harness.Schema, "provider": harness.ProviderSchema, "batch": batch.Schema, "result": controller.ResultSchema,
			}
			text, err := schemas[args[0]]()
			if err != nil {
				return fmt.Errorf("make the schema: %w", err)
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
}
