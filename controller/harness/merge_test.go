package harness

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"agentsh/internal/strictyaml"
)

func skillNames(h *Harness) string {
	var out []string
	for _, s := range h.Skills {
		out = append(out, s.Path.V)
	}
	return strings.Join(out, " ")
}

func hostFiles(h *Harness) string {
	var out []string
	for _, f := range h.HostFiles {
		out = append(out, f.Src.V+">"+f.Dest.V)
	}
	return strings.Join(out, " ")
}

func TestLayersMergeFromTheRootMostBaseToTheForgeBlockOfTheFile(t *testing.T) {
	layer := func(name, base string) string {
		s := fmt.Sprintf("env: {runner: {ALL: %s, %s: x}}\nforge: {github: {env: {runner: {ALL: %s forge, F%s: x}}}}\n", name, name, name, name)
		if base != "" {
			return "base: " + base + "\n" + s
		}
		return head + s
	}
	dir := lay(t, tests{"c.yaml": layer("C", "sub/b.yaml"), "sub/b.yaml": layer("B", "../a.yaml"), "a.yaml": layer("A", "")})
	h, _ := loaded(t, dir, "c.yaml", Options{Forge: "github", Root: dir})
	equalText(t, "runner", show(h.Env.Runner), "A=x ALL=C forge B=x C=x FA=x FB=x FC=x")
	if at := h.Env.Runner["ALL"].At; at.Layer != "forge.github" || filepath.Base(at.File) != "c.yaml" {
		t.Errorf("the place of ALL is %+v", at)
	}
	h, _ = loaded(t, dir, "c.yaml", Options{Root: dir})
	equalText(t, "runner without a forge", show(h.Env.Runner), "A=x ALL=C B=x C=x")
}

