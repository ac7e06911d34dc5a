package harness

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

func TestARuntimeThatCannotBeStartedIsReported(t *testing.T) {
	for text, want := range map[string]string{
		"runtime: surprise\n":                           "3:10: warning: the runtime surprise is not supported here, only claude, ",
		"runtime: command\ncommand: [x]\nmodel: m\n":    "5:8: warning: model is not supported here: the runtime command takes no model",
		"runtime: command\ncommand: [x]\neffort: low\n": "5:9: warning: effort is not supported here: the runtime command takes no reasoning effort",
	} {
		h, ps := one(t, text)
		if len(ps) != 1 || !strings.Contains(ps[0].String(), want) || ps[0].Rule != RuleUnsupport {
			t.Errorf("%q: %v", text, ps)
		}
		if (len(h.Refusals()) == 1) == strings.Contains(text, "surprise") {
			t.Errorf("%q: a run refuses %v", text, h.Refusals())
		}
	}
}

// tests maps names of files to their content.
type tests = map[string]string

// lay writes files below a new directory, with an agent definition.
func lay(t testing.TB, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(dir, "agents/a.md"), "# a\n")
	for name, text := range files {
		put(t, filepath.Join(dir, name), text)
	}
	return dir
}

func put(t testing.TB, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	mode := os.FileMode(0o644)
	if strings.HasSuffix(name, ".sh") {
		mode = 0o755
	}
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
}

// head contains the required keys of a harness.
const head = "agent: agents/a.md\nrole: r\n"

// loaded loads a harness that must have no errors.
func loaded(t testing.TB, dir, name string, o Options) (*Harness, Problems) {
	t.Helper()
	h, ps := Load(filepath.Join(dir, name), o)
	if h == nil || ps.HasErrors() {
		t.Fatalf("%s does not load:\n%v", name, ps)
	}
	return h, ps
}

// one loads a harness of a single file.
func one(t testing.TB, text string) (*Harness, Problems) {
	t.Helper()
	return loaded(t, lay(t, tests{"harness/a.yaml": head + text}), "harness/a.yaml", Options{})
}

// short formats problems without their directory, one a line: line:column
// severity message.
func short(dir string, ps Problems) string {
	var out []string
	for _, p := range ps {
		out = append(out, strings.ReplaceAll(p.String(), dir+"/", ""))
	}
	return strings.Join(out, "\n")
}

// show formats a map as sorted text.
func show(m Map) string {
	var out []string
	for k, v := range m {
		out = append(out, k+"="+v.V)
	}
	sort.Strings(out)
	return strings.Join(out, " ")
}

func list(ts Texts) string {
	var out []string
	for _, t := range ts {
		out = append(out, t.V)
	}
	return strings.Join(out, " ")
}

