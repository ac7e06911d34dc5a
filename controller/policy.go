package controller

import (
	"encoding/json"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/controller/record"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// maxPolicyFile bounds one policy file, in bytes.
const maxPolicyFile = 4 << 20

// loadPolicy reads the policy at name with what it extends, and checks it: a
// policy that the supervisor would refuse is refused before a sandbox exists.
// Rules of the run itself are tried before those of the policy.
func loadPolicy(name string, own ownRules, vars map[string]string) (*policy.Policy, error) {
	name = shortName(name)
	data, err := record.ReadFile(name, maxPolicyFile)
	if err != nil {
		return nil, badConfig("", "policy: %w", err)
	}
	main := policy.Source{Name: name, Data: data}
	if len(own.files)+len(own.commands) > 0 {
		main = ownPolicy(name, own)
	}
	p, err := syntax.Load(main, syntax.Options{
		Vars:     vars,
		ReadFile: func(name string) ([]byte, error) { return record.ReadFile(name, maxPolicyFile) },
	})
	if err != nil {
		return nil, badConfig("run 'agentsh policy check "+name+"'", "policy:\n%w", err)
	}
	if len(own.commands) > 0 && !runsFrom(p, ownProgramDir) {
		return nil, badConfig("add "+ownProgramDir+" to exec_from, or write security: {enabled: false} in the harness",
			"policy %s: exec_from leaves out %s, where hooks and scans of the run are started", name, ownProgramDir)
	}
	return p, nil
}

// sources are the files of a policy, as a supervisor gets them.
func sources(p *policy.Policy) []wire.PolicySource {
	var out []wire.PolicySource
	for _, s := range p.Sources() {
		out = append(out, wire.PolicySource{Name: s.Name, Data: s.Data})
	}
	return out
}

// checkEnv refuses a policy that keeps from the agent's program a variable it is
// configured by: it would look for its files elsewhere, and say so nowhere.
func (r *run) checkEnv(p *policy.Policy) error {
	c, err := r.runtime.Command(r.invoke)
	if err != nil {
		return err
	}
	filter := p.EnvFilter(nil)
	var missing []string
	for _, v := range c.Env {
		if name, _, _ := strings.Cut(v, "="); !c.Told(name) && filter.Refuses(name) != "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return badConfig("add them to env_policy.allow of "+shortName(r.harness.Path(r.harness.Policy)),
			"the policy keeps variables from the runtime %s that it is configured by: %s", r.result.Runtime, strings.Join(missing, ", "))
	}
	return nil
}

// runsFrom reports whether exec_from of a policy covers a directory.
func runsFrom(p *policy.Policy, dir string) bool {
	list := p.ExecFrom()
	return list == nil || slices.ContainsFunc(list, func(pattern string) bool {
		tree := strings.TrimSuffix(pattern, "/**")
		return tree == dir || strings.HasPrefix(dir, tree+"/")
	})
}

// ownRules are the rules of a run, which are tried before those of its policy.
type ownRules struct {
	commands []commandRule
	files    []policyRule
}

// commandRule is a command rule of the run.
type commandRule struct {
	Name     string   `json:"name"`
	Commands []string `json:"commands"`
	Patterns []string `json:"args_patterns,omitempty"`
	Context  string   `json:"context,omitempty"`
	Decision string   `json:"decision"`
	Message  string   `json:"message,omitempty"`
}

// policyRule is a file rule of the run.
type policyRule struct {
	Name       string   `json:"name"`
	Paths      []string `json:"paths"`
	Operations []string `json:"operations"`
	Decision   string   `json:"decision"`
	Message    string   `json:"message,omitempty"`
}

// ownPolicyName is shown with the refusals of the run's own rules.
const ownPolicyName = "agentctl-run.yaml"

// ownPolicy is a policy that tries rules before those of the file name. JSON
// is YAML.
func ownPolicy(name string, own ownRules) policy.Source {
	data, err := json.MarshalIndent(struct {
		Version  int           `json:"version"`
		Name     string        `json:"name"`
		Extends  []string      `json:"extends"`
		Commands []commandRule `json:"command_rules,omitempty"`
		Files    []policyRule  `json:"file_rules,omitempty"`
	}{1, "agentctl-run", []string{name}, own.commands, own.files}, "", "  ")
	if err != nil {
		panic(err) // texts only
	}
	return policy.Source{Name: ownPolicyName, Data: data}
}

// changing are the operations that change a file or directory.
var changing = []string{
	"write",
	"create",
	"delete",
	"rename",
	"chmod",
	"chown",
	"link",
	"symlink",
	"mkdir",
	"rmdir",
	"mknod",
	"xattr",
	"utime",
}