func TestEveryFieldMergesByItsRule(t *testing.T) {
	skill := func(names ...string) tests {
		out := tests{}
		for _, n := range names {
			out[n+"/SKILL.md"] = "x"
		}
		return out
	}
	for _, c := range []struct{ what, base, child, want string }{
		{"a scalar: the child wins", "model: a", "model: b", "model=b"},
		{"a scalar: absent inherits", "model: a", "slug: s", "model=a slug=s"},
		{"a scalar: null removes", "model: a", "model: ~", ""},
		{"a scalar: an empty text sets", "image: a", "image: ''", "image="},
		{"a number: zero sets", "timeout_minutes: 5", "timeout_minutes: 0", "timeout_minutes=0"},
		{"a truth value: false sets", "readonly_repo: true", "readonly_repo: false", "readonly_repo=false"},
		{"a list is appended, equal entries once", "openshell: {profiles: [a, b]}", "openshell: {profiles: [b, c]}", "openshell.profiles=a,b,c"},
		{"an empty list adds nothing", "openshell: {profiles: [a]}", "openshell: {profiles: []}", "openshell.profiles=a"},
		{"null removes a list", "openshell: {profiles: [a]}", "openshell: {profiles: ~}", ""},
		{"null removes a struct", "openshell: {profiles: [a]}", "openshell: ~", ""},
		{"a command is replaced", "runtime: command\ncommand: [a, b]", "command: [c]", "command=c runtime=command"},
		{"skills of one name are replaced in place", "skills: [s/x, s/y]", "skills: [t/x, s/z]", "skills.path=t/x,s/y,s/z"},
		{"host files of one place are replaced in place", "host_files: [{src: /1, dest: /tmp/a}, {src: /2, dest: /tmp/b}]",
			"host_files: [{src: /3, dest: /tmp/c}, {src: /4, dest: /tmp/a}]",
			"host_files.dest=/tmp/a,/tmp/b,/tmp/c host_files.src=/4,/2,/3"},
		{"a struct merges per field", "security: {fail_mode: closed, host_scanners: {ssrf_validator: true}}", "security: {host_scanners: {context_injection: false}}",
			"security.fail_mode=closed security.host_scanners.context_injection=false security.host_scanners.ssrf_validator=true"},
		{"an empty struct weakens nothing", "security: {enabled: true}", "security: {}", "security.enabled=true"},
		{"what is switched off is written", "security: {enabled: true}", "security: {enabled: false}", "security.enabled=false"},
		{"a map: null removes one key", "env: {runner: {A: 1, B: 2}}", "env: {runner: {A: ~}}", "env.runner.B=2"},
		{"a map: null removes all", "env: {runner: {A: 1}, sandbox: {S: 1}}", "env: {runner: ~}", "env.sandbox.S=1"},
		{"a map: an empty value sets", "env: {runner: {A: 1}}", "env: {runner: {A: ''}}", "env.runner.A="},
		{"runner_env: null removes one key", "env: {runner: {A: 1, B: 2}}", "runner_env: {A: ~}", "env.runner.B=2"},
		{"env.both: the long form wins", "slug: s", "env: {both: {A: 1, B: 1}, runner: {A: 2}}", "env.runner.A=2 env.runner.B=1 env.sandbox.A=1 env.sandbox.B=1 slug=s"},
		{"what a base keeps for itself", "version: 1\nallowed_remote_resources: [x]\nmax_runtime_fetches: 3", "slug: s", "slug=s"},
		{"validation per field", "validation_loop: {script: agents/a.md, max_iterations: 3}", "validation_loop: {max_iterations: 1}",
			"validation_loop.max_iterations=1 validation_loop.script=agents/a.md"},
		{"api servers are appended", "api_servers: [{name: a, script: agents/a.md, port: 1}]", "api_servers: [{name: b, script: agents/a.md, port: 2}]",
			"api_servers.name=a,b api_servers.port=1,2 api_servers.script=agents/a.md,agents/a.md"},
		{"plugins of one name are replaced in place", "plugins: [s/x]", "plugins: [{path: t/x, env: {A: 1}}]",
			"plugins.env.A=1 plugins.path=t/x"},
	} {
		files := skill("s/x", "s/y", "s/z", "t/x")
		for _, id := range []string{"a", "b", "c"} {
			files[id] = "id: " + id + "\n"
		}
		files["base.yaml"] = head + c.base + "\n"
		files["child.yaml"] = "base: base.yaml\n" + c.child + "\n"
		dir := lay(t, files)
		h, _ := loaded(t, dir, "child.yaml", Options{})
		equalText(t, c.what, flat(h), c.want)
		// A forge block is merged over its file by the same rules, if it may set the
		// field.
		name, _, _ := strings.Cut(c.child, ":")
		if f := find(fields, name); f.layered {
			files["forge.yaml"] = head + c.base + "\nforge:\n  github: {" + c.child + "}\n"
			h, _ := loaded(t, lay(t, files), "forge.yaml", Options{Forge: "github"})
			equalText(t, c.what+" (forge)", strings.TrimPrefix(flat(h), "version=1 "), c.want)
		}
	}
}

// flat formats a merged harness without agent and role, one word for each leaf.
func flat(h *Harness) string {
	values := map[string][]string{}
	leaves(fields, h.merged, "", func(path string, f *field, t *tree) {
		switch t.shape {
		case shapeDict:
			for _, k := range t.keys {
				values[path+"."+k] = append(values[path+"."+k], t.dict[k].text)
			}
		case shapeList:
			for _, item := range t.items {
				values[path] = append(values[path], item.text)
			}
		default:
			values[path] = append(values[path], t.text)
		}
	})
	delete(values, "agent")
	delete(values, "role")
	var out []string
	for _, k := range sortedKeys(values) {
		out = append(out, k+"="+strings.Join(values[k], ","))
	}
	return strings.Join(out, " ")
}

func TestANullThatRemovesNothingIsReported(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head + "model: ~\nenv: {sandbox: {A: ~}}\nforge: {github: {policy: ~}}\n"})
	_, ps := loaded(t, dir, "a.yaml", Options{Forge: "github"})
	equalText(t, "problems", short(dir, ps), `a.yaml:3:8: warning: model is empty and removes nothing: no weaker layer writes it
a.yaml:4:17: warning: env.sandbox.A is empty and removes nothing: no weaker layer writes it
a.yaml:5:26: warning: policy is empty and removes nothing: no weaker layer writes it`)
}

