package harness

import (
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"agentsh/internal/layout"

	"agentsh/policy/env"
)

// The rules of ADR 0055, one test for each sentence of it.

func TestADR0055SubmapsMergeIndependently(t *testing.T) {
	dir := lay(t, tests{
		"base.yaml":  head + "env: {runner: {R: base}, sandbox: {S: base}}\n",
		"child.yaml": "base: base.yaml\nenv: {sandbox: {T: child}}\n",
	})
	h, _ := loaded(t, dir, "child.yaml", Options{})
	equalText(t, "runner", show(h.Env.Runner), "R=base")
	equalText(t, "sandbox", show(h.Env.Sandbox), "S=base T=child")
}

func TestADR0055ChildWinsPerVariable(t *testing.T) {
	dir := lay(t, tests{
		"base.yaml":  head + "env: {runner: {A: base, B: base}}\n",
		"child.yaml": "base: base.yaml\nenv: {runner: {B: child}}\n",
	})
	h, _ := loaded(t, dir, "child.yaml", Options{})
	equalText(t, "runner", show(h.Env.Runner), "A=base B=child")
	if at := h.Env.Runner["B"].At; filepath.Base(at.File) != "child.yaml" || at.Line != 2 {
		t.Errorf("the place of B is %v", at)
	}
	if at := h.Env.Runner["A"].At; filepath.Base(at.File) != "base.yaml" || at.Line != 3 {
		t.Errorf("the place of A is %v", at)
	}
}

func TestADR0055ForgeWinsOverTheTopLevel(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head + `env: {runner: {A: top, B: top}, sandbox: {S: top}}
forge:
  github: {env: {runner: {B: github}, sandbox: {S: github}}}
  gitlab: {env: {runner: {B: gitlab}}}
`})
	for forge, want := range map[string]string{"": "A=top B=top / S=top", "github": "A=top B=github / S=github",
		"gitlab": "A=top B=gitlab / S=top"} {
		h, _ := loaded(t, dir, "a.yaml", Options{Forge: forge})
		equalText(t, "env of "+forge, show(h.Env.Runner)+" / "+show(h.Env.Sandbox), want)
	}
}

func TestADR0055AForgeBlockBelongsToItsLayer(t *testing.T) {
	dir := lay(t, tests{
		"base.yaml":  head + "env: {runner: {A: base, B: base, C: base}}\nforge: {github: {env: {runner: {A: base forge, B: base forge}}}}\n",
		"child.yaml": "base: base.yaml\nenv: {runner: {B: child}}\nforge: {github: {env: {runner: {C: child forge}}}}\n",
	})
	h, _ := loaded(t, dir, "child.yaml", Options{Forge: "github"})
	equalText(t, "runner", show(h.Env.Runner), "A=base forge B=child C=child forge")
}

func TestADR0055RunnerEnvAlwaysWarns(t *testing.T) {
	dir := lay(t, tests{
		"alone.yaml": head + "runner_env: {A: old}\n",
		"both.yaml":  head + "runner_env: {A: old, B: old}\nenv:\n  runner: {A: new}\n",
		"other.yaml": head + "runner_env: {A: old}\nenv: {sandbox: {S: new}}\n",
		"forge.yaml": head + "forge:\n  github:\n    runner_env: {A: old}\n    env: {runner: {A: new}}\n  gitlab:\n    runner_env: {A: old}\n",
		"base.yaml":  "base: alone.yaml\n",
		"empty.yaml": head + "runner_env: {}\n",
	})
	for _, c := range []struct{ name, forge, runner, want string }{
		{"alone.yaml", "", "A=old", "alone.yaml:3:1: warning: runner_env is deprecated: migrate to env.runner"},
		{"both.yaml", "", "A=new B=old", "both.yaml:3:1: warning: runner_env is deprecated and env.runner is written too: env.runner wins"},
		{"other.yaml", "", "A=old", "other.yaml:3:1: warning: runner_env is deprecated: migrate to env.runner"},
		{"forge.yaml", "github", "A=new", "forge.yaml:5:5: warning: forge.github.runner_env is deprecated and env.runner is written too: env.runner wins\n" +
			"forge.yaml:8:5: warning: forge.gitlab.runner_env is deprecated: migrate to env.runner"},
		{"base.yaml", "", "A=old", "alone.yaml:3:1: warning: runner_env is deprecated: migrate to env.runner"},
		{"empty.yaml", "", "", "empty.yaml:3:1: warning: runner_env is deprecated: migrate to env.runner"},
	} {
		h, ps := loaded(t, dir, c.name, Options{Forge: c.forge})
		equalText(t, c.name, short(dir, ps), c.want)
		equalText(t, c.name, show(h.Env.Runner), c.runner)
		if !ps.Strict().HasErrors() || ps.HasErrors() {
			t.Errorf("%s: strict makes no error of it, or it is one already", c.name)
		}
		if ps[0].Hint != "agentctl migrate "+ps[0].At.File {
			t.Errorf("%s: hint %q", c.name, ps[0].Hint)
		}
	}
}

