package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/shim"
	"agentsh/internal/wire"
	"agentsh/policy"
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
such place is named.

Without --policy the session's own file is read again. A policy of a project must be
trusted as it is now.`,
		Example: "  agentsh session reload work\n  agentsh session reload work --policy examples/policies/demo.yaml",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, one, err := attachOne(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			defer func() { _ = client.Close() }() // the session goes on without us
			p, err := reloaded(one, file, config)
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
	discovery.PolicyFlag(cmd.Flags(), &file, "policy `FILE` (default: the one of the session, read again)")
	cmd.Flags().StringVar(&config, "config", "", "configuration `FILE` (default: the one of the session)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

// reloaded loads the policy that replaces the one of a session: what the command line
// names, else what the session was made with.
func reloaded(one host.Running, file, config string) (*policy.Policy, error) {
	kept := file == "" && config == ""
	if kept && one.Named {
		file = one.Origin.Policy
	}
	config = orDefault(config, one.Config)
	operator, err := host.ReadConfig(orDefault(config, layout.Config), config == "")
	if err == nil {
		operator, _, err = host.InContainer(operator)
	}
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	state, err := host.State(operator)
	if err != nil {
		return nil, failure.New(failure.Ours, err, "")
	}
	find := discovery.Request{
		File: file, Alone: config != "", Operator: operator.Policy, Workspace: one.Workspace, State: state,
		Vars: host.PolicyVars(one.Workspace, operator.Vars), Notes: os.Stderr, Open: operator.Container.WholeTrees, Look: true,
	}
	if one.Name == shim.SessionName { // its policy is the machine's, whoever calls
		find.Alone = true
		delete(find.Vars, "USER_HOME")
	}
	p, err := find.Policy()
	if err != nil {
		return nil, err
	}
	if found := policy.MainFile(p); kept && !one.Named && one.Origin.Policy != "" && found != one.Origin.Policy {
		err := fmt.Errorf("session %s was made with %s, and now %s would be used", one.Name, one.Origin.Policy, found)
		return nil, failure.New(failure.Ours, err, "name the one that you mean with --policy")
	}
	return p, nil
}
