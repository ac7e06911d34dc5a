package syntax

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"agentsh/policy"
	"agentsh/policy/internal/fixture"
)

func TestProblemsAreAllReportedWithPositionAndHint(t *testing.T) {
	const data = `version: 1
nama: x
command_rules:
  - name: a
    comands: [x]
    decision: alow
  - name: b
    commands: [x]
    args_patterns: ["(", "${FOO}"]
    decision: deny
    decision: allow
  - just text
file_rules:
- name: q
  paths: ['*.env', '~/.ssh/**', '/a//b']
  operations: [reed]
  decision: soft_delete
signal_rules:
- {name: s, signals: [SIGKIL], target: {type: childern}, decision: deny}
network_rules:
- {name: n, cidrs: [10.0.0.1/8, x], ports: [70000, 9-1], decision: allow}
- {name: m, decision: allow}
- {name: l, domains: ["a..b", "[z"], decision: redirect}
unix_socket_rules: {}
http_services: []
resource_limits: {pids_max: 0, command_timeout: soon, max_memory_mb: 1.5}
env_inject: {"A=B": x, AGENTSH_X: y}
`
	_, err := Load(policy.Source{Name: "dir/p.yaml", Data: []byte(data)}, Options{Vars: map[string]string{"FOOO": "x", "HOME": "/h"}})
	var all policy.Problems
	if !errors.As(err, &all) {
		t.Fatalf("%T %v", err, err)
	}
	got := all.Error()
	for _, want := range []string{
		`dir/p.yaml:1:1: the policy has no name`,
		`dir/p.yaml:2:1: the policy has no key "nama" (did you mean "name"?)`,
		`dir/p.yaml:4:5: a command rule has no commands`,
		`dir/p.yaml:5:5: a command rule has no key "comands" (did you mean "commands"?)`,
		`dir/p.yaml:6:15: unknown decision "alow" (did you mean "allow"?)`,
		`dir/p.yaml:9:21: error parsing regexp: missing closing )`,
		`dir/p.yaml:9:26: pattern "${FOO}": variable FOO is not defined, did you mean FOOO?`,
		`dir/p.yaml:11:5: key "decision" is given twice`,
		`dir/p.yaml:12:5: a command rule must be a mapping`,
		`dir/p.yaml:15:11: pattern "*.env": it matches no path`,
		`dir/p.yaml:15:20: ~ is not expanded (write ${HOME}/.ssh/**)`,
		`dir/p.yaml:15:33: pattern "/a//b": it matches no path`,
		`dir/p.yaml:16:16: unknown operation "reed" (did you mean "read"?)`,
		`unknown signal "SIGKIL" (did you mean "SIGKILL"?)`,
		`unknown target type "childern" (did you mean "children"?)`,
		`10.0.0.1/8 has bits set beyond its length (write 10.0.0.0/8)`,
		`"x" is not an address or a network`,
		`"70000" is not a port`,
		`"9-1" is not a port`,
		`dir/p.yaml:22:3: the rule selects nothing`,
		`domain "a..b": a label is empty`,
		`unknown decision "redirect"`,
		`must be a list`,
		`http_services: not built yet`,
		`0 is out of range`,
		`"soon" is not a length of time`,
		`must be a whole number`,
		`"A=B" is not the name of a variable`,
		`AGENTSH_X is reserved`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("missing: %s", want)
		}
	}
	if t.Failed() {
		t.Log("\n" + got)
	}
}

