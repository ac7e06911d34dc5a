package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/internal/strictyaml"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/egress"
	"agentsh/supervisor/netns"
	"agentsh/supervisor/probe"
)

// maxConfig is the largest configuration file, in bytes.
const maxConfig = 1 << 20

// OperatorConfig is the operator's configuration file.
type OperatorConfig struct {
	// Policy is the policy file used when a command line names none.
	Policy string
	// Audit is the audit log used when a command line names none.
	Audit string
	// Vars are further ${NAME} values for policies.
	Vars map[string]string
	// EnvInject is set in the environment of every command; a policy's own
	// env_inject wins key by key.
	EnvInject map[string]string
	// User is the name of the user that commands run as when the supervisor
	// runs as root.
	User string
	// Workspace is the directory that commands work in where a command line
	// names none; empty: the current one.
	Workspace string
	// Path is PATH of commands, and where their programs are looked up.
	Path string
	// Require is what must be proven before a session opens.
	Require []probe.Setting
	// Egress is how sessions reach what their policies allow; its credentials
	// are not the operator's to configure here.
	Egress netns.Outside
	// Degraded is what a session may lack where the machine has none.
	Degraded []probe.Setting
	// CacheSeconds is how old what commands see of changes that others make in
	// their workspace may be; 0: 10 minutes.
	CacheSeconds int
	// Trash bounds what soft_delete keeps for all sessions of a user together.
	Trash trash.Limits
	// Confine gives up what this process does not need once its session runs:
	// see [Session.Confine]. It is no setting; the caller says that the process
	// is there for this session alone.
	Confine bool
}

// configDefaults is the configuration without a file.
var configDefaults = OperatorConfig{
	User:  "sandbox",
	Trash: trash.DefaultLimits,
	Path:  "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/go/bin",
}

// ReadConfig reads a configuration file strictly: every unknown key, wrong type
// and duplicate is reported with file:line:column, all at once. A missing file
// gives the defaults when optional is set.
func ReadConfig(name string, optional bool) (OperatorConfig, error) {
	info, err := os.Stat(name)
	if optional && errors.Is(err, os.ErrNotExist) {
		return configDefaults, nil
	}
	if err != nil {
		return OperatorConfig{}, fmt.Errorf("config: %w", err)
	}
	if info.Size() > maxConfig {
		return OperatorConfig{}, fmt.Errorf("config %s: %d bytes, at most %d", name, info.Size(), maxConfig)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return OperatorConfig{}, fmt.Errorf("config: %w", err)
	}
	return parseConfig(name, data)
}

func parseConfig(name string, data []byte) (OperatorConfig, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return OperatorConfig{}, fmt.Errorf("config %s: %w", name, err)
	}
	c := configDefaults
	if len(doc.Content) == 0 {
		return c, nil
	}
	r := configReader{path: name}
	r.mapping(doc.Content[0], "the configuration", map[string]func(*yaml.Node){
		"version": r.version,
		"policy":  r.text(&c.Policy),
		"vars":    r.texts(&c.Vars),
		"require": r.require(&c.Require),
		"network": func(n *yaml.Node) {
			r.mapping(n, "network", map[string]func(*yaml.Node){
				"resolvers": r.resolvers(&c.Egress.Resolvers),
				"ca_files":  r.roots(&c.Egress.Roots),
			})
		},
		"degraded": r.degraded(&c.Degraded),
		"trash": func(n *yaml.Node) {
			r.mapping(n, "trash", map[string]func(*yaml.Node){
				"max_size_mb": func(n *yaml.Node) {
					r.count(n, 1<<30, func(mb int64) { c.Trash.Bytes = mb << 20 })
				},
				"max_files": func(n *yaml.Node) {
					r.count(n, 1<<31-1, func(files int64) { c.Trash.Entries = int(files) })
				},
			})
		},
		"audit": func(n *yaml.Node) {
			r.mapping(n, "audit", map[string]func(*yaml.Node){"path": r.text(&c.Audit)})
		},
		"sandbox": func(n *yaml.Node) {
			r.mapping(n, "sandbox", map[string]func(*yaml.Node){
				"env_inject": r.texts(&c.EnvInject),
				"user":       r.text(&c.User),
				"path":       r.text(&c.Path),
				"workspace":  r.directory(&c.Workspace),
				"cache_seconds": func(n *yaml.Node) {
					r.count(n, 600, func(seconds int64) { c.CacheSeconds = int(seconds) })
				},
			})
		},
	})
	if len(r.problems) > 0 {
		return OperatorConfig{}, errors.New(strings.Join(r.problems, "\n"))
	}
	return c, nil
}

// configReader walks the nodes of a configuration file and collects problems.
type configReader struct {
	path     string
	problems []string
}

func (r *configReader) problem(n *yaml.Node, format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf("%s:%d:%d: %s", r.path, n.Line, n.Column, fmt.Sprintf(format, args...)))
}

