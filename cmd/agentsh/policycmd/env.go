package policycmd

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentsh/discovery"
	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/layout"
	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/supervisor/host"
)

// NewEnv is the command env.
func NewEnv() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "env",
		Short: "Explain the environment of commands",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newEnvExplainCommand(), newEnvProbeCommand())
	return cmd
}

// envOptions are the flags of env explain.
type envOptions struct {
	at      variables
	policy  string
	request []string
	inherit bool
	inject  []string
	dir     string
	values  bool
}

func newEnvExplainCommand() *cobra.Command {
	var o envOptions
	cmd := &cobra.Command{
		Use:     "explain [-p FILE] [-- COMMAND [ARG...]]",
		Example: "  agentsh env explain\n  agentsh env explain -p strict.yaml --env TERM -- make test",
		Short:   "Print each variable with what set it, and each dropped one with the reason",
		Long: "Print each variable with what set it, and each dropped one with the reason. COMMAND is\n" +
			"looked up as sessions do it, in the PATH of sessions. Without -p the policy is the one that\n" +
			"'agentsh exec' uses in this directory.",
		RunE: func(cmd *cobra.Command, argv []string) error {
			return o.explain(cmd.OutOrStdout(), cmd.ErrOrStderr(), argv)
		},
	}
	o.at.flags(cmd)
	f := cmd.Flags()
	discovery.PolicyFlag(f, &o.policy, "the policy `FILE` (default: the one that 'agentsh exec' uses here)")
	f.StringArrayVarP(&o.request, "env", "e", nil, "NAME=VALUE that the request sets, or NAME to pass on; may be repeated")
	f.BoolVar(&o.inherit, "inherit", false, "let the request set every variable of this shell")
	f.StringArrayVar(&o.inject, "inject", nil, "NAME=VALUE beside the configuration's env_inject; may be repeated")
	f.StringVar(&o.dir, "env-dir", "", "a directory of .env files, as the sandbox's .env.d")
	f.BoolVar(&o.values, "values", false, "print values too")
	return cmd
}

func (o *envOptions) explain(out, notes io.Writer, argv []string) error {
	p, err := o.at.find(o.policy, notes)
	if err != nil {
		return err
	}
	layers, err := o.layers(p)
	if err != nil {
		return err
	}
	if len(argv) > 0 {
		q := question{at: o.at}
		request, err := q.command(argv)
		if err != nil {
			return err
		}
		if missing := resolve(p, request); missing != "" {
			fmt.Fprintf(notes, "agentsh: %s\n", missing)
		}
		d, diagnostic := p.Evaluate(request)
		if d.Effect == policy.Deny {
			return failure.New(failure.Found, fmt.Errorf("the command is denied by rule %s: %s", diagnostic.Rule, diagnostic.Message),
				diagnostic.Hint)
		}
		layers.Filter = p.EnvFilter(d.Rule)
		layers.Filter.Source = "env_policy"
		if d.Rule != nil && d.Rule.Env != nil {
			layers.Filter.Source = "env_policy and rule " + d.Rule.Name
		}
	}
	result, err := env.Build(layers)
	if err != nil {
		return failure.New(failure.Found, err, "a command would not be started")
	}
	printEnvironment(out, result, o.values)
	return nil
}

// layers are the sources of a command's environment.
func (o *envOptions) layers(p *policy.Policy) (env.Layers, error) {
	vars, err := o.at.values()
	if err != nil {
		return env.Layers{}, err
	}
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil {
		return env.Layers{}, failure.New(failure.Found, err, "")
	}
	tools := discovery.Tools(operator, p)
	inject, err := o.injected(operator.EnvInject, tools.Env)
	if err != nil {
		return env.Layers{}, err
	}
	files, err := envFiles(o.dir)
	if err != nil {
		return env.Layers{}, failure.New(failure.Found, err, "")
	}
	l := env.Layers{
		Baseline: env.Baseline(env.Environment{Home: vars["HOME"], Path: tools.Of(operator.Path)}),
		Filter:   p.EnvFilter(nil),
		Files:    files,
		Inject:   []env.Inject{{Source: "config", Vars: inject}, {Source: "policy", Vars: p.EnvInject()}},
	}
	l.Filter.Source = "env_policy"
	if o.inherit {
		l.Request = os.Environ()
	}
	for _, e := range o.request {
		if !strings.Contains(e, "=") {
			value, set := os.LookupEnv(e)
			if !set {
				return env.Layers{}, failure.Usagef("--env %s: not set here", e)
			}
			e += "=" + value
		}
		l.Request = append(l.Request, e)
	}
	return l, nil
}

// injected is env_inject of the configuration, of the user's programs where that does not
// set it, and of --inject.
func (o *envOptions) injected(configured, tools map[string]string) (map[string]string, error) {
	given, err := pairs(o.inject)
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, layer := range []map[string]string{tools, configured, given} {
		maps.Copy(out, layer)
	}
	return out, nil
}

func pairs(list []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range list {
		name, value, ok := strings.Cut(p, "=")
		if !ok {
			return nil, failure.Usagef("%s is not NAME=VALUE", p)
		}
		out[name] = value
	}
	return out, nil
}

// envFiles reads the .env files of a directory, generated.env last.
func envFiles(dir string) ([]env.File, error) {
	if dir == "" {
		return nil, nil
	}
	names, err := filepath.Glob(filepath.Join(dir, "*.env"))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(names, func(a, b string) int {
		if generated(a) != generated(b) {
			if generated(a) {
				return 1
			}
			return -1
		}
		return strings.Compare(a, b)
	})
	var files []env.File
	var errs []error
	for _, name := range names {
		data, err := readBounded(name)
		if err != nil {
			errs = append(errs, err)
		}
		files = append(files, env.File{Name: name, Data: data})
	}
	return files, errors.Join(errs...)
}

func generated(name string) bool { return filepath.Base(name) == "generated.env" }

// printEnvironment prints names and origins; values only when asked for.
func printEnvironment(out io.Writer, r env.Result, values bool) {
	for i, o := range r.Origins {
		fmt.Fprintf(out, "%s: %s\n", shownVariable(o.Name, r.Env[i], values), originText(o))
	}
	for _, d := range r.Dropped {
		name := d.Name
		if !env.ValidName(name) {
			name = fmt.Sprintf("%q", name)
		}
		fmt.Fprintf(out, "dropped %s of the %s: %s\n", name, d.Layer, d.Reason)
	}
}

func shownVariable(name, entry string, values bool) string {
	if !values {
		return name
	}
	return name + "=" + fmt.Sprintf("%q", strings.TrimPrefix(entry, name+"="))
}

// originText describes where a variable comes from.
func originText(o env.Origin) string {
	text := o.Layer.String()
	if o.Source != "" {
		text += " " + o.Source
	}
	if o.Rule != "" {
		text += ", " + o.Rule
	}
	if len(o.Replaces) == 0 {
		return text
	}
	var below []string
	for _, l := range o.Replaces {
		below = append(below, l.String())
	}
	return text + ", instead of " + strings.Join(below, " and ")
}