func TestYAMLThatIsNoPolicyIsRefused(t *testing.T) {
	header := "version: 1\nname: a\n"
	tests := []struct{ name, data, want string }{
		{"nothing", "", "the file is empty"},
		{"only a comment", "# x\n", "the file is empty"},
		{"a list", "[1]", "must be a mapping"},
		{"two documents", header + "---\n" + header, "second document"},
		{"an anchor", header + "description: &x y\n", "anchors and aliases"},
		{"an alias", header + "env_policy: {allow: &a [X], deny: *a}\n", "anchors and aliases"},
		{"a merge", header + "env_policy: {<<: {allow: [X]}}\n", "merge keys"},
		{"a tag", header + "description: !!binary aGk=\n", "tags"},
		{"a tab as indentation", header + "env_policy:\n\tallow: [X]\n", "p.yaml:4:1: a tab is not indentation"},
		{"a NUL", header + "description: \"a\x00b\"\n", "p.yaml:3:16: control character U+0000"},
		{"an escaped NUL", header + "description: \"a\\0b\"\n", "NUL"},
		{"an escape character", header + "# \x1b[2J\n", "control character U+001B"},
		{"bytes that are not UTF-8", header + "description: \xff\n", "p.yaml:3:14: byte 0xff is not UTF-8"},
		{"writing that turns its direction", header + "description: é\u202e\n", "p.yaml:3:15: control character U+202E"},
		{"a line end that editors do not show", header + "# x\u0085extends: [a]\n", "control character U+0085"},
		{"a carriage return alone", header + "# x\rextends: [a]\n", "control character U+000D"},
		{"UTF-16", "\xff\xfev\x00", "not UTF-8"},
		{"an open quote", header + "description: \"x\n", "not YAML"},
		{"bad indentation", header + " x: y\n", "not YAML"},
		{"a key twice", header + "name: b\n", `p.yaml:3:1: key "name" is given twice`},
		{"a key that is a list", header + "? [a]\n: b\n", "has no key"},
		{"nesting", header + "description: " + strings.Repeat("[", 20) + strings.Repeat("]", 20) + "\n", "nested more than 12 levels"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Load(policy.Source{Name: "p.yaml", Data: []byte(test.data)}, Options{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %s", err, test.want)
			}
		})
	}
	for _, good := range []string{"\xef\xbb\xbf" + header, strings.ReplaceAll(header, "\n", "\r\n"), header + "description: |\n  a\tb\n",
		"---\n" + header} {
		if _, err := Load(policy.Source{Name: "p.yaml", Data: []byte(good)}, Options{}); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

// TestHostileFilesCostLittle bounds time and memory. The bounds are several
// times what a slow machine needs, and far below what an explosion would take.
func TestHostileFilesCostLittle(t *testing.T) {
	header := "version: 1\nname: a\n"
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'j'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*%c,", c-1), 9), ","))
	}
	braces := "file_rules: [{name: a, operations: [read], decision: allow, paths: ['/" + strings.Repeat("{a,b}", 100) + "']}]\n"
	regexps := "command_rules: [{name: a, commands: [x], decision: allow, args_patterns: ['" + strings.Repeat(
		"(",
		2000,
	) + "', '((((a{1000}){1000}){1000}){1000}']}]\n"
	tests := map[string][]byte{
		"ten megabytes":         bytes.Repeat([]byte("# comment\n"), 1<<20),
		"aliases of aliases":    []byte(bomb),
		"deep flow":             []byte(header + "x: " + strings.Repeat("[", 1<<20)),
		"deep flow mappings":    []byte(header + "x: " + strings.Repeat("{a: ", 1<<19)),
		"deep blocks":           []byte(header + deepBlocks(2000)),
		"deep sequences":        []byte(header + "x:\n" + strings.Repeat("- ", 1<<17)),
		"many entries":          []byte(header + "x: [" + strings.Repeat("a,", 1<<20) + "]\n"),
		"many keys":             []byte(header + strings.Repeat("k: v\n", 100_000)),
		"many anchors":          []byte(header + strings.Repeat("k: &x v\n", 80_000)),
		"explicit keys":         []byte(header + strings.Repeat("? ", 1<<19)),
		"braces that explode":   []byte(header + braces),
		"regexps that explode":  []byte(header + regexps),
		"one long value":        []byte(header + "description: " + strings.Repeat("x", 3<<20) + "\n"),
		"comments everywhere":   []byte(header + strings.Repeat("#\n\n", 1<<18)),
		"quotes that never end": []byte(header + "x: '" + strings.Repeat("''", 1<<20)),
	}
	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			start := time.Now()
			_, err := Load(policy.Source{Name: "p.yaml", Data: data}, Options{})
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Error("loads")
			} else if len(err.Error()) > 100_000 {
				t.Errorf("the error is %d bytes long", len(err.Error()))
			}
			if spent := (after.TotalAlloc - before.TotalAlloc) >> 20; spent > 400 || took > time.Minute {
				t.Errorf("%d MiB, %v", spent, took)
			}
		})
	}
}

func deepBlocks(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return b.String()
}