func TestARemovedRequiredFieldIsMissing(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head, "b.yaml": "base: a.yaml\nrole: ~\n"})
	_, ps := Load(filepath.Join(dir, "b.yaml"), Options{})
	equalText(t, "problems", short(dir, ps), "b.yaml:1:1: error: no layer writes role")
}

func TestTwoSkillsOfOneNameInOneLayerAreReported(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head + "skills: [p/github, q/github, p/github]\n", "p/github/SKILL.md": "", "q/github/SKILL.md": ""})
	h, ps := loaded(t, dir, "a.yaml", Options{})
	equalText(t, "skills", skillNames(h), "p/github")
	if !strings.Contains(short(dir, ps), "a.yaml:3:20: warning: skills: this entry replaces the one in line 3, both are github") {
		t.Errorf("%v", ps)
	}
}

func TestOverlaysAreMergedWhereTheirGuardHolds(t *testing.T) {
	text := head + `env: {runner: {V: top}}
overlays:
  - when: 'runtime.forge == "github"'
    env: {runner: {V: github, G: 1}}
  - when: has(event.source) && event.source.system == "jira"
    env: {runner: {V: jira, J: 1}}
`
	dir := lay(t, tests{"a.yaml": text, "b.yaml": "base: a.yaml\nenv: {runner: {V: child}}\n"})
	jira := map[string]any{"source": map[string]any{"system": "jira"}}
	for _, c := range []struct {
		name string
		o    Options
		want string
	}{
		{"a.yaml", Options{}, "V=top"},
		{"a.yaml", Options{Forge: "github"}, "G=1 V=github"},
		{"a.yaml", Options{Event: jira}, "J=1 V=jira"},
		{"a.yaml", Options{Forge: "github", Event: jira}, "G=1 J=1 V=jira"},
		{"b.yaml", Options{Forge: "github", Event: jira}, "G=1 J=1 V=child"},
	} {
		h, ps := loaded(t, dir, c.name, c.o)
		equalText(t, c.name, show(h.Env.Runner), c.want)
		if ps != nil || h.Refusals() != nil {
			t.Errorf("%v %v", ps, h.Refusals())
		}
	}
}

func TestAGuardThatIsNotUnderstoodRefusesTheRun(t *testing.T) {
	for _, c := range []struct{ when, want string }{
		{"event.n > 3", `the guard is more than is supported here: ">" is not expected`},
		{"size(event.labels) == 2", `"size" is not a name that is known`},
		{"event.source.system == 'jira'", "the guard cannot be decided: event.source.system is not given"},
		{"event.labels.exists(l, l == 'x')", "is not expected"},
		{"config.tier == 'gold'", `"config.tier" is not a name that is known`},
		{"'text'", "the guard is not a condition"},
		{"runtime.forge ==", "it ends early"},
		{"runtime.forge = 'x'", `"=" is not expected`},
		{"(true", "a parenthesis is not closed"},
		{"has(runtime)", "has() takes one name"},
		{strings.Repeat("(", 1000) + "true" + strings.Repeat(")", 1000), "nested deeper"},
		{strings.Repeat("!", 1000) + "true", "nested deeper"},
	} {
		dir := lay(t, tests{"a.yaml": head + "overlays:\n  - when: >-\n      " + c.when + "\n    env: {runner: {A: 1}}\n"})
		h, ps := loaded(t, dir, "a.yaml", Options{})
		if len(ps) != 1 || ps[0].Rule != RuleUnsupport || ps[0].At.Line != 4 || !strings.Contains(ps[0].Message, c.want) {
			t.Errorf("%s: %v, want %s", clip(c.when), ps, c.want)
		}
		if r := h.Refusals(); !r.HasErrors() || len(h.Env.Runner) != 0 {
			t.Errorf("%s: a run is not refused: %v", clip(c.when), r)
		}
	}
}

