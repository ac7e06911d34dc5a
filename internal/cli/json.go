package cli

import (
	"strconv"

	"github.com/spf13/cobra"
)

// AddJSON adds the flag --json to a command that has the flag --output, whose value is format. It
// means --output json.
func AddJSON(cmd *cobra.Command, format *string) {
	cmd.Flags().BoolFunc("json", "the same as --output json", func(text string) error {
		on, err := strconv.ParseBool(text)
		if on {
			*format = "json"
		}
		return err
	})
	cmd.MarkFlagsMutuallyExclusive("json", "output")
}
