package main

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"agentsh/internal/layout"
)

// starter are the files of a harness for an agent program. Those with the
// extension tmpl are templates on [starterInput].
//
//go:embed starter
var starter embed.FS

// starterRuntime is what a harness for one agent program needs.
type starterRuntime struct {
	Runtime string
	Program string   // name of the program
	Key     string   // variable with the key of the model
	Host    string   // of the model's API
	Header  string   // that carries the key
	Model   string   // empty: the program chooses
	Vars    []string // patterns for env_policy
}

var starterRuntimes = []starterRuntime{
	{"claude", "claude", "ANTHROPIC_API_KEY", "api.anthropic.com", "X-Api-Key", "",
		[]string{"ANTHROPIC_*", "CLAUDE_*", "DISABLE_AUTOUPDATER", "IS_SANDBOX"}},
	{"codex", "codex", "OPENAI_API_KEY", "api.openai.com", "Authorization", "", []string{"OPENAI_*", "CODEX_*"}},
	{"gemini", "gemini", "GEMINI_API_KEY", "generativelanguage.googleapis.com", "X-Goog-Api-Key", "", []string{"GEMINI_*", "GOOGLE_*"}},
	{"opencode", "opencode", "ANTHROPIC_API_KEY", "api.anthropic.com", "X-Api-Key", "anthropic/claude-sonnet-4-5",
		[]string{"ANTHROPIC_*", "OPENCODE_*"}},
}

// starterNames are the names of starterRuntimes.
func starterNames() []string {
	var out []string
	for _, r := range starterRuntimes {
		out = append(out, r.Runtime)
	}
	return out
}

// starterInput is the input of the templates.
type starterInput struct {
	starterRuntime
	Command string   // of the harness, as a list of JSON; empty: not found
	Trees   []string // directories of the program that the policy must allow
}

// starterFiles are the files of a harness for a runtime. file is the program;
// empty: the one in PATH, if there is one.
func starterFiles(runtime, file string) (map[string][]byte, error) {
	i := slices.IndexFunc(starterRuntimes, func(r starterRuntime) bool { return r.Runtime == runtime })
	if i < 0 {
		return nil, fmt.Errorf("unknown runtime %q: one of %s, %s", runtime, ofExample, strings.Join(starterNames(), ", "))
	}
	in := starterInput{starterRuntime: starterRuntimes[i]}
	argv, err := agentProgram(cmp.Or(file, in.Program))
	if err != nil && file != "" {
		return nil, fmt.Errorf("--program %s: %w", file, err)
	}
	if err == nil {
		command, err := json.Marshal(argv)
		if err != nil {
			return nil, err
		}
		in.Command, in.Trees = string(command), programTrees(argv)
	}
	policy, err := in.policy()
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"policies/mender.yaml": policy}
	for from, to := range map[string]string{
		"agents/mender.md": "agents/mender.md", "env/git.env": "env/git.env", "scripts/post-mender.sh": "scripts/post-mender.sh",
		"harness.yaml.tmpl": "harness/mender.yaml", "provider.yaml.tmpl": "providers/model.yaml",
		"policy_test.yaml.tmpl": "policies/mender_test.yaml",
	} {
		if files[to], err = in.file(from); err != nil {
			return nil, fmt.Errorf("write %s: %w", to, err)
		}
	}
	return files, nil
}

// file is one file of starter.
func (in starterInput) file(name string) ([]byte, error) {
	data, err := fs.ReadFile(starter, "starter/"+name)
	if err != nil || filepath.Ext(name) != ".tmpl" {
		return data, err
	}
	t, err := template.New(name).Parse(string(data))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, in)
	return out.Bytes(), err
}

// policy is the policy of the example with what the program needs.
func (in starterInput) policy() ([]byte, error) {
	data, err := fs.ReadFile(example, "example/policies/hello.yaml")
	if err != nil {
		return nil, err
	}
	text := string(data)
	var vars strings.Builder
	for _, v := range in.Vars {
		fmt.Fprintf(&vars, "'%s', ", v)
	}
	network := "network_rules:\n  - name: model\n    domains: [" + in.Host + "]\n    ports: [443]\n    decision: allow\n\nenv_policy:\n"
	for _, change := range [][2]string{
		{"name: hello\n", "name: mender\n"},
		{"env_policy:\n", network},
		{"  allow: [PATH,", "  allow: [" + vars.String() + "PATH,"},
		{"file_rules:\n", "file_rules:\n" + in.programRules()},
	} {
		if strings.Count(text, change[0]) != 1 {
			return nil, fmt.Errorf("the policy of the example has not one %q", change[0])
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return []byte(text), nil
}

// programRules are the file rules for a program outside of the directories that
// the example allows.
func (in starterInput) programRules() string {
	if len(in.Trees) == 0 {
		return ""
	}
	quote := func(names []string) string { return "['" + strings.Join(names, "', '") + "']" }
	var trees, above []string
	for _, tree := range in.Trees {
		trees = append(trees, tree, tree+"/**")
		for dir := filepath.Dir(tree); dir != "/"; dir = filepath.Dir(dir) {
			if !slices.Contains(above, dir) {
				above = append(above, dir)
			}
		}
	}
	rules := "  - name: agent-program\n    paths: " + quote(trees) + "\n    operations: [read, list, stat, execute]\n    decision: allow\n"
	if len(above) > 0 {
		rules += "  - name: above-agent-program\n    paths: " + quote(above) + "\n    operations: [stat]\n    decision: allow\n"
	}
	return rules
}

// agentProgram is the command that starts a program: its file with all links
// resolved, after the interpreter if it is a script of Node.
func agentProgram(name string) ([]string, error) {
	file, err := findProgram(name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, 128)
	n, _ := f.Read(head) // an empty file is no script
	first, _, _ := bytes.Cut(head[:n], []byte("\n"))
	if !bytes.HasPrefix(first, []byte("#!")) || !bytes.Contains(first, []byte("node")) {
		return []string{file}, nil
	}
	node, err := findProgram("node")
	if err != nil {
		return nil, fmt.Errorf("%s is a script of node: %w", file, err)
	}
	return []string{node, file}, nil
}

// findProgram finds an executable file, in PATH if name is only a name.
func findProgram(name string) (string, error) {
	candidates := []string{name}
	if !strings.Contains(name, "/") {
		candidates = nil
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			candidates = append(candidates, filepath.Join(dir, name))
		}
	}
	for _, file := range candidates {
		info, err := os.Stat(file)
		if err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			continue
		}
		if file, err = filepath.Abs(file); err != nil {
			return "", err
		}
		return filepath.EvalSymlinks(file)
	}
	return "", fmt.Errorf("no executable file %s", name)
}

// programTrees are the directories of the files of a command that the policy of
// the example does not allow. A package of Node is one directory.
func programTrees(argv []string) []string {
	var out []string
	for _, file := range argv {
		if slices.ContainsFunc([]string{"/usr/", "/opt/", "/bin/", "/sbin/", "/lib/", "/lib64/"}, func(dir string) bool {
			return strings.HasPrefix(file, dir)
		}) {
			continue
		}
		tree := filepath.Dir(file)
		if before, _, found := strings.Cut(file, "/node_modules/"); found {
			tree = before + "/node_modules"
		}
		if tree == homeDir() || tree == "/" || tree == layout.Sandbox {
			tree = file // its directory holds more than the program
		}
		if !slices.Contains(out, tree) {
			out = append(out, tree)
		}
	}
	return out
}

// homeDir is the user's home directory; empty: not known.
func homeDir() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.HomeDir
}