func TestADR0055RunnerEnvIsFoldedWithinItsLayer(t *testing.T) {
	dir := lay(t, tests{
		"base.yaml":  head + "env: {runner: {A: base new, B: base new}}\n",
		"child.yaml": "base: base.yaml\nrunner_env: {A: child old}\n",
	})
	h, _ := loaded(t, dir, "child.yaml", Options{})
	equalText(t, "runner", show(h.Env.Runner), "A=child old B=base new")
}

func TestADR0055EnvSandboxIsReadAfterEnvFilesWhateverTheirNames(t *testing.T) {
	dir := lay(t, tests{
		"a.yaml": head + `env: {sandbox: {A: sandbox}}
host_files:
  - {src: x.env, dest: /sandbox/workspace/.env.d/zzz.env}
  - {src: x.env, dest: /sandbox/workspace/.env.d/generated.env.env}
  - {src: y.env, dest: /sandbox/workspace/.env.d/aaa.env}
`, "x.env": "A=file\nB=zzz\n", "y.env": "A=file\nB=aaa\nC=aaa\n",
	})
	h, ps := loaded(t, dir, "a.yaml", Options{})
	equalText(t, "coexistence", short(dir, ps), "a.yaml:3:17: warning: env.sandbox wins over A in x.env:1\n"+
		"a.yaml:3:17: warning: env.sandbox wins over A in y.env:1")
	x, ps := h.Expand(hostEnv(nil))
	if ps != nil {
		t.Fatal(ps)
	}
	files, ps := x.Files()
	if ps != nil {
		t.Fatal(ps)
	}
	ordered := envFiles(files)
	if last := ordered[len(ordered)-1].Name; len(ordered) != 4 || last != layout.GeneratedEnv {
		t.Fatalf("the last of %d files is %s", len(ordered), last)
	}
	result, err := env.Build(env.Layers{Files: ordered})
	if err != nil {
		t.Fatal(err)
	}
	equalText(t, "environment", strings.Join(result.Env, " "), "A=sandbox B=zzz C=aaa")
}

func TestADR0055RunnerVariablesNeverEnterTheSandbox(t *testing.T) {
	h, _ := one(t, "env: {runner: {SECRET: x}, sandbox: {S: y}}\nrunner_env: {OLD: z}\n")
	x, _ := h.Expand(hostEnv(nil))
	files, ps := x.Files()
	if ps != nil || len(files) != 1 {
		t.Fatal(files, ps)
	}
	equalText(t, "generated.env", string(files[0].Data), "S='y'\n")
}