func equalText(t testing.TB, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func hostEnv(vars map[string]string) Lookup {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestEveryKindOfValueIsReadWithItsPosition(t *testing.T) {
	h, _ := one(t, `timeout_minutes: 0
readonly_repo: false
security: {host_scanners: {llm_guard: {threshold: 0.5}}}
container: {env_passthrough: [A, B]}
env: {runner: {X: 1, Y: "", Z: yes}}
`)
	if !h.TimeoutMinutes.IsSet() || h.TimeoutMinutes.V != 0 || h.TimeoutMinutes.Or(30) != 0 {
		t.Errorf("a written zero does not count: %+v", h.TimeoutMinutes)
	}
	if h.MaxFetches.IsSet() || h.MaxFetches.Or(7) != 7 {
		t.Errorf("an unwritten value counts: %+v", h.MaxFetches)
	}
	if !h.ReadonlyRepo.IsSet() || h.ReadonlyRepo.V {
		t.Errorf("false: %+v", h.ReadonlyRepo)
	}
	if h.Security.HostScanners.LLMGuard.Threshold.V != 0.5 {
		t.Errorf("threshold: %+v", h.Security.HostScanners.LLMGuard.Threshold)
	}
	equalText(t, "list", list(h.Container.EnvPassthrough), "A B")
	equalText(t, "map", show(h.Env.Runner), "X=1 Y= Z=yes")
	if at := h.Env.Runner["Z"].At; at.Line != 7 || at.Column != 29 {
		t.Errorf("the place of Z is %v", at)
	}
	if at := h.Role.At; at.Line != 2 || at.Column != 7 {
		t.Errorf("the place of role is %v", at)
	}
	if h.AgentName() != "a" || h.Path(h.Agent) != h.Root+"/agents/a.md" || h.Path(Text{V: "/x"}) != "/x" || h.Path(Text{}) != "" {
		t.Errorf("paths: %s %s", h.AgentName(), h.Path(h.Agent))
	}
}

// See YAML 1.2.2, 10.3.2. The parser itself implements YAML 1.1.
func TestScalarsFollowTheCoreSchemaOfYAML12(t *testing.T) {
	for _, c := range []struct{ written, want string }{
		{"10", "10"}, {"010", "10"}, {"0o17", "15"}, {"0x1F", "31"}, {"+7", "7"}, {"-0", "0"},
		{"0b11", "text"}, {"1_000", "text"}, {"017_0", "text"}, {"1e2", "number"}, {"10.0", "number"}, {"'10'", "text"},
		{"yes", "text"}, {"on", "text"}, {"true", "truth"}, {"2001-01-01", "text"}, {"!!int '10'", "10"}, {"190:20", "text"},
		{".inf", "number"}, {"99999999999", "large"},
	} {
		h, ps := Load(filepath.Join(lay(t, tests{"a.yaml": head + "timeout_minutes: " + c.written + "\n"}), "a.yaml"), Options{})
		switch {
		case h != nil && itoa(h.TimeoutMinutes.V) == c.want:
		case h == nil && strings.Contains(ps[0].Message, c.want):
		default:
			t.Errorf("timeout_minutes: %s gives %v, %v", c.written, h, ps)
		}
	}
	for _, c := range []struct{ written, want string }{
		{"true", "true"}, {"True", "true"}, {"FALSE", "false"}, {"yes", "text"}, {"on", "text"}, {"no", "text"}, {"off", "text"}, {"1", "number"},
		{"'true'", "text"}, {"tRuE", "text"}, {"!!bool true", "true"},
	} {
		h, ps := Load(filepath.Join(lay(t, tests{"a.yaml": head + "readonly_repo: " + c.written + "\n"}), "a.yaml"), Options{})
		switch {
		case h != nil && (c.want == "true") == h.ReadonlyRepo.V && (c.want == "true" || c.want == "false"):
		case h == nil && strings.Contains(ps[0].Message, c.want):
		default:
			t.Errorf("readonly_repo: %s gives %v, %v", c.written, h, ps)
		}
	}
	for _, written := range []string{"yes", "no", "on", "off", "true", "0o17", "010", "1_000", "2001-01-01", "1.50", "0x1F", "~x", "=", "NO"} {
		h, _ := one(t, "env: {sandbox: {V: "+written+"}}\n")
		equalText(t, "text", h.Env.Sandbox["V"].V, written)
	}
}

func itoa(n int) string { return strconv.Itoa(n) }

func TestAllProblemsOfAFileAreReportedAtOnceWithTheirPositions(t *testing.T) {
	dir := lay(t, tests{"harness/a.yaml": `agent: agents/a.md
role: Big Boss
modell: x
runtime: claude
slug: -x
timeout_minutes: soon
env:
  sandbx: {}
  sandbox:
    9A: x
    PATH: /bin
    A: ${B%c}
  runner: [x]
host_files:
  - src: a
  - dest: /etc/passwd
    src: ""
  - {src: /x, dest: relative}
  - {src: /x, dest: /sandbox/../etc/passwd}
  - {src: /x, dest: /etc/passwd}
  - {src: /x, dest: /sandbox/workspace/.env.d/generated.env}
forge:
  githib: {}
  github:
    model: x
    agnet: y
security: closed
steer: {enabled: "yes"}
role: twice
`})
	h, ps := Load(filepath.Join(dir, "harness/a.yaml"), Options{})
	if h != nil {
		t.Fatal("the harness loads")
	}
	equalText(t, "problems", short(dir, ps), strings.TrimSpace(`
harness/a.yaml:2:7: error: role: "Big Boss" is not small letters, digits, _ and -, starting with a letter
harness/a.yaml:3:1: error: a harness has no key "modell"
harness/a.yaml:5:7: error: slug: "-x" is not letters, digits, _ and -, starting with a letter or digit
harness/a.yaml:6:18: error: timeout_minutes is a whole number, this is the text "soon"
harness/a.yaml:8:3: error: env has no key "sandbx"
harness/a.yaml:10:5: error: env.sandbox: "9A" is not letters, digits and _, not starting with a digit
harness/a.yaml:11:5: error: env.sandbox: PATH belongs to the supervisor
harness/a.yaml:12:8: error: env.sandbox.A: "${B%c}" is neither ${NAME} nor ${NAME:-default}
harness/a.yaml:13:11: error: env.runner is a mapping of keys to values, this is a list
harness/a.yaml:15:5: error: host_files[0] has no dest
harness/a.yaml:17:10: error: host_files[1].src is empty
harness/a.yaml:23:3: error: "githib" is not a forge that is known: github, gitlab, forgejo, jira
harness/a.yaml:25:5: error: "model" may not differ in forge.github
harness/a.yaml:26:5: error: forge.github has no key "agnet"
harness/a.yaml:27:11: error: security is a mapping of keys to values, this is the text "closed"
harness/a.yaml:28:18: error: steer.enabled is true or false, this is the text "yes"
harness/a.yaml:29:1: error: "role" is written twice, first in line 2`))
	hints := map[string]bool{}
	for _, p := range ps {
		hints[p.Hint] = true
	}
	for _, want := range []string{`did you mean "model"?`, `did you mean "sandbox"?`, `did you mean "github"?`} {
		if !hints[want] {
			t.Errorf("no hint %q in %v", want, hints)
		}
	}
}

func TestDestinationsOfHostFilesAreChecked(t *testing.T) {
	for _, c := range []struct{ dest, want string }{
		{"relative", "not an absolute path"},
		{"/sandbox/../etc/passwd", "not clean"},
		{"/sandbox//x", "not clean"},
		{"/sandbox/x/", "not clean"},
		{"/etc/passwd", "not under /sandbox or /tmp"},
		{"/sandbox", "not under /sandbox or /tmp"},
		{"/sandboxed/x", "not under /sandbox or /tmp"},
		{"/tmpx", "not under /sandbox or /tmp"},
		{"/sandbox/workspace/.env", "belongs to the supervisor"},
		{"/sandbox/workspace/.env.d/generated.env", "belongs to the supervisor"},
		{"/sandbox/workspace/.env.d", "belongs to the supervisor"},
		{"/sandbox/workspace", "belongs to the supervisor"},
		{"/sandbox/workspace/.claude/settings.json", "belongs to the supervisor"},
		{"/sandbox/claude-config/agents/a.md", "belongs to the supervisor"},
		{"/sandbox/workspace/bin/claude", "belongs to the supervisor"},
		{"/sandbox/workspace/.env.d/tool.env", ""},
		{"/sandbox/workspace/notes.txt", ""},
		{"/tmp/credentials.json", ""},
	} {
		dir := lay(t, tests{"a.yaml": head + "host_files: [{src: x.env, dest: " + c.dest + "}]\n", "x.env": "A=1\n"})
		_, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
		if got := short(dir, ps.Errors()); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", c.dest, got, c.want)
		}
	}
}

func TestCombinationsOfKeysAreChecked(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"role: r\n", "no layer writes agent"},
		{"agent: agents/a.md\n", "no layer writes role"},
		{head + "version: 2\n", "version 2 is not known, only 1"},
		{head + "schema_version: 0\n", "schema_version 0 is not known, only 1"},
		{"agent: agents/b c.md\nrole: r\n", `agent: the name "b c" is not`},
		{"agent: agents/none.md\nrole: r\n", "agent: agents/none.md: no such file or directory"},
		{"agent: agents\nrole: r\n", "agent: agents is not a regular file"},
		{"agent: ''\nrole: r\n", "agent is empty"},
		{head + "runtime: command\n", "needs command, the program and its arguments"},
		{head + "validation_loop: {max_iterations: 2}\n", "validation_loop has no script"},
		{head + "skills: [agents]\n", "skills.path: agents has no SKILL.md"},
		{head + "skills: [agents/a.md]\n", "skills.path: agents/a.md is not a directory"},
		{head + "agent_input: agents/a.md\n", "agent_input: agents/a.md is not a directory"},
		{head + "providers: [nobody]\n", `the provider "nobody" is not defined`},
		{head + "providers: [providers/nobody.yaml]\n", "providers: providers/nobody.yaml: no such file"},
		{head + "host_files: [{src: none.txt, dest: /tmp/x}]\n", "host_files.src: none.txt: no such file"},
		{head + "host_files: [{src: none.env, dest: /sandbox/workspace/.env.d/x.env}]\n", "host_files.src: none.env: no such file"},
		{head + "effort: hgih\n", `effort: "hgih" is not one of low, medium, high`},
		{head + "model: a b\n", `model: "a b" is not`},
		{head + "overlays: [{env: {}}]\n", "overlays[0] has no when"},
		{head + "overlays: [{when: ~}]\n", "overlays[0] has no when"},
		{head + "overlays: {}\n", "overlays is a list"},
		{head + "forge: []\n", "forge is a mapping"},
		{head + "forge: {github: []}\n", "forge.github is a mapping"},
		{head + "skills: [~]\n", "skills[0] is empty"},
		{head + "env: ~\nrunner_env: {A: 1}\n", "env is removed here, so runner_env cannot set it"},
		{head + "env: {sandbox: ~, both: {A: 1}}\n", "env is removed here, so env.both cannot set it"},
		{head + "env: {runner: {AGENTSH_X: 1}}\n", "env.runner: AGENTSH_X belongs to the run"},
		{head + "env: {sandbox: {TRACEPARENT: 1}}\n", "env.sandbox: TRACEPARENT is set by the run"},
		{head + "env: {sandbox: {RANDOM: 1}}\n", "env.sandbox: RANDOM is set by shells themselves"},
		{head + "env: {both: {LD_PRELOAD: 1}}\n", "env.sandbox: LD_PRELOAD belongs to the supervisor"},
		{head + "env: {sandbox: {A: \"a\\0b\"}}\n", "holds a NUL byte"},
		{head + "security: {host_scanners: {llm_guard: {threshold: 2}}}\n", "2 is not between 0 and 1"},
		{head + "privilege_levels: {midnight: read}\n", `the key "midnight" is not pre_script, runtime`},
		{head + "sandbox: {}\n", `a harness has no key "sandbox"`},
		{head + "env: {timeout_minutes: 1}\n", "it belongs to the top level"},
	} {
		dir := lay(t, tests{"a.yaml": c.text, "agents/b c.md": ""})
		h, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
		if h != nil || !strings.Contains(short(dir, ps), c.want) {
			t.Errorf("%q gives %q, want %q", c.text, short(dir, ps), c.want)
		}
	}
}