func TestExtends(t *testing.T) {
	tree := map[string]string{
		"/p/main.yaml":     "version: 1\nname: main\nextends: [sub/base.yaml, other.yaml]\ncommand_rules: [{name: near, commands: [git], args: [push], decision: deny}]\nenv_policy: {deny: [A]}\nenv_inject: {X: near}\nresource_limits: {pids_max: 5}\ndefaults: {command: audit}\naudit: {redact: false}\n",
		"/p/sub/base.yaml": "version: 1\nname: base\nextends: [../root.yaml]\ncommand_rules: [{name: base, commands: [git], decision: allow}]\nenv_policy: {deny: [B], allow: [C]}\nenv_inject: {X: far, Y: far}\nresource_limits: {pids_max: 9, open_files: 7}\ntransparent_commands: {add: [run]}\n",
		"/p/root.yaml":     "version: 1\nname: root\nfile_rules: [{name: all, paths: ['**'], operations: [read], decision: allow}]\naudit: {redact: true, log_allowed: true}\ntransparent_commands: {remove: [run, sudo]}\n",
		"/p/other.yaml":    "version: 1\nname: other\nextends: [root.yaml]\ncommand_rules: [{name: far, commands: [git, make], decision: deny}]\n",
	}
	read := func(name string) ([]byte, error) {
		if data, ok := tree[name]; ok {
			return []byte(data), nil
		}
		return nil, errors.New("no such file " + name)
	}
	p, err := Load(policy.Source{Name: "/p/main.yaml", Data: []byte(tree["/p/main.yaml"])}, Options{ReadFile: read})
	if err != nil {
		t.Fatal(err)
	}
	fixture.Expect(t, p, fixture.Run("git", "push"), "deny by near")
	fixture.Expect(t, p, fixture.Run("git", "pull"), "allow by base")
	fixture.Expect(t, p, fixture.Run("make"), "deny by far")
	fixture.Expect(t, p, fixture.Run("ls"), "audit by default")
	fixture.Expect(t, p, &policy.FileRequest{Path: "/x", Op: policy.OpRead}, "allow by all")
	if f := p.EnvFilter(nil); fmt.Sprint(f.Allow, f.Deny) != "[C] [A B]" {
		t.Errorf("%+v", f)
	}
	if in := p.EnvInject(); in["X"] != "near" || in["Y"] != "far" {
		t.Errorf("%v", in)
	}
	if l := p.Limits(nil); l.Pids != 5 || l.OpenFiles != 7 {
		t.Errorf("%+v", l)
	}
	if a := p.Audit(); a.Redact || !a.LogAllowed {
		t.Errorf("%+v", a)
	}
	if !p.Transparent("run") || p.Transparent("sudo") {
		t.Error("transparent_commands: the nearer file has the last word")
	}
	if s := p.Sources(); len(s) != 4 || s[0].Name != "/p/main.yaml" {
		t.Errorf("%d sources", len(s))
	}
	again := map[string][]byte{}
	for _, s := range p.Sources() {
		again[s.Name] = s.Data
	}
	q, err := Load(p.Sources()[0], Options{ReadFile: func(name string) ([]byte, error) { return again[name], nil }})
	if err != nil || q.Digest() != p.Digest() {
		t.Errorf("loaded again: %v", err)
	}
	for name, data := range map[string]string{
		"extends itself":  "version: 1\nname: a\nextends: [main.yaml]\n",
		"no such file":    "version: 1\nname: a\nextends: [missing.yaml]\n",
		"base.yaml:1:1: ": "version: 1\nname: a\nextends: [bad/base.yaml]\n",
	} {
		tree["/p/bad/base.yaml"] = "name: x\n"
		_, err := Load(policy.Source{Name: "/p/main.yaml", Data: []byte(data)}, Options{ReadFile: read})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v, want %s", err, name)
		}
	}
	if _, err := Load(policy.Source{Name: "/p/main.yaml", Data: []byte(tree["/p/main.yaml"])}, Options{}); err == nil {
		t.Error("extends without a reader loads")
	}
}

func TestVariables(t *testing.T) {
	vars := map[string]string{"WORKSPACE": "/w[1]/", "EMPTY": "", "DOMAIN": "example.com", "NAME": "a.b"}
	p, err := Load(policy.Source{Name: "v.yaml", Data: []byte(`version: 1
name: v
file_rules: [{name: ws, paths: ["${WORKSPACE}/**", "${MISSING:-/opt}/x"], operations: [read], decision: allow}]
network_rules: [{name: d, domains: ["*.${DOMAIN}"], decision: allow}]
command_rules: [{name: c, commands: ["${WORKSPACE}/bin/*"], args_patterns: ["^${NAME}$"], decision: allow}]
`)}, Options{Vars: vars})
	if err != nil {
		t.Fatal(err)
	}
	fixture.Expect(t, p, &policy.FileRequest{Path: "/w[1]/a", Op: policy.OpRead}, "allow by ws")
	fixture.Expect(t, p, &policy.FileRequest{Path: "/w1/a", Op: policy.OpRead}, "deny by default")
	fixture.Expect(t, p, &policy.FileRequest{Path: "/opt/x", Op: policy.OpRead}, "allow by ws")
	fixture.Expect(t, p, &policy.NetworkRequest{Domain: "a.example.com", Port: 1}, "allow by d")
	fixture.Expect(t, p, fixture.Run("/w[1]/bin/x", "a.b"), "allow by c")
	fixture.Expect(t, p, fixture.Run("/w[1]/bin/x", "axb"), "deny by default")
	for text, want := range map[string]string{"${EMPTY}/x": "is empty", "${WORKSPCE}/x": "did you mean WORKSPACE?",
		"/${": "${ without its }", "/${a b}": "is not a variable", "/${}": "is not a variable"} {
		_, err := Load(
			policy.Source{
				Name: "v.yaml",
				Data: []byte("version: 1\nname: v\nfile_rules: [{name: a, paths: ['" + text + "'], operations: [read], decision: allow}]\n"),
			},
			Options{Vars: vars},
		)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	header := policy.Source{Name: "v.yaml", Data: []byte("version: 1\nname: v\n")}
	for root, want := range map[string]bool{"/ws": true, "/ws/a": true, "/": false, "/wsx": false, "/home": false} {
		_, err := Load(header, Options{Vars: map[string]string{"WORKSPACE": "/ws", "PROJECT_ROOT": root}})
		if (err == nil) != want {
			t.Errorf("project root %s: %v", root, err)
		}
	}
	if _, err := Load(header, Options{OutsideWorkspace: true, Vars: map[string]string{"WORKSPACE": "/ws", "PROJECT_ROOT": "/"}}); err != nil {
		t.Error(err)
	}
}