func TestGuardsFollowTheCommonExpressionLanguage(t *testing.T) {
	in := guardInput{forge: "github", event: map[string]any{"kind": "issue", "fork": true, "source": map[string]any{"system": "jira"}}}
	for _, c := range []struct {
		when string
		want bool
	}{
		{`true`, true}, {`false`, false}, {`!false`, true}, {`!(true && false)`, true},
		{`runtime.forge == "github"`, true}, {`"github" == runtime.forge`, true}, {`runtime.forge != 'gitlab'`, true},
		{`runtime.forge in ["gitlab", "github"]`, true}, {`runtime.forge in []`, false}, {`!(runtime.forge in ['x'])`, true},
		{`event.fork`, true}, {`!event.fork`, false}, {`event.fork == true`, true},
		{`has(event.none)`, false}, {`has(event.source.system)`, true},
		{`false || true && true`, true}, {`true || false && false`, true}, {`(true || false) && false`, false},
		{`event.none.deep || true`, true}, {`true || event.none`, true}, {`event.none && false`, false}, {`false && event.none`, false},
		{`event.kind == "issue" && event.source.system == "jira"`, true}, {`event.kind == true`, false},
	} {
		got, why := parseGuard(&tree{text: c.when}).matches(in)
		if got != c.want || why != "" {
			t.Errorf("%s gives %v %s", c.when, got, why)
		}
	}
}

func TestARenderedHarnessLoadsToTheSameHarness(t *testing.T) {
	files := tests{
		"base.yaml": head + "description: |\n  two\n  lines\nsecurity: {fail_mode: open}\nskills: [s/x]\nenv: {sandbox: {A: \"\\t\\\" \\\\ \\x01 \\u00e9 \\U0001F600 # x\", B: 'null', C: '007', D: '', E: ' ', F: 'yes'}}\n",
		"child.yaml": `base: base.yaml
slug: "10"
timeout_minutes: 0
host_files: [{src: '${X}', dest: /tmp/a b, optional: true}]
plugins: [{path: s/x, env: {A: 1}, pi: {args: [--a, -b]}}]
skills: [{s/y: {f.md: other.md, gone.md: ~}}]
steer: {}
runner_env: {R: $$x}
forge: {github: {policy: agents/a.md}}
`, "s/x/SKILL.md": "", "s/y/SKILL.md": "", "s/y/gone.md": "", "other.md": ""}
	dir := lay(t, files)
	h, _ := loaded(t, dir, "child.yaml", Options{Forge: "github"})
	var text bytes.Buffer
	if err := h.Render(&text); err != nil {
		t.Fatal(err)
	}
	put(t, dir+"/rendered.yaml", text.String())
	again, ps := loaded(t, dir, "rendered.yaml", Options{})
	if !equal(h.merged, again.merged) {
		t.Errorf("not the same:\n%s\n%v", text.String(), ps)
	}
	for _, line := range strings.Split(strings.TrimSpace(text.String()), "\n") {
		if !strings.Contains(line, " # "+dir) && !strings.HasSuffix(strings.TrimSpace(line), ":") {
			t.Errorf("no place: %s", line)
		}
	}
	if want := "    R: \"$$x\" # " + dir + "/child.yaml:8"; !strings.Contains(text.String(), want) &&
		!strings.Contains(text.String(), "    R: $$x # "+dir+"/child.yaml:8") {
		t.Errorf("no %s in\n%s", want, text.String())
	}
	if want := "policy: agents/a.md # " + dir + "/child.yaml:9 forge.github\n"; !strings.Contains(text.String(), want) {
		t.Errorf("no %s in\n%s", want, text.String())
	}
}

func FuzzAnyTextIsRenderedSoThatItIsReadBack(f *testing.F) {
	for _, s := range []string{"", "a", "null", "~", "0x1", "yes", "a: b", "- x", "#", "a #b", "'", "\"", "\\", "\n", " a", "a ", "é",
		"\u2028", "\ufeff", "\x7f", "{", "%", "@", "`", "!", "&a", "*a", "..."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return // YAML cannot contain it
		}
		n, ps := parse("x", []byte("k: "+scalarYAML(s)+" # x\n"))
		if ps != nil || n.Content[1].Value != s || strictyaml.TypeOf(n.Content[1]) != strictyaml.String {
			t.Errorf("%q as %s: %v", s, scalarYAML(s), ps)
		}
	})
}