func TestAScriptThatNobodyMayExecuteIsAWarning(t *testing.T) {
	dir := lay(t, tests{
		"a.yaml": head + "pre_script: no\npost_script: yes.sh\nvalidation_loop: {script: no}\n",
		"no":     "#!/bin/sh\n",
		"yes.sh": "#!/bin/sh\n",
	})
	h, ps := Load(filepath.Join(dir, "a.yaml"), Options{})
	got := short(dir, ps)
	if h == nil || strings.Count(got, "is not executable, and a run refuses it") != 2 ||
		!strings.Contains(got, "a.yaml:3:13: warning: pre_script: no is not executable") || len(ps) != 2 || !strings.HasPrefix(ps[0].Hint, "chmod +x ") {
		t.Errorf("%q", got)
	}
}

func TestProblemsKeepTheirSeverityInJSON(t *testing.T) {
	in := Problems{
		{At: Origin{File: "a", Line: 1, Column: 2, Layer: "forge.github"}, Severity: Error, Rule: "r", Message: "m"},
		{Severity: Note},
		{Severity: Warning, Hint: "h"},
	}
	text, err := json.Marshal(in)
	if err != nil || !strings.Contains(string(text), `"severity":"error"`) {
		t.Fatalf("%s %v", text, err)
	}
	var out Problems
	if err := json.Unmarshal(text, &out); err != nil || !slices.Equal(in, out) {
		t.Errorf("%+v %v", out, err)
	}
	if err := json.Unmarshal([]byte(`[{"severity":"fatal"}]`), &out); err == nil {
		t.Error("an unknown severity is read")
	}
}
