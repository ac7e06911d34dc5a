package harness

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/internal/strictyaml"
)

// example is one code block of the reference.
type example struct {
	line int
	kind string // yaml, yaml provider
	text string
}

func examples(t *testing.T) []example {
	t.Helper()
	data, err := os.ReadFile("../../doc/harness.md")
	if err != nil {
		t.Fatal(err)
	}
	var out []example
	var block *example
	for i, line := range strings.Split(string(data), "\n") {
		switch {
		case block == nil && strings.HasPrefix(line, "```"):
			block = &example{line: i + 1, kind: strings.TrimPrefix(line, "```")}
		case block != nil && line == "```":
			out = append(out, *block)
			block = nil
		case block != nil:
			block.text += line + "\n"
		}
	}
	return out
}

// whole adds the required parts that an example leaves out.
func whole(text string) string {
	for _, line := range []string{"agent: agents/hello.md\n", "role: example\n"} {
		key, _, _ := strings.Cut(line, ":")
		if !strings.HasPrefix(text, key+":") && !strings.Contains(text, "\n"+key+":") {
			text = line + text
		}
	}
	return text
}

func TestEveryExampleOfTheReferenceLoads(t *testing.T) {
	surroundings := tests{
		"harness/common.yaml": "description: x\n", "agents/hello.md": "", "policies/strict.yaml": "version: 1\nname: strict\n",
		"env/tool.env": "TOOL=${X}\n", "rules.md": "",
		"skills/review/SKILL.md": "", "skills/label/SKILL.md": "", "skills/label/old.md": "", "skills/triage/SKILL.md": "",
		"plugins/lsp/x": "", "plugins/search/x": "", "inputs/x": "",
		"schemas/result.json": "{}", "profiles/github.yaml": "id: github\nendpoints: [{host: api.github.com, access: read-only}]\n",
		"scripts/pre.sh": "", "scripts/post.sh": "", "scripts/validate.sh": "", "providers/github.yaml": "name: github\ntype: t\n",
		"providers/model.yaml": "name: model\ntype: t\n",
	}
	shown, shownProvider := map[string]bool{}, map[string]bool{}
	for _, e := range examples(t) {
		switch e.kind {
		case "yaml":
			files := tests{"harness/example.yaml": whole(e.text)}
			for k, v := range surroundings {
				files[k] = v
			}
			dir := lay(t, files)
			forges := append([]string{""}, NewLoader(Options{}).Forges(filepath.Join(dir, "harness/example.yaml"))...)
			if strings.Contains(e.text, "runtime.forge") {
				forges = append(forges, "github")
			}
			for _, forge := range forges {
				h, ps := Load(filepath.Join(dir, "harness/example.yaml"), Options{Forge: forge})
				if h == nil {
					t.Errorf("doc/harness.md:%d: %v", e.line, ps)
					continue
				}
				leaves(fields, h.merged, "", func(path string, _ *field, _ *tree) { shown[path] = true })
			}
			n, _ := parse("x", []byte(e.text))
			for i := 0; i < len(n.Content); i += 2 {
				shown[n.Content[i].Value] = true // includes keys that loading folds
			}
			if strictyaml.Value(strictyaml.Value(n, "env"), "both") != nil {
				shown["env.both"] = true
			}
		case "yaml provider":
			dir := lay(t, tests{"p.yaml": e.text})
			p, ps := LoadProvider(dir+"/p.yaml", "p.yaml")
			if p == nil || ps != nil {
				t.Errorf("doc/harness.md:%d: %v", e.line, ps)
			}
			n, _ := parse("x", []byte(e.text))
			for i := 0; i < len(n.Content); i += 2 {
				shownProvider[n.Content[i].Value] = true
			}
		default:
			t.Errorf("doc/harness.md:%d: a block of kind %q", e.line, e.kind)
		}
	}
	for _, p := range append(paths(fields, ""), "forge", "overlays") {
		if !shown[p] {
			t.Errorf("doc/harness.md has no example of %s", p)
		}
	}
	for _, p := range paths(providerFields, "") {
		if !shownProvider[p] {
			t.Errorf("doc/harness.md has no example of %s in a provider", p)
		}
	}
}

func TestTheReferenceMarksWhatIsNotSupported(t *testing.T) {
	data, err := os.ReadFile("../../doc/harness.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := strings.Split(string(data), "\n### ")
	for path := range Unsupported {
		name, rest, _ := strings.Cut(path, ".")
		if rest != "" {
			name = rest
		}
		found := false
		for _, s := range sections[1:] {
			title, body, _ := strings.Cut(s, "\n")
			text, _, _ := strings.Cut(body, "```")
			if (strings.Contains(", "+title+",", ", "+name+",") || strings.Contains(text, "`"+name+"`")) &&
				strings.Contains(strings.ToLower(text), "not supported") {
				found = true
			}
		}
		if !found {
			t.Errorf("doc/harness.md does not say that %s is not supported", path)
		}
	}
}
