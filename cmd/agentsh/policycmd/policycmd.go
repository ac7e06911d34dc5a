// Package policycmd has the commands of a policy's author: agentsh policy and
// agentsh env.
//
// policycmd.go has check and schema, and loads policies for all commands. explain.go,
// suite.go (test, printed by report.go), compare.go (diff, replay, learn), probe.go
// and env.go are the other commands. live.go, probe.go and env_probe.go run commands
// in the scratch sessions of scratch.go.
package policycmd

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/text"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/host"
)

// New is the command policy.
func New() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, explain, test and compare policies",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newCheckCommand(), newExplainCommand(), newTestCommand(), newProbeCommand(), newDiffCommand(),
		newReplayCommand(), newLearnCommand(), newSchemaCommand(),
	)
	return cmd
}

// variables are the flags that say what the variables of a policy stand for.
type variables struct {
	workspace string
	home      string
	vars      []string
}

func (p *variables) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.workspace, "workspace", "", "what ${WORKSPACE} stands for (default: the current directory)")
	cmd.Flags().StringVar(&p.home, "home", "", "what ${HOME} stands for (default: "+layout.CommandHome+")")
	cmd.Flags().StringArrayVar(&p.vars, "var", nil, "NAME=VALUE of a variable in patterns; may be repeated")
}

// values are the variables to load a policy with.
func (p *variables) values() (map[string]string, error) {
	workspace := p.workspace
	if workspace == "" {
		dir, err := os.Getwd()
		if err != nil {
			return nil, fmt.Errorf("current directory: %w", err)
		}
		workspace = dir
	}
	workspace, err := filepath.Abs(workspace)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil {
		return nil, failure.New(failure.Found, err, "")
	}
	vars := host.PolicyVars(workspace, operator.Vars)
	if p.home != "" {
		vars["HOME"] = p.home
	}
	for _, v := range p.vars {
		name, text, ok := strings.Cut(v, "=")
		if !ok || name == "" {
			return nil, failure.New(failure.Usage, fmt.Errorf("--var %s is not NAME=VALUE", v), "")
		}
		vars[name] = text
	}
	return vars, nil
}

// load loads a policy file and what it extends.
func (p *variables) load(file string) (*policy.Policy, error) {
	vars, err := p.values()
	if err != nil {
		return nil, err
	}
	return loadPolicy(file, vars)
}

func loadPolicy(file string, vars map[string]string) (*policy.Policy, error) {
	data, err := readBounded(file)
	if err != nil {
		return nil, failure.New(failure.Found, fmt.Errorf("policy: %w", err), "")
	}
	p, err := syntax.Load(policy.Source{Name: file, Data: data}, syntax.Options{Vars: vars, ReadFile: readBounded})
	if err != nil {
		return nil, failure.New(failure.Found, err, "")
	}
	return p, nil
}

// readBounded reads a file of at most [syntax.MaxSource] bytes.
func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, syntax.MaxSource+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(data) > syntax.MaxSource {
		return nil, fmt.Errorf("%s: more than %d bytes", name, syntax.MaxSource)
	}
	return data, nil
}

func newCheckCommand() *cobra.Command {
	var at variables
	var strict bool
	cmd := &cobra.Command{
		Use:   "check FILE...",
		Short: "Load policies and name their errors and weak places",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			vars, err := at.values()
			if err != nil {
				return err
			}
			return check(cmd.OutOrStdout(), files, vars, strict)
		},
	}
	at.flags(cmd)
	cmd.Flags().BoolVar(&strict, "strict", false, "fail on warnings as well")
	return cmd
}

// check prints every problem of every file, then one line for each good file.
func check(out io.Writer, files []string, vars map[string]string, strict bool) error {
	bad := 0
	for _, file := range files {
		p, err := loadPolicy(file, vars)
		if err != nil {
			bad++
			if !printProblems(out, err) {
				fmt.Fprintf(out, "%s: error: %v\n", file, err)
			}
			continue
		}
		warnings := syntax.Lint(p)
		for _, w := range warnings {
			fmt.Fprintf(out, "%s: %s: %s [%s]\n", w.Pos, w.Severity, withHint(w), w.Code)
		}
		if strict && len(warnings) > 0 {
			bad++
			continue
		}
		fmt.Fprintf(out, "%s: ok, %s, %s\n", file, text.Count(countRules(p), "rule"), text.Count(len(warnings), "warning"))
	}
	if bad > 0 {
		return failure.New(failure.Found, fmt.Errorf("%d of %s not good", bad, text.Count(len(files), "file")), "")
	}
	return nil
}

// printProblems prints the problems of an error, if it has any.
func printProblems(out io.Writer, err error) bool {
	var problems policy.Problems
	if !errors.As(err, &problems) {
		return false
	}
	for _, p := range problems {
		fmt.Fprintf(out, "%s: %s: %s\n", p.Pos, p.Severity, withHint(p))
	}
	return true
}

func withHint(p policy.Problem) string {
	if p.Hint == "" {
		return p.Message
	}
	return p.Message + " (" + p.Hint + ")"
}

var ruleGroups = []policy.Group{
	policy.GroupCommand, policy.GroupFile, policy.GroupNetwork, policy.GroupUnixSocket, policy.GroupSignal,
}

func countRules(p *policy.Policy) int {
	n := 0
	for _, g := range ruleGroups {
		n += len(p.Rules(g))
	}
	return n
}

func newSchemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of policy files, for editors",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			schema, err := syntax.Schema()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", schema)
			return err
		},
	}
}
