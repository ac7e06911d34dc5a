// Package projectcmd has the commands with which a person decides about a project.
package projectcmd

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/project"
	"agentsh/internal/text"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/host"
)

// trustOptions are the flags of agentsh trust.
type trustOptions struct {
	forget, list, json bool
}

// NewTrust is the command trust.
func NewTrust() *cobra.Command {
	var o trustOptions
	cmd := &cobra.Command{
		Use:   "trust [DIR]",
		Short: "Use the policy of a project from now on",
		Long: `Use the policy of a project from now on: ` + layout.ProjectPolicy + ` at the root of the
git repository around DIR (default: the current directory).

A command line without --policy uses the first of these:
  1. ` + layout.ProjectPolicy + ` of the project, if it is trusted
  2. ~/.config/agentsh/policy.yaml
  3. the policy that ` + layout.Config + ` names, else ` + layout.MachinePolicy + `

Read a policy before you trust it. What is stored is a digest of each of its files, in
the state directory, which no command of a session can change. A trusted policy that
changes, or is removed, is an error until it is trusted again or forgotten. The files
below ` + filepath.Dir(layout.Config) + ` that it extends may change with the package.`,
		Example: "  agentsh trust\n  agentsh trust --list --json\n  agentsh trust --forget ~/src/project",
		Args:    cobra.MaximumNArgs(1),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), args)
		},
	}
	cmd.Flags().BoolVar(&o.forget, "forget", false, "use the policy no longer")
	cmd.Flags().BoolVar(&o.list, "list", false, "list the policies that are trusted")
	cmd.Flags().BoolVar(&o.json, "json", false, "print a JSON list: file, sha256 of each file, trusted (when), changed (why it is not used)")
	cmd.MarkFlagsMutuallyExclusive("forget", "list")
	cmd.MarkFlagsMutuallyExclusive("forget", "json")
	return cmd
}

func (o trustOptions) run(out io.Writer, args []string) error {
	if s := project.Session(); s != "" {
		return failure.New(failure.Ours, fmt.Errorf("this is session %s: its commands do not decide what is trusted", s),
			"run 'agentsh trust' outside of the session")
	}
	operator, err := host.ReadConfig(layout.Config, true)
	if err == nil {
		operator, _, err = host.InContainer(operator)
	}
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	state, err := host.MakeState(operator)
	if err != nil {
		return failure.New(failure.Ours, err, "")
	}
	trust := project.Trust(state.Trust())
	if o.list {
		if len(args) > 0 {
			return failure.Usagef("--list takes no directory")
		}
		list, err := trust.List()
		if err != nil {
			return failure.New(failure.Ours, err, "")
		}
		return o.print(out, list)
	}
	workspace, err := root(args)
	if err != nil {
		return err
	}
	if o.forget {
		return forget(out, trust, project.PolicyFile(workspace))
	}
	if err := state.Make(); err != nil {
		return failure.New(failure.Ours, err, "")
	}
	r, err := add(trust, workspace)
	if err != nil {
		return err
	}
	return o.print(out, []project.Record{r})
}

// root is the workspace of a command line in a directory.
func root(args []string) (string, error) {
	dir := "."
	if len(args) > 0 {
		dir = args[0]
	}
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "", failure.New(failure.Ours, err, "name a directory of the project")
	}
	return project.Root(dir, project.UsersTrust(), project.Homes()...), nil
}

// add trusts the policy of a workspace as it is now.
func add(trust project.Trust, workspace string) (project.Record, error) {
	var none project.Record
	file := project.PolicyFile(workspace)
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil {
		return none, failure.New(failure.Ours, err, "")
	}
	data, err := project.Read(file)
	if errors.Is(err, os.ErrNotExist) {
		return none, failure.New(failure.Ours, err, "a project has its policy in "+layout.ProjectPolicy+" at the root of its repository")
	}
	if err != nil {
		return none, failure.New(failure.Ours, err, "")
	}
	p, err := syntax.Load(policy.Source{Name: file, Data: data},
		syntax.Options{Vars: host.PolicyVars(workspace, operator.Vars), OutsideWorkspace: true, ReadFile: project.Read})
	if err != nil {
		return none, failure.New(failure.Ours, err, "run 'agentsh policy check "+file+"'")
	}
	r, err := trust.Add(file, p.Sources())
	if err != nil {
		return none, failure.New(failure.Ours, fmt.Errorf("trust %s: %w", file, err), "")
	}
	return r, nil
}

func forget(out io.Writer, trust project.Trust, file string) error {
	known, err := trust.Forget(file)
	if err == nil && !known {
		err = fmt.Errorf("%s is not trusted", file)
	}
	if err != nil {
		return failure.New(failure.Ours, err, "'agentsh trust --list' names what is")
	}
	_, err = fmt.Fprintf(out, "not trusted any more: %s\n", text.Short(file, 4096))
	return err
}

func (o trustOptions) print(out io.Writer, list []project.Record) error {
	if o.json {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		return enc.Encode(append([]project.Record{}, list...))
	}
	for _, r := range list {
		state := "trusted"
		if r.Changed != "" {
			state = "changed"
		}
		if _, err := fmt.Fprintf(out, "%s: %s (%s)\n", state, text.Short(r.File, 4096), text.Count(len(r.Digests), "file")); err != nil {
			return err
		}
	}
	return nil
}
