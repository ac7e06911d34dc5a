package controller

import (
	"encoding/json"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/controller/harness"
	"agentsh/controller/openshell"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/servers"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// maxPolicyFile bounds one policy file, in bytes.
const maxPolicyFile = 4 << 20

// loadPolicy reads the policy at name with the policies it extends, and checks
// it. So a policy that the supervisor would reject is rejected before a sandbox
// exists. The rules of the run are evaluated before those of the policy.
func loadPolicy(name string, own runRules, vars map[string]string) (*policy.Policy, error) {
	name = shortName(name)
	data, err := record.ReadFile(name, maxPolicyFile)
	if err != nil {
		return nil, badConfig("", "policy: %w", err)
	}
	if data, err = translated(name, data); err != nil {
		return nil, err
	}
	main := policy.Source{Name: name, Data: data}
	made := map[string][]byte{name: data}
	if len(own.profiles) > 0 {
		made[profilesName] = openshell.TranslateProfiles(own.profiles)
	}
	if len(own.files)+len(own.commands)+len(own.profiles) > 0 {
		main = runPolicy(name, own)
	}
	p, err := syntax.Load(main, syntax.Options{
		Vars: vars,
		ReadFile: func(name string) ([]byte, error) {
			if data, ok := made[name]; ok {
				return data, nil
			}
			return record.ReadFile(name, maxPolicyFile)
		},
	})
	if err != nil {
		return nil, badConfig("run 'agentsh policy check "+name+"'", "policy:\n%w", err)
	}
	if own.program && !runsFrom(p, programDir) {
		return nil, badConfig("add "+programDir+" to exec_from, or write security: {enabled: false} in the harness",
			"policy %s: exec_from leaves out %s, where hooks and scans of the run are", name, programDir)
	}
	return p, nil
}

// profilesName is the file name in denials by rules of provider profiles.
const profilesName = "openshell-profiles.yaml"

// translated is the text of a policy. A policy of OpenShell is rendered.
func translated(name string, data []byte) ([]byte, error) {
	if !openshell.IsPolicy(data) {
		return data, nil
	}
	p, problems := openshell.ReadPolicy(name, data)
	if p != nil {
		return p.Translate(name), nil
	}
	var lines []string
	for _, x := range problems {
		lines = append(lines, x.String())
	}
	return nil, badConfig("", "policy:\n%s", strings.Join(lines, "\n"))
}

// PolicyText is the policy of a harness with the rules of its provider profiles,
// in the language of this project: the policy itself, then the profiles.
func PolicyText(h *harness.Harness) ([]byte, error) {
	name := shortName(h.Path(h.Policy))
	data, err := record.ReadFile(name, maxPolicyFile)
	if err != nil {
		return nil, err
	}
	if data, err = translated(name, data); err != nil || len(h.Profiles) == 0 {
		return data, err
	}
	return slices.Concat(data, []byte("---\n"), openshell.TranslateProfiles(h.Profiles)), nil
}

// sources are the files of a policy, in the form that a supervisor receives.
func sources(p *policy.Policy) []wire.PolicySource {
	var out []wire.PolicySource
	for _, s := range p.Sources() {
		out = append(out, wire.PolicySource{Name: s.Name, Data: s.Data})
	}
	return out
}

// checkEnv rejects a policy that removes a variable that configures the agent's
// program. The program would silently read its files from elsewhere.
func checkEnv(prog program, p *policy.Policy, file string) error {
	c, err := prog.runtime.Command(prog.invocation)
	if err != nil {
		return err
	}
	filter := p.EnvFilter(nil)
	var missing []string
	for _, v := range c.Env {
		if name, _, _ := strings.Cut(v, "="); !c.Optional(name) && filter.Refuses(name) != "" {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return badConfig("add them to env_policy.allow of "+shortName(file),
			"the policy hides variables that configure the runtime %s: %s", prog.runtime.Name(), strings.Join(missing, ", "))
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

// runRules are the rules of a run. They are evaluated before those of its policy.
type runRules struct {
	program  bool // the supervisor's program runs in the sandbox
	commands []commandRule
	files    []fileRule
	profiles []openshell.Profile // their rules are evaluated after those of the policy
}

// newRunRules makes the rules that a run adds to its policy.
func newRunRules(p plan, prog program, repoDir string) runRules {
	return runRules{
		program: prog.ownProgram(p), commands: commandRules(p.scans(), prog), files: fileRules(p, prog, repoDir),
		profiles: p.harness.Profiles,
	}
}

// policyVars are the values of ${NAME} in the policy of a run.
func policyVars(repoDir string) map[string]string {
	return map[string]string{
		"WORKSPACE": layout.Workspace, "PROJECT_ROOT": repoDir, "GIT_ROOT": repoDir, "HOME": layout.Home, "TMPDIR": "/tmp",
	}
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

// fileRule is a file rule of the run.
type fileRule struct {
	Name       string   `json:"name"`
	Paths      []string `json:"paths"`
	Operations []string `json:"operations"`
	Decision   string   `json:"decision"`
	Message    string   `json:"message,omitempty"`
}

// runPolicy makes a policy with the rules of the run that extends the file
// name. So its rules are evaluated first. It is JSON, which is a subset of
// YAML.
func runPolicy(name string, own runRules) policy.Source {
	extends := []string{name}
	if len(own.profiles) > 0 {
		extends = append(extends, profilesName)
	}
	data, err := json.MarshalIndent(struct {
		Version  int           `json:"version"`
		Name     string        `json:"name"`
		Extends  []string      `json:"extends"`
		Commands []commandRule `json:"command_rules,omitempty"`
		Files    []fileRule    `json:"file_rules,omitempty"`
	}{1, "agentctl-run", extends, own.commands, own.files}, "", "  ")
	if err != nil {
		panic(err) // the values are strings only
	}
	return policy.Source{Name: layout.RunPolicy, Data: data}
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

// fileRules are the file rules of a run. The agent cannot change the variables
// of later commands, the configuration of its program, or a read-only
// repository. Its program may write its own state.
func fileRules(p plan, prog program, repoDir string) []fileRule {
	var rules []fileRule
	if prog.ownProgram(p) {
		rules = append(rules, fileRule{
			Name: "own-program", Paths: []string{layout.Program}, Operations: []string{"read", "stat", "execute"}, Decision: "allow",
		})
	}
	if len(prog.sandboxHooks()) > 0 {
		rules = append(rules, fileRule{
			Name: "refusals", Paths: []string{layout.Refusals}, Operations: []string{"read", "stat"}, Decision: "allow",
		}, fileRule{
			Name: "hook-log", Paths: []string{layout.HookLog, layout.HookState}, Operations: []string{"read", "stat", "write", "create"},
			Decision: "allow",
		})
	}
	if !prog.servers.Empty() {
		rules = append(rules, fileRule{
			Name: "mcp-log", Paths: []string{servers.Log}, Operations: []string{"read", "stat", "write", "create"}, Decision: "allow",
		})
	}
	if p.harness.ReadonlyRepo.V {
		rules = append(rules, fileRule{
			Name: "readonly-repo", Paths: []string{repoDir, repoDir + "/**"}, Operations: changing, Decision: "deny",
			Message: "the harness says readonly_repo: the repository is not changed",
		})
	}
	const message = "the variables of all commands are those that the controller delivered"
	rules = append(rules, fileRule{
		Name: "delivered-environment", Paths: []string{layout.EnvDir, layout.EnvDir + "/**"}, Operations: changing, Decision: "deny",
		Message: message,
	}, fileRule{
		Name: "above-delivered-environment", Paths: []string{layout.Sandbox, layout.Workspace},
		Operations: []string{"delete", "rename", "rmdir"}, Decision: "deny", Message: message,
	})
	if prog.outside || len(prog.files) == 0 { // its tools, commands and scans read what the harness delivered
		return append(append(rules, deliveredFiles(nil)...), configurationRules()...)
	}
	rules = append(rules, hiddenFiles(repoDir, prog.hidden())...)
	rules = append(rules, deliveredFiles(prog.files)...)
	return append(rules, runtimeRules(prog)...)
}

// deliveredFiles makes the configuration files of the agent's program read-
// only.
func deliveredFiles(delivered []runtime.File) []fileRule {
	var files []string
	above := map[string]bool{}
	for _, f := range delivered {
		files = append(files, f.Dest)
		for dir := path.Dir(f.Dest); dir != "/"; dir = path.Dir(dir) {
			above[dir] = true
		}
	}
	const message = deliveredMessage
	for _, dir := range []string{"agents", "skills", "plugins"} {
		dir = path.Join(layout.ConfigDir, dir)
		files = append(files, dir, dir+"/**")
	}
	rules := []fileRule{{Name: "delivered-files", Paths: files, Operations: changing, Decision: "deny", Message: message}}
	if len(above) > 0 {
		rules = append(rules, fileRule{
			Name: "above-delivered-files", Paths: slices.Sorted(maps.Keys(above)),
			Operations: []string{"delete", "rename", "rmdir", "chmod", "chown", "symlink"}, Decision: "deny", Message: message,
		})
	}
	return rules
}

const deliveredMessage = "what the controller delivered stays as it is"

// runtimeRules allow the agent's program to write its state and to read its
// configuration.
func runtimeRules(prog program) []fileRule {
	var rules []fileRule
	var state []string
	for _, name := range prog.runtime.State(prog.invocation) {
		state = append(state, name, name+".*", name+"/**") // files beside it: locks, and temporary files that are renamed to it
	}
	if len(state) > 0 {
		rules = append(rules, fileRule{
			Name: "runtime-state", Paths: state, Operations: append([]string{"read", "list", "stat"}, changing...), Decision: "allow",
		})
	}
	return append(rules, configurationRules()...)
}

// configurationRules let commands read what the harness delivered for the agent's program.
func configurationRules() []fileRule {
	return []fileRule{{
		Name: "runtime-configuration", Paths: []string{layout.ConfigDir, layout.ConfigDir + "/**"}, Operations: changing,
		Decision: "deny", Message: deliveredMessage,
	}, {
		Name: "delivered-configuration", Paths: []string{layout.ConfigDir, layout.ConfigDir + "/**"},
		Operations: []string{"read", "list", "stat"}, Decision: "allow",
	}, {
		Name: "delivered-programs", Paths: []string{layout.ConfigDir + "/skills/**", layout.ConfigDir + "/plugins/**"},
		Operations: []string{"execute"}, Decision: "allow",
	}, { // programs look for files of theirs in every directory above the repository
		Name: "sandbox-root", Paths: []string{layout.Sandbox, layout.Sandbox + "/*"}, Operations: []string{"list", "stat"}, Decision: "allow",
	}}
}

// hiddenFiles prevents the agent from creating files of the repository that
// would configure its program, and from linking or renaming other files to
// their paths.
func hiddenFiles(repo string, names []string) []fileRule {
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
	return []fileRule{
		{Name: "hidden-files", Paths: files, Operations: append([]string{"read"}, changing...), Decision: "deny", Message: message},
		{
			Name: "above-hidden-files", Paths: slices.Sorted(maps.Keys(above)), Operations: []string{"rename", "symlink", "link"},
			Decision: "deny", Message: message,
		},
	}
}

// shortName is name relative to the working directory if it is below it. Every
// denial shows it.
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
