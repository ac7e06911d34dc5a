package host

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"agentsh/internal/layout"
	"agentsh/internal/paths"
	"agentsh/internal/project"
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
	if optional && !info.Mode().IsRegular() { // nobody named it: a pipe may never have a writer
		return supervisor.OperatorConfig{}, fmt.Errorf("config %s is no regular file: put one there, or remove it", name)
	}
	data, err := readAtMost(name, maxConfig)
	if err != nil {
		return supervisor.OperatorConfig{}, fmt.Errorf("config: %w", err)
	}
	return parseConfig(name, data)
}

// readAtMost reads a file that has at most so many bytes.
func readAtMost(name string, most int64) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("%s is too large: at most %d bytes", name, most)
	}
	return data, err
}

func parseConfig(name string, data []byte) (supervisor.OperatorConfig, error) {
	c := supervisor.DefaultOperator
	var r configReader
	r.Reader = strictyaml.NewReader(name, &strictyaml.ConfigurationDialect, r.add)
	root := strictyaml.Parse(name, data, &strictyaml.ConfigurationDialect, r.add)
	if root == nil && len(r.problems) == 0 {
		return c, nil
	}
	if root != nil && !r.OtherKind(root, strictyaml.Configuration) {
		r.configuration(root, &c)
	}
	if len(r.problems) > 0 {
		return supervisor.OperatorConfig{}, errors.New(strings.Join(r.problems, "\n"))
	}
	return c, nil
}

// configuration reads the keys of a file.
func (r *configReader) configuration(root *strictyaml.Node, c *supervisor.OperatorConfig) {
	r.mapping(root, "the configuration", map[string]func(*strictyaml.Node){
		"version":   r.version,
		"policy":    r.text(&c.Policy),
		"vars":      r.texts(&c.Vars),
		"require":   r.require(&c.Require),
		"network":   func(n *strictyaml.Node) { c.Egress.Read(&r.Reader, n) },
		"degraded":  r.degraded(&c.Degraded),
		"container": func(n *strictyaml.Node) { r.container(n, &c.Container) },
		"forbid_engine": func(n *strictyaml.Node) {
			r.names(n, "forbid_engine", "engine", supervisor.Engines, &c.ForbidEngine)
		},
		"trash": func(n *strictyaml.Node) {
			r.mapping(n, "trash", map[string]func(*strictyaml.Node){
				"max_size_mb": func(n *strictyaml.Node) {
					r.count(n, 1<<30, func(mb int64) { c.Trash.Bytes = mb << 20 })
				},
				"max_files": func(n *strictyaml.Node) {
					r.count(n, 1<<31-1, func(files int64) { c.Trash.Entries = int(files) })
				},
			})
		},
		"audit": func(n *strictyaml.Node) {
			r.mapping(n, "audit", map[string]func(*strictyaml.Node){"path": r.text(&c.Audit)})
		},
		"sandbox": func(n *strictyaml.Node) {
			r.mapping(n, "sandbox", map[string]func(*strictyaml.Node){
				"env_inject": r.texts(&c.EnvInject),
				"user":       r.text(&c.User),
				"path":       r.text(&c.Path),
				"workspace":  r.directory(&c.Workspace),
				"git_identity": func(n *strictyaml.Node) {
					passed, ok := r.Bool(n)
					c.NoGitIdentity = ok && !passed
				},
				"cache_seconds": func(n *strictyaml.Node) {
					r.count(n, 600, func(seconds int64) { c.CacheSeconds = int(seconds) })
				},
			})
		},
	})
}

// ConfigSchema is the JSON Schema of configuration files, for editors. A test holds
// it against the reader.
//
//go:embed config.schema.json
var ConfigSchema []byte

// configReader reads the nodes of a configuration file and collects problems.
type configReader struct {
	strictyaml.Reader
	problems []string
}

func (r *configReader) add(p strictyaml.Problem) { r.problems = append(r.problems, p.String()) }

func (r *configReader) problem(n *strictyaml.Node, format string, args ...any) {
	r.Fail(n, "", format, args...)
}

func (r *configReader) mapping(n *strictyaml.Node, what string, keys map[string]func(*strictyaml.Node)) {
	r.Fields(n, what, keys)
}