func (r *configReader) mapping(n *yaml.Node, what string, keys map[string]func(*yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		r.problem(n, "%s must be a mapping", what)
		return
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, known := keys[key.Value]
		switch {
		case seen[key.Value]:
			r.problem(key, "%s has the key %q twice", what, key.Value)
		case !known:
			r.problem(key, "%s has no key %q", what, key.Value)
		default:
			read(value)
		}
		seen[key.Value] = true
	}
}

func (r *configReader) version(n *yaml.Node) {
	if n.Value != "1" {
		r.problem(n, "version %q: this build reads version 1", n.Value)
	}
}

func (r *configReader) text(into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
			r.problem(n, "must be a text")
			return
		}
		*into = n.Value
	}
}

// count reads a whole number from 1 to most.
func (r *configReader) count(n *yaml.Node, most int64, set func(int64)) {
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" || err != nil || v < 1 || v > most {
		r.problem(n, "%q is no number from 1 to %d", n.Value, most)
		return
	}
	set(v)
}

// directory reads an absolute path: a configuration means the same everywhere.
func (r *configReader) directory(into *string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		r.text(into)(n)
		if n.Kind == yaml.ScalarNode && n.Tag != "!!null" && !path.IsAbs(n.Value) {
			r.problem(n, "%q is no absolute path", n.Value)
		}
	}
}

func (r *configReader) texts(into *map[string]string) func(*yaml.Node) {
	return func(n *yaml.Node) {
		values := map[string]string{}
		keys := map[string]func(*yaml.Node){}
		if n.Kind == yaml.MappingNode {
			for i := 0; i+1 < len(n.Content); i += 2 {
				name := n.Content[i].Value
				keys[name] = func(v *yaml.Node) {
					var text string
					r.text(&text)(v)
					values[name] = text
				}
			}
		}
		r.mapping(n, "a map of texts", keys)
		*into = values
	}
}

// require reads the names of require.
func (r *configReader) require(into *[]probe.Setting) func(*yaml.Node) {
	return func(n *yaml.Node) { r.names(n, "require", "requirement", probe.Requirements(), into) }
}

// degraded reads the mechanisms of degraded.
func (r *configReader) degraded(into *[]probe.Setting) func(*yaml.Node) {
	return func(n *yaml.Node) { r.names(n, "degraded", "mechanism", probe.Mechanisms(), into) }
}

// names reads a list of known names, each with its position.
func (r *configReader) names(n *yaml.Node, key, kind string, known []string, into *[]probe.Setting) {
	if n.Kind != yaml.SequenceNode {
		r.problem(n, "%s must be a list of names", key)
		return
	}
	for _, item := range n.Content {
		var name string
		r.text(&name)(item)
		if !slices.Contains(known, name) && item.Kind == yaml.ScalarNode {
			r.problem(item, "%s has no %s %q (%s)", key, kind, name, strictyaml.DidYouMean(name, known))
			continue
		}
		*into = append(*into, probe.Setting{Name: name, At: fmt.Sprintf("%s:%d:%d", r.path, item.Line, item.Column)})
	}
}

// WithDegraded is the configuration with further mechanisms of a command line.
func (c OperatorConfig) WithDegraded(names []string) OperatorConfig {
	c.Degraded = probe.WithFallbacks(c.Degraded, names)
	return c
}

// Request is a session that is asked for.
type Request struct {
	Boot    wire.Bootstrap // directories, store, network, fallbacks and credentials
	Policy  *policy.Policy
	Audit   *audit.Log
	Cwd     string // where commands start, inside; empty: the first governed directory
	Channel bool   // approvals can be answered over a channel
}

// SessionConfig is the configuration of a requested session. It is the only
// function that fills a [Config].
func SessionConfig(operator OperatorConfig, r Request) Config {
	inject := map[string]string{}
	maps.Copy(inject, operator.EnvInject)
	maps.Copy(inject, r.Boot.EnvInject)
	out := operator.Egress
	for _, c := range r.Boot.Credentials {
		out.Credentials = append(out.Credentials, egress.Credential(c))
	}
	c := Config{
		Policy:      r.Policy,
		Files:       Files{Governed: r.Boot.Governed, Store: r.Boot.KeepDir, Trash: operator.Trash, CacheSeconds: operator.CacheSeconds},
		Environment: Environment{Inject: inject, Dir: r.Boot.EnvDir, Home: r.Boot.Home, Path: operator.Path},
		Network:     Network{Shared: r.Boot.Network, Egress: out},
		Cwd:         r.Cwd,
		User:        operator.User,
		Require:     operator.Require,
		Degraded:    probe.WithFallbacks(operator.Degraded, r.Boot.Degraded),
		Program:     r.Boot.Program,
		Channel:     r.Channel,
		Audit:       r.Audit,
		Log:         slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	if c.Cwd == "" && len(r.Boot.Governed) > 0 {
		c.Cwd = r.Boot.Governed[0].Path
	}
	return c
}