// guarded are the rules that a run adds to its policy: the agent writes no
// variables of later commands and nothing that its program is configured by, which it may read, the program may write
// what it keeps for itself, and a read-only repository is one.
func (r *run) guarded() []policyRule {
	var rules []policyRule
	if r.showsProgram() {
		rules = append(rules, policyRule{
			Name: "own-program", Paths: []string{layout.Program}, Operations: []string{"read", "stat", "execute"}, Decision: "allow",
		})
	}
	if r.harness.ReadonlyRepo.V {
		rules = append(rules, policyRule{
			Name: "readonly-repo", Paths: []string{r.repoDir, r.repoDir + "/**"}, Operations: changing, Decision: "deny",
			Message: "the harness says readonly_repo: the repository is not changed",
		})
	}
	rules = append(rules, policyRule{
		Name: "delivered-environment", Paths: []string{layout.EnvDir, layout.EnvDir + "/**"}, Operations: changing, Decision: "deny",
		Message: "the variables of all commands are those that the controller delivered",
	}, policyRule{
		Name: "above-delivered-environment", Paths: []string{layout.Sandbox, layout.Workspace}, Operations: []string{"delete", "rename",
			"rmdir"},
		Decision: "deny", Message: "the variables of all commands are those that the controller delivered",
	})
	if len(r.own) == 0 {
		return rules
	}
	rules = append(rules, hiddenFiles(r.repoDir, r.hidden())...)
	var files []string
	above := map[string]bool{}
	for _, f := range r.own {
		files = append(files, f.Dest)
		for dir := path.Dir(f.Dest); dir != "/"; dir = path.Dir(dir) {
			above[dir] = true
		}
	}
	const message = "what the controller delivered stays as it is"
	for _, dir := range []string{"agents", "skills", "plugins"} {
		dir = path.Join(layout.ConfigDir, dir)
		files = append(files, dir, dir+"/**")
	}
	rules = append(rules,
		policyRule{Name: "delivered-files", Paths: files, Operations: changing, Decision: "deny", Message: message},
		policyRule{
			Name: "above-delivered-files", Paths: slices.Sorted(maps.Keys(above)), Operations: []string{"delete", "rename", "rmdir", "chmod",
				"chown", "symlink"},
			Decision: "deny", Message: message,
		})
	var state []string
	for _, name := range r.runtime.State(r.invoke) {
		state = append(state, name, name+".*", name+"/**") // beside it: locks, and what is renamed to it
	}
	if len(state) > 0 {
		rules = append(rules, policyRule{
			Name: "runtime-state", Paths: state, Operations: append([]string{"read", "list", "stat"}, changing...), Decision: "allow",
		})
	}
	return append(rules, policyRule{
		Name: "runtime-configuration", Paths: []string{layout.ConfigDir, layout.ConfigDir + "/**"}, Operations: changing,
		Decision: "deny", Message: message,
	}, policyRule{
		Name: "delivered-configuration", Paths: []string{layout.ConfigDir, layout.ConfigDir + "/**"},
		Operations: []string{"read", "list", "stat"}, Decision: "allow",
	}, policyRule{
		Name: "delivered-programs", Paths: []string{layout.ConfigDir + "/skills/**", layout.ConfigDir + "/plugins/**"},
		Operations: []string{"execute"}, Decision: "allow",
	}, policyRule{ // programs look for files of theirs in every directory above the repository
		Name: "sandbox-root", Paths: []string{layout.Sandbox, layout.Sandbox + "/*"}, Operations: []string{"list", "stat"}, Decision: "allow",
	})
}

// hiddenFiles keeps the agent from making files of the repository that its
// program would be configured by, and from leading to others in their place.
func hiddenFiles(repo string, names []string) []policyRule {
	if len(names) == 0 {
		return nil
	}
	var files []string
	above := map[string]bool{}
	for _, name := range names {
		files = append(files, path.Join(repo, name), path.Join(repo, name)+"/**")
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			above[path.Join(repo, dir)] = true
		}
	}
	const message = "the agent's program would be configured by it; the harness does that"
	return []policyRule{
		{Name: "hidden-files", Paths: files, Operations: append([]string{"read"}, changing...), Decision: "deny", Message: message},
		{
			Name: "above-hidden-files", Paths: slices.Sorted(maps.Keys(above)), Operations: []string{"rename", "symlink", "link"},
			Decision: "deny", Message: message,
		},
	}
}

// shortName is name relative to the working directory when it lies below it:
// it is shown with every refusal.
func shortName(name string) string {
	here, err := os.Getwd()
	if err != nil {
		return name
	}
	rel, err := filepath.Rel(here, name)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return name
	}
	return rel
}
