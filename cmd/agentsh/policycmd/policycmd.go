// Package policycmd has the commands of a policy's author: agentsh policy and
// agentsh env.
//
// policycmd.go has check and schema, and loads policies for all commands. explain.go,
// suite.go (test, printed by report.go), compare.go (diff, replay, learn), probe.go
// and env.go are the other commands. live.go, probe.go and env_probe.go run commands
// in the scratch sessions of scratch.go.
package policycmd

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/internal/project"
	"agentsh/internal/text"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/policy/syntax"
	"agentsh/supervisor/host"
)

// New is the command policy. logFile finds the audit log that a command line means.
func New(logFile func(args []string) (string, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Check, explain, test and compare policies",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newCheckCommand(), newExplainCommand(), newTestCommand(), newProbeCommand(), newDiffCommand(),
		newReplayCommand(), newLearnCommand(logFile), newSchemaCommand(),
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
	cmd.Flags().StringVar(&p.workspace, "workspace", "", "what ${WORKSPACE} stands for (default: as for 'agentsh exec')")
	cmd.Flags().StringVar(&p.home, "home", "", "what ${HOME} stands for (default: "+layout.CommandHome+")")
	cmd.Flags().StringArrayVar(&p.vars, "var", nil, "NAME=VALUE of a variable in patterns; may be repeated")
}

// values are the variables to load a policy with.
func (p *variables) values() (map[string]string, error) {
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil {
		return nil, failure.New(failure.Found, err, "")
	}
	workspace, err := filepath.Abs(cmp.Or(p.workspace, operator.Workspace, "."))
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	if real, err := filepath.EvalSymlinks(workspace); err == nil {
		workspace = real
	}
	if p.workspace == "" && operator.Workspace == "" {
		workspace = project.Root(workspace, project.UsersTrust(), project.Homes()...)
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

// find loads a policy file; without one, the policy that 'agentsh exec' would use.
func (p *variables) find(file string, notes io.Writer) (*policy.Policy, error) {
	if file != "" {
		return p.load(file)
	}
	vars, err := p.values()
	if err != nil {
		return nil, err
	}
	operator, err := host.ReadConfig(layout.Config, true)
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
	return discovery.Request{
		Operator: operator.Policy, Workspace: vars["WORKSPACE"], State: state, Vars: vars, Notes: notes,
		Open: operator.Container.WholeTrees, Look: true,
	}.Policy()
}

func loadPolicy(file string, vars map[string]string) (*policy.Policy, error) {
	file, err := project.Named(file)
	if err != nil {
		return nil, failure.New(failure.Usage, err, "")
	}
	data, err := readBounded(file)
	if err != nil {
		return nil, failure.New(failure.Found, fmt.Errorf("policy: %w", err), project.MissingHint(file, err))
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
	var o checkOptions
	cmd := &cobra.Command{
		Use: "check FILE...",
		Example: "  agentsh policy check strict.yaml\n" +
			"  agentsh policy check --strict --json *.yaml",
		Short: "Load policies and name their errors and weak places",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			vars, err := at.values()
			if err != nil {
				return err
			}
			return check(cmd.OutOrStdout(), files, vars, o)
		},
	}
	at.flags(cmd)
	cmd.Flags().BoolVar(&o.strict, "strict", false, "fail on warnings as well")
	cmd.Flags().BoolVar(&o.json, "json", false, "print a JSON list: file, ok, rules, problems")
	return cmd
}

// checkOptions are the flags of policy check.
type checkOptions struct{ strict, json bool }

// checked is one file in the output of check --json.
type checked struct {
	File     string          `json:"file"`
	OK       bool            `json:"ok"`
	Rules    int             `json:"rules"`
	Problems policy.Problems `json:"problems"`
}

// checkFile loads and lints a file.
func checkFile(file string, vars map[string]string, strict bool) checked {
	p, err := loadPolicy(file, vars)
	if err == nil {
		warnings := append(policy.Problems{}, syntax.Lint(p)...)
		return checked{File: file, OK: !strict || len(warnings) == 0, Rules: countRules(p), Problems: warnings}
	}
	c := checked{File: file}
	if !errors.As(err, &c.Problems) {
		at := policy.Position{File: file, Line: 1, Column: 1}
		c.Problems = policy.Problems{{Pos: at, Message: err.Error(), Hint: project.MissingHint(file, err)}}
	}
	return c
}

// check prints every problem of every file, then one line for each good file.
func check(out io.Writer, files []string, vars map[string]string, o checkOptions) error {
	bad := 0
	var all []checked
	for _, file := range files {
		c := checkFile(file, vars, o.strict)
		all = append(all, c)
		if !c.OK {
			bad++
		}
		if !o.json {
			c.print(out)
		}
	}
	if o.json {
		if err := indentJSON(out, all); err != nil {
			return err
		}
	}
	if bad > 0 {
		return failure.New(failure.Found, fmt.Errorf("%d of %s not good", bad, text.Count(len(files), "file")), "")
	}
	return nil
}

// print prints the problems of a file, and that it is good.
func (c checked) print(out io.Writer) {
	for _, p := range c.Problems {
		code := ""
		if p.Code != "" {
			code = " [" + p.Code + "]"
		}
		fmt.Fprintf(out, "%s: %s: %s%s\n", p.Pos, p.Severity, withHint(p), code)
	}
	if c.OK {
		fmt.Fprintf(out, "%s: ok, %s, %s\n", c.File, text.Count(c.Rules, "rule"), text.Count(len(c.Problems), "warning"))
	}
}

// indentJSON prints an indented value.
func indentJSON(out io.Writer, v any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
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
		Use:     "schema [policy|tests|config]",
		Example: "  agentsh policy schema > policy.schema.json\n  agentsh policy schema tests",
		Short:   "Print the JSON Schema of policy files, their tests or the configuration, for editors",
		Long: "Print the JSON Schema of policy files, their tests or the configuration, for editors. The\n" +
			"packages have them below /usr/share/agentsh/schemas. A comment in a file names its schema:\n\n" +
			"  # yaml-language-server: $schema=/usr/share/agentsh/schemas/policy.schema.json",
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"policy", "tests", "config"},
		RunE: func(cmd *cobra.Command, args []string) error {
			schema := map[string][]byte{"tests": policytest.Schema, "config": host.ConfigSchema}[strings.Join(args, "")]
			if schema == nil {
				var err error
				if schema, err = syntax.Schema(); err != nil {
					return err
				}
				schema = append(schema, '\n')
			}
			_, err := cmd.OutOrStdout().Write(schema)
			return err
		},
	}
}
