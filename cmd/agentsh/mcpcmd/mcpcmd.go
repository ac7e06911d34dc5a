// Package mcpcmd has the commands that stand between an agent in a sandbox and its MCP servers.
package mcpcmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/controller/mcpfilter"
)

// IsCall reports whether a command line is 'agentsh mcp-call SERVER TOOL', apart from other commands: an agent waits for it at each call
// of a tool. That it was started is all that it does, so main ends at once.
func IsCall(args []string) (is bool) {
	return len(args) > 2 && args[1] == mcpfilter.CommandCall && !slices.Contains(args, "--help") && !slices.Contains(args, "-h")
}

// NewCall documents what main does before there are commands.
func NewCall() *cobra.Command {
	return &cobra.Command{
		Use:   mcpfilter.CommandCall + " SERVER TOOL [REASON]",
		Short: "Do nothing, so that the policy judges the call of a tool",
		Long: `mcp-call does nothing. The filter of an MCP server starts it at each call of a tool: the
policy judges that as it judges any command, and the audit log has it. With a reason the
filter itself refused the call.

Only agentsh mcp-filter starts it.`,
		Example: "  agentsh mcp-call files read_text_file",
		Args:    cobra.RangeArgs(2, 3),
		RunE:    func(*cobra.Command, []string) error { return nil },
	}
}

// NewFilter is agentsh mcp-filter.
func NewFilter() *cobra.Command {
	var settings string
	cmd := &cobra.Command{
		Use:   mcpfilter.CommandFilter + " --settings FILE SERVER",
		Short: "Stand between an agent and an MCP server of its harness",
		Long: `mcp-filter starts an MCP server, and passes on only those of its tools that the harness
allows and whose definitions are pinned. Each call and each refusal is in the audit log.

Runs of agentctl configure the agent program so that it starts the filter in place of
each server of mcp_servers.`,
		Example: "  agentsh mcp-filter --settings mcp.json files",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, log, err := mcpfilter.ReadSettings(settings, args[0])
			if err == nil {
				err = mcpfilter.Serve(cmd.Context(), s, log, mcpfilter.Streams{
					In: cmd.InOrStdin(), Out: cmd.OutOrStdout(), Messages: cmd.ErrOrStderr(),
				})
			}
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			return nil
		},
	}
	filterFlags(cmd, &settings)
	return cmd
}

// NewList is agentsh mcp-list.
func NewList() *cobra.Command {
	var settings string
	cmd := &cobra.Command{
		Use:   mcpfilter.CommandList + " --settings FILE SERVER",
		Short: "Print the tools of an MCP server, with digests",
		Long: `mcp-list starts an MCP server and prints the definitions of all its tools with their
digests, in the form of a file of pins. 'agentctl mcp-pins' runs it in a sandbox.`,
		Example: "  agentsh mcp-list --settings mcp.json files",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, _, err := mcpfilter.ReadSettings(settings, args[0])
			if err == nil {
				err = printPins(cmd.Context(), s, cmd.OutOrStdout(), cmd.ErrOrStderr())
			}
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			return nil
		},
	}
	filterFlags(cmd, &settings)
	return cmd
}

func filterFlags(cmd *cobra.Command, settings *string) {
	cmd.Flags().StringVar(settings, "settings", "", "`FILE` with the servers of the run")
	_ = cmd.MarkFlagRequired("settings") // fails for an unknown flag only
}

func printPins(ctx context.Context, s mcpfilter.Server, to, messages io.Writer) error {
	tools, err := mcpfilter.List(ctx, s, messages)
	if err != nil {
		return err
	}
	if len(tools) == 0 {
		return errors.New("server " + s.Name + " has no tools")
	}
	data, err := json.MarshalIndent(mcpfilter.NewPins(s.Name, tools), "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(to, "%s\n", data)
	return err
}
