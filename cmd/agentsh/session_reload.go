package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/supervisor/host"
)

func newSessionReloadCommand() *cobra.Command {
	var file, config string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reload SESSION",
		Short: "Replace the policy of a running session",
		Long: `Replace the policy of a running session. Every later decision is made by the new
policy; every command sees one of both as a whole. A file that does not load, or
that asks for what is fixed since the session was opened, changes nothing: each
such place is named.`,
		Example: "  agentsh session reload work --policy examples/policies/demo.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			operator, err := host.ReadConfig(orDefault(config, layout.Config), config == "")
			if err != nil {
				return failure.New(failure.Ours, err, "")
			}
			client, one, err := attachOne(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the session goes on without us
			state, err := stateDir()
			if err != nil {
				return err
			}
			o := execOptions{policy: file, config: config}
			vars := host.PolicyVars(one.Workspace, operator.Vars)
			if args[0] == sharedName { // its policy is the machine's, whoever calls
				o.config = orDefault(config, layout.Config)
				delete(vars, "USER_HOME")
			}
			p, err := o.findPolicy(operator.Policy, one.Workspace, state, vars)
			if err != nil {
				return err
			}
			var r wire.Reload
			for _, source := range p.Sources() {
				r.Policy = append(r.Policy, wire.PolicySource(source))
			}
			done, err := client.Reload(cmd.Context(), r)
			if err != nil {
				return failure.New(failure.Ours, err, "the old policy stays in force")
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(done)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "policy %s %.12s replaces %.12s\n", printable(done.Policy), done.To, done.From)
			return nil
		},
	}
	cmd.Flags().StringVarP(&file, "policy", "p", "", "policy `FILE` (default: as for 'agentsh exec')")
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE` (default "+layout.Config+" where it exists)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}