func TestAKeyWithoutAValueIsAsIfItWereNotWritten(t *testing.T) {
	dir := lay(t, tests{
		"base.yaml":    head + "model: opus\nskills: [s/x]\nforge: {github: {env: {runner: {A: base}}}}\n",
		"a.yaml":       "base: base.yaml\nmodel:\nskills:\n  # - s/y\nenv:\n  runner:\nforge:\n  github:\n    # env: none\n",
		"s/x/SKILL.md": "",
	})
	h, ps := loaded(t, dir, "a.yaml", Options{Forge: "github"})
	equalText(t, "model", h.Model.V, "opus")
	equalText(t, "skills", skillNames(h), "s/x")
	equalText(t, "runner", show(h.Env.Runner), "A=base")
	equalText(t, "problems", short(dir, ps), `a.yaml:2:1: warning: model is empty, as if it were not written
a.yaml:3:1: warning: skills is empty, as if it were not written
a.yaml:6:3: warning: env.runner is empty, as if it were not written
a.yaml:8:3: warning: forge.github is empty, and changes nothing`)
}

func TestANullOfAForgeRemovesTheBlocksOfItsBases(t *testing.T) {
	const block = "forge:\n  github: {env: {runner: {A: base}}}\n  gitlab: {env: {runner: {A: base}}}\n"
	dir := lay(t, tests{
		"base.yaml":  head + "env: {runner: {A: top}}\n" + block,
		"one.yaml":   "base: base.yaml\nforge: {github: ~}\n",
		"all.yaml":   "base: base.yaml\nforge: ~\n",
		"again.yaml": "base: one.yaml\nforge: {github: {env: {runner: {B: again}}}}\n",
		"none.yaml":  head + "forge: {github: null}\n",
	})
	for _, c := range []struct{ file, forge, want string }{
		{"one.yaml", "github", "A=top"}, {"one.yaml", "gitlab", "A=base"},
		{"all.yaml", "github", "A=top"}, {"all.yaml", "gitlab", "A=top"},
		{"again.yaml", "github", "A=top B=again"}, {"again.yaml", "gitlab", "A=base"},
	} {
		h, ps := loaded(t, dir, c.file, Options{Forge: c.forge})
		equalText(t, c.file+" for "+c.forge, show(h.Env.Runner), c.want)
		equalText(t, c.file+" for "+c.forge, short(dir, ps), "")
	}
	_, ps := loaded(t, dir, "none.yaml", Options{Forge: "github"})
	equalText(t, "problems", short(dir, ps), "none.yaml:3:9: warning: forge.github is empty and removes nothing: no weaker layer writes it")
}

func TestAForgeThatNoLayerConfiguresIsRefused(t *testing.T) {
	dir := lay(t, tests{
		"a.yaml": head + "forge: {github: {}}\n", "plain.yaml": head,
		"guard.yaml": head + "overlays: [{when: 'runtime.forge == \"gitlab\"', env: {runner: {A: 1}}}]\n",
	})
	for file, want := range map[string]string{
		"a.yaml":     "a.yaml:1:1: error: no layer configures the forge gitlab",
		"plain.yaml": "plain.yaml:1:1: error: no layer configures the forge gitlab",
	} {
		_, ps := Load(filepath.Join(dir, file), Options{Forge: "gitlab"})
		equalText(t, "problems", short(dir, ps), want)
	}
	h, _ := loaded(t, dir, "guard.yaml", Options{Forge: "gitlab"})
	equalText(t, "runner", show(h.Env.Runner), "A=1")
}

func TestAnchorsAndMergeKeysShareSettings(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head + `env:
  runner: &shared {A: one, B: two}
  sandbox: {<<: *shared, B: mine}
forge:
  github: &both
    env: {runner: {FORGE: both}}
  gitlab: *both
`})
	h, _ := loaded(t, dir, "a.yaml", Options{Forge: "gitlab"})
	equalText(t, "runner", show(h.Env.Runner), "A=one B=two FORGE=both")
	equalText(t, "sandbox", show(h.Env.Sandbox), "A=one B=mine")
	if at := h.Env.Sandbox["A"].At; at.Line != 4 {
		t.Errorf("A comes from line %d, want that of its anchor", at.Line)
	}
}
