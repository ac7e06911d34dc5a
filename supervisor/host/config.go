package host

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"agentsh/internal/layout"
	"agentsh/internal/strictyaml"
	"agentsh/supervisor"
	"agentsh/supervisor/probe"
)

// maxConfig is the largest configuration file, in bytes.
const maxConfig = 1 << 20

// ReadConfig reads a configuration file strictly: every unknown key, wrong type
// and duplicate is reported with file:line:column, all at once. A missing file
// gives the defaults when optional is set.
func ReadConfig(name string, optional bool) (supervisor.OperatorConfig, error) {
	info, err := os.Stat(name)
	if optional && errors.Is(err, os.ErrNotExist) {
		return supervisor.DefaultOperator, nil
	}
	if err != nil {
		return supervisor.OperatorConfig{}, fmt.Errorf("config: %w", err)
	}
	if info.Size() > maxConfig {
		return supervisor.OperatorConfig{}, fmt.Errorf("config %s: %d bytes, at most %d", name, info.Size(), maxConfig)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return supervisor.OperatorConfig{}, fmt.Errorf("config: %w", err)
	}
	return parseConfig(name, data)
}

func parseConfig(name string, data []byte) (supervisor.OperatorConfig, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return supervisor.OperatorConfig{}, fmt.Errorf("config %s: %w", name, err)
	}
	c := supervisor.DefaultOperator
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
		return supervisor.OperatorConfig{}, errors.New(strings.Join(r.problems, "\n"))
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

// PolicyVars are the variables of policies for a workspace that commands see
// under the same path. more are those of the configuration, which win.
func PolicyVars(workspace string, more map[string]string) map[string]string {
	vars := map[string]string{
		"WORKSPACE": workspace, "PROJECT_ROOT": workspace, "GIT_ROOT": workspace, "HOME": layout.CommandHome, "TMPDIR": "/tmp",
	}
	maps.Copy(vars, more)
	return vars
}