func TestADR0055ValuesExpandFromTheHost(t *testing.T) {
	h, _ := one(t, "env: {runner: {A: '${X}-$X-${Y:-d}-$$X'}, sandbox: {B: \"${X}\"}}\nrunner_env: {C: $X}\n")
	x, ps := h.Expand(hostEnv(map[string]string{"X": "v $Y ${Z} `id`"}))
	if ps != nil {
		t.Fatal(ps)
	}
	equalText(t, "A", x.Runner["A"].V, "v $Y ${Z} `id`-v $Y ${Z} `id`-d-$X")
	equalText(t, "B", x.Sandbox["B"].V, "v $Y ${Z} `id`")
	equalText(t, "C", x.Runner["C"].V, "v $Y ${Z} `id`")
}

func TestADR0055AllUnsetVariablesAreListedInOneError(t *testing.T) {
	dir := lay(t, tests{"a.yaml": head + `env:
  runner: {A: "$NO_1 ${NO_2}"}
  sandbox: {B: "${NO_1} ${SET} ${EMPTY} ${NO_4:-}"}
host_files:
  - {src: "${NO_3}", dest: /tmp/x}
  - {src: "${NO_5}", dest: /tmp/y, optional: true}
`})
	h, _ := loaded(t, dir, "a.yaml", Options{})
	x, ps := h.Expand(hostEnv(map[string]string{"SET": "1", "EMPTY": ""}))
	if x != nil || len(ps) != 1 {
		t.Fatalf("%v", ps)
	}
	equalText(t, "problem", short(dir, ps),
		"a.yaml:4:12: error: 3 variables are not set on the host: NO_1 (a.yaml:4), NO_2 (a.yaml:4), NO_3 (a.yaml:7)")
}

func TestADR0055NoShellFeaturesBeyondTheDefault(t *testing.T) {
	for _, text := range []string{"${A-x}", "${A:=x}", "${A:+x}", "${A:?x}", "${A%x}", "${A%%x}", "${A#x}", "${A/x/y}", "${#A}", "${!A}",
		"${A[0]}", "${A:1:2}", "${A^}", "${A@Q}", "${}", "${ A}", "${1}", "$1", "$*", "$#", "$@", "$!", "$?", "$-", "${A", "${A:-${B}}",
		"${A:-$B}"} {
		dir := lay(t, tests{"a.yaml": head + "env: {sandbox: {V: '" + text + "'}}\n"})
		h, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
		if h != nil || ps[0].Rule != RuleExpansion || ps[0].At.Line != 3 {
			t.Errorf("%s is accepted: %v", text, ps)
		}
	}
	for text, want := range map[string]string{
		"$$": "$", "$$A": "$A", "$${A}": "${A}", "a$": "a$", "$(id)": "$(id)", "`id`": "`id`", "$ A": "$ A", "$/": "$/", "$A_": "<A_>",
		"$A.b":        "<A>.b",
		"${A:-a b:c}": "<A>", "${E:-a b:c}": "a b:c", "${U:-}": "", "$$$A": "$<A>", "100%": "100%", "~": "~", "*": "*", "{a,b}": "{a,b}",
		`\$A`: `\<A>`,
	} {
		e := newExpander(func(name string) (string, bool) {
			switch name {
			case "E":
				return "", true
			case "U":
				return "", false
			}
			return "<" + name + ">", true
		})
		if got := e.text(Text{V: text}).V; got != want || e.problems() != nil {
			t.Errorf("%s gives %q, want %q: %v", text, got, want, e.problems())
		}
	}
}