// container reads the key container. Its policy is for containers without namespaces, which
// its degraded must allow.
func (r *configReader) container(n *strictyaml.Node, into *supervisor.ContainerConfig) {
	var policy *strictyaml.Node
	r.mapping(n, "container", map[string]func(*strictyaml.Node){
		"policy": func(n *strictyaml.Node) {
			policy = n
			r.text(&into.Policy)(n)
		},
		"degraded": r.degraded(&into.Degraded),
	})
	allowed := slices.ContainsFunc(into.Degraded, func(s probe.Setting) bool {
		return s.Name == probe.Namespaces || s.Name == probe.NestedCommands || s.Name == probe.AnyMechanism
	})
	if policy != nil && !allowed {
		r.problem(policy, "container.policy is for containers without namespaces: write degraded: [namespaces] beside it")
	}
}

func (r *configReader) version(n *strictyaml.Node) {
	if n.Value != "1" {
		r.problem(n, "version %q: this build reads version 1", n.Value)
	}
}

func (r *configReader) text(into *string) func(*strictyaml.Node) {
	return func(n *strictyaml.Node) {
		if s, ok := r.Text(n); ok {
			*into = s
		}
	}
}

// count reads a whole number from 1 to most.
func (r *configReader) count(n *strictyaml.Node, most int64, set func(int64)) {
	v, err := strconv.ParseInt(n.Value, 10, 64)
	if n.Kind != strictyaml.Scalar || strictyaml.TypeOf(n) != strictyaml.Int || err != nil || v < 1 || v > most {
		r.problem(n, "%q is no number from 1 to %d", n.Value, most)
		return
	}
	set(v)
}

// directory reads an absolute path: a configuration means the same everywhere.
func (r *configReader) directory(into *string) func(*strictyaml.Node) {
	return func(n *strictyaml.Node) {
		r.text(into)(n)
		if n.Kind == strictyaml.Scalar && !strictyaml.IsNull(n) && !path.IsAbs(n.Value) {
			r.problem(n, "%q is no absolute path", n.Value)
		}
	}
}

func (r *configReader) texts(into *map[string]string) func(*strictyaml.Node) {
	return func(n *strictyaml.Node) {
		values := map[string]string{}
		r.Keys(n, "a map of texts", nil, func(key *strictyaml.Node) func(*strictyaml.Node) {
			return func(v *strictyaml.Node) { values[key.Value], _ = r.Text(v) }
		})
		*into = values
	}
}

// require reads the names of require.
func (r *configReader) require(into *[]probe.Setting) func(*strictyaml.Node) {
	return func(n *strictyaml.Node) { r.names(n, "require", "requirement", probe.Requirements(), into) }
}

// degraded reads the mechanisms of degraded.
func (r *configReader) degraded(into *[]probe.Setting) func(*strictyaml.Node) {
	return func(n *strictyaml.Node) {
		if n.Kind == strictyaml.Scalar && n.Value == probe.AnyMechanism {
			*into = append(*into, probe.Setting{Name: n.Value, At: fmt.Sprintf("%s:%d:%d", r.File, n.Line, n.Column)})
			return
		}
		r.names(n, "degraded", "mechanism", append(probe.Mechanisms(), probe.AnyMechanism), into)
	}
}

// names reads a list of known names, each with its position.
func (r *configReader) names(n *strictyaml.Node, key, kind string, known []string, into *[]probe.Setting) {
	if n.Kind != strictyaml.List {
		r.problem(n, "%s must be a list of names", key)
		return
	}
	for _, item := range n.Content {
		var name string
		r.text(&name)(item)
		if !slices.Contains(known, name) && item.Kind == strictyaml.Scalar {
			r.problem(item, "%s has no %s %q (%s)", key, kind, name, strictyaml.DidYouMean(name, known))
			continue
		}
		*into = append(*into, probe.Setting{Name: name, At: fmt.Sprintf("%s:%d:%d", r.File, item.Line, item.Column)})
	}
}

// PolicyVars are the variables of policies for a workspace that commands see
// under the same path. USER_HOME is the home of the user who runs this program, if
// there is one. WORKSPACE_HOME is the same where the workspace has it; the home of the
// user database comes first, as callers cannot set it. more are those of the configuration, which win.
func PolicyVars(workspace string, more map[string]string) map[string]string {
	vars := map[string]string{
		"WORKSPACE": workspace, "PROJECT_ROOT": workspace, "GIT_ROOT": workspace, "HOME": layout.CommandHome, "TMPDIR": "/tmp",
	}
	if home := project.Home(); home != "" {
		vars["USER_HOME"] = home
	}
	for _, home := range slices.Backward(project.Homes()) {
		if home = paths.Resolve(home); vars["WORKSPACE_HOME"] == "" && paths.Within(home, paths.Resolve(workspace)) {
			vars["WORKSPACE_HOME"] = home
		}
	}
	maps.Copy(vars, more)
	return vars
}
