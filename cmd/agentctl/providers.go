package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/cmd/agentctl/settings"
	"agentsh/controller"
	"agentsh/controller/harness"
	"agentsh/controller/provider"
	"agentsh/internal/cli"
)

var listFormats = []string{output.FormatText, output.FormatJSON}

func newProvidersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "providers",
		Short: "Look at credential sources",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newProvidersListCommand(), newProvidersPlanCommand())
	return cmd
}

func outputFlag(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVarP(format, "output", "o", output.FormatText, "text or json")
	cli.AddJSON(cmd, format)
	settings.Complete(cmd, "output", listFormats)
}

func checkOutput(format string) error {
	if !slices.Contains(listFormats, format) {
		return fmt.Errorf("unknown output format %q: one of %s", format, strings.Join(listFormats, ", "))
	}
	return nil
}

// providerJSON is one provider of the list, without values.
type providerJSON struct {
	Name        string   `json:"name"`
	Type        string   `json:"type"`
	File        string   `json:"file"`
	Credentials []string `json:"credentials"`
	Endpoints   []string `json:"endpoints"`
}

func newProvidersListCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "list [DIR]",
		Example: "  agentctl providers list --output json",
		Short:   "List the provider files of a directory",
		Long:    "list prints the providers defined in DIR/providers; DIR is the current directory by default.",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := "providers"
			if len(args) == 1 {
				dir = filepath.Join(args[0], "providers")
			}
			if err := checkOutput(format); err != nil {
				return err
			}
			list, ps := harness.LoadProviders(dir, dir)
			if err := stderrProblems(cmd, ps); err != nil {
				return err
			}
			return printProviders(cmd, list, format)
		},
	}
	outputFlag(cmd, &format)
	return cmd
}

func printProviders(cmd *cobra.Command, list []harness.Provider, format string) error {
	rows := []providerJSON{}
	for _, p := range list {
		row := providerJSON{Name: p.Name.V, Type: p.Type.V, File: p.File, Credentials: []string{}, Endpoints: []string{}}
		for name := range p.Credentials {
			row.Credentials = append(row.Credentials, name)
		}
		slices.Sort(row.Credentials)
		for _, e := range p.Endpoints {
			row.Endpoints = append(row.Endpoints, e.V)
		}
		rows = append(rows, row)
	}
	if format == output.FormatJSON {
		return output.WriteJSON(cmd.OutOrStdout(), rows)
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tTYPE\tCREDENTIALS\tENDPOINTS\tFILE")
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Name, r.Type, orDash(r.Credentials), orDash(r.Endpoints), r.File)
	}
	return w.Flush()
}

func orDash(list []string) string {
	if len(list) == 0 {
		return "-"
	}
	return strings.Join(list, ",")
}

// changeJSON is one step of a plan, without values.
type changeJSON struct {
	Action string `json:"action"`
	Name   string `json:"name"`
	Type   string `json:"type"`
}

func newProvidersPlanCommand() *cobra.Command {
	var flags settings.Load
	var format, state string
	cmd := &cobra.Command{
		Use:     "plan FILE",
		Example: "  agentctl providers plan harness/fix.yaml",
		Short:   "Print what a run of a harness would change on the gateway",
		Long: `plan compares the providers a harness wants with those the local gateway has
and prints create, update or keep for each. Nothing is changed.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: settings.CompleteYAML,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkOutput(format); err != nil {
				return err
			}
			h, err := loadFor(cmd, args[0], &flags)
			if err != nil {
				return err
			}
			x, ps := h.Expand(os.LookupEnv)
			if err := stderrProblems(cmd, ps); err != nil {
				return err
			}
			if state == "" {
				if state, err = settings.GatewayDir(); err != nil {
					return err
				}
			}
			return printPlan(cmd, x, state, format)
		},
	}
	flags.Add(cmd)
	outputFlag(cmd, &format)
	cmd.Flags().StringVar(
		&state,
		"state",
		"",
		"directory of the local gateway (default: gateway in the state directory)",
	)
	return cmd
}

func printPlan(cmd *cobra.Command, x *harness.Expanded, dir, format string) error {
	g, err := provider.PeekLocal(dir)
	if err != nil {
		return err
	}
	actual, err := g.Providers(cmd.Context())
	if err != nil {
		return &output.Failure{Code: controller.ExitSandbox, Err: fmt.Errorf("read the local gateway: %w", err)}
	}
	rows := []changeJSON{}
	for _, c := range provider.Plan(provider.Wanted(x), actual, g.Digest) {
		rows = append(rows, changeJSON{c.Action.String(), c.Definition.Name, c.Definition.Type})
	}
	if format == output.FormatJSON {
		return output.WriteJSON(cmd.OutOrStdout(), rows)
	}
	for _, r := range rows {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%-6s %s (%s)\n", r.Action, r.Name, r.Type); err != nil {
			return err
		}
	}
	if len(rows) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "no providers")
	}
	return nil
}