func TestADR0055HostFilesAndEnvCoexist(t *testing.T) {
	dir := lay(t, tests{
		"a.yaml": head + "env: {sandbox: {OTHER: x}}\nhost_files: [{src: t.env, dest: /sandbox/workspace/.env.d/t.env, expand: true}]\n",
		"t.env":  "# a tool\nexport TOKEN=\"${TOK}\" # said\nMIX='${TOK}'-$TOK\nCOST=5$$\n",
	})
	h, ps := loaded(t, dir, "a.yaml", Options{})
	if ps != nil {
		t.Fatal(ps)
	}
	// Quotes and line breaks in a value stay part of the value.
	x, _ := h.Expand(hostEnv(map[string]string{"TOK": "a'b\"c\n$(id)\nEVIL=1"}))
	files, ps := x.Files()
	if ps != nil {
		t.Fatal(ps)
	}
	vars, err := env.Parse("t.env", files[0].Data)
	if err != nil {
		t.Fatal(err)
	}
	tok := "a'b\"c\n$(id)\nEVIL=1"
	if want := []env.Var{{Name: "TOKEN", Value: tok}, {Name: "MIX", Value: tok + "-" + tok}, {Name: "COST", Value: "5$"}}; len(vars) != 3 ||
		vars[0] != want[0] ||
		vars[1] != want[1] ||
		vars[2] != want[2] {
		t.Errorf("%q", vars)
	}
	// Without the variable the error names the line of the file.
	x, _ = h.Expand(hostEnv(nil))
	_, ps = x.Files()
	if len(ps) != 1 || !strings.Contains(ps[0].Message, "TOK (") || filepath.Base(ps[0].At.File) != "t.env" || ps[0].At.Line != 2 {
		t.Errorf("%v", ps)
	}
}

func TestADR0055ReservedNamesAreRefusedOnEveryRoute(t *testing.T) {
	for _, name := range []string{"PATH", "HOME", "SHELL", "LD_PRELOAD", "BASH_ENV", "ENV", "IFS", "AGENTSH_RUN_ID", "SHLVL"} {
		for route, files := range map[string]tests{
			"env.sandbox":       {"a.yaml": head + "env: {sandbox: {" + name + ": x}}\n"},
			"env.both":          {"a.yaml": head + "env: {both: {" + name + ": x}}\n"},
			"forge":             {"a.yaml": head + "forge: {github: {env: {sandbox: {" + name + ": x}}}}\n"},
			"overlay":           {"a.yaml": head + "overlays: [{when: 'true', env: {sandbox: {" + name + ": x}}}]\n"},
			"base":              {"a.yaml": "base: b.yaml\n", "b.yaml": head + "env: {sandbox: {" + name + ": x}}\n"},
			"env file":          {"a.yaml": head + "host_files: [{src: t.env, dest: /sandbox/workspace/.env.d/t.env}]\n", "t.env": name + "=x\n"},
			"expanded env file": {"a.yaml": head + "host_files: [{src: t.env, dest: /sandbox/workspace/.env.d/t.env, expand: true}]\n", "t.env": "export " + name + "=$X\n"},
		} {
			_, ps := Load(filepath.Join(lay(t, files), "a.yaml"), Options{})
			if !ps.HasErrors() || ps.Errors()[0].Rule != RuleReserved || !strings.Contains(ps.Errors()[0].Message, name) {
				t.Errorf("%s by %s: %v", name, route, ps)
			}
		}
		// A source with a reference is checked when the harness is expanded.
		dir := lay(t, tests{"a.yaml": head + "host_files: [{src: '${F}', dest: /sandbox/workspace/.env.d/t.env}]\n", "t.env": name + "=x\n"})
		h, _ := loaded(t, dir, "a.yaml", Options{})
		x, ps := h.Expand(hostEnv(map[string]string{"F": dir + "/t.env"}))
		if ps != nil {
			t.Fatal(ps)
		}
		if _, ps := x.Files(); !ps.HasErrors() || ps[0].Rule != RuleReserved {
			t.Errorf("%s by a source known late: %v", name, ps)
		}
	}
}

// envFiles are the .env files among the delivered ones, in the order the
// supervisor reads them: sorted by name, generated.env always last.
func envFiles(files []File) []env.File {
	var out []env.File
	var last []env.File
	sorted := append([]File(nil), files...)
	sort.SliceStable(sorted, func(i, j int) bool { return sorted[i].Dest < sorted[j].Dest })
	for _, f := range sorted {
		switch {
		case f.Dest == layout.GeneratedEnv:
			last = append(last, env.File{Name: f.Dest, Data: f.Data})
		case isEnvFile(f.Dest):
			out = append(out, env.File{Name: f.Dest, Data: f.Data})
		}
	}
	return append(out, last...)
}
