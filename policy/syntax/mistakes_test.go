package syntax

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentsh/policy"
)

// mistakes are values that people write, by the rule that they stand in. The word
// %s of a rule is the value; what follows the value is what the problem says.
var mistakes = []struct {
	rule   string
	values map[string]string
}{
	{"command_rules: [{name: r, decision: allow, commands: %s}]", map[string]string{
		`['npm ci']`:              `command line, not the name of a program (write commands: [npm] and args: [ci, "**"]`,
		`["/usr/bin/npm ci"]`:     `write commands: [/usr/bin/npm] and args: [ci, "**"]`,
		`["Bash(npm ci:*)"]`:      `write commands: [npm] and args: [ci, "**"]`,
		`[“npm”]`:                 `typographic quotation marks are part of the value "“npm”" (write npm)`,
		`[“npm, node”]`:           `"“npm" (write npm)`,
		`["'npm'"]`:               `write npm`,
		`[" npm"]`:                `blanks at its ends (write npm)`,
		`[*]`:                     `in YAML * begins an alias: write "*"`,
		`*`:                       `write "*"`,
		`[git, *sh]`:              `write "*sh"`,
		"[`npm`]":                 "no text begins with `",
		`[!npm]`:                  `! begins a tag: write "!npm"`,
		`["!npm"]`:                `cannot be negated`,
		`[${HOME}/x]`:             `write "${HOME}/x"`,
		`["$HOME/x"]`:             `a variable has braces (write "${HOME}/x")`,
		`["npm,node"]`:            `write [npm, node]`,
		`["npm|node"]`:            `write [npm, node]`,
		`["^npm$"]`:               `regular expression, and names of programs are globs (write npm)`,
		`[bin/npm]`:               `write "${WORKSPACE}/bin/npm"`,
		`[-x]`:                    `is an option`,
		`npm`:                     `must be a list (write [npm])`,
		`["/opt/My App/run"]`:     ``,
		`['a\ b', '[', 'x{a,b}']`: ``,
		`["*", "g++", "mk*"]`:     ``,
	}},
	{"command_rules: [{name: r, decision: allow, commands: [git], args: %s}]", map[string]string{
		`[–force]`:        `begins with a typographic dash (write "--force")`,
		`["-c foo"]`:      `one argument with a blank in it (write ["-c", foo])`,
		`[push, *]`:       `write "*"`,
		`["-m=a b", "a"]`: ``,
	}},
	{"command_rules: [{name: r, decision: allow, commands: [git], when: {parent: %s}}]", map[string]string{
		`"bash -c"`: `not the name of a program (write bash)`, `[“bash”]`: `write bash`,
	}},
	{"command_rules: [{name: r, decision: allow, commands: [git], when: {cwd: %s}}]", map[string]string{
		`src`: `or "${WORKSPACE}/src"`, `"~/x"`: `write ${HOME}/x`,
	}},
	{"command_rules: [{name: r, decision: redirect, commands: [git], redirect_to: {command: %s}}]", map[string]string{
		`"echo hi"`: `write command: echo and the rest in args`,
	}},
	{"file_rules: [{name: r, decision: allow, operations: [read], paths: %s}]", map[string]string{
		`[src/**]`:             `write "${WORKSPACE}/src/**"`,
		`["*.env"]`:            `write "**/*.env" for it anywhere`,
		`["$HOME/x"]`:          `write "${HOME}/x"`,
		`["~root/x"]`:          `~ is not expanded`,
		`[file:///etc/x]`:      `write /etc/x`,
		`[https://x.test/y]`:   `hosts belong in network_rules`,
		`["/etc:/usr"]`:        `write [/etc, /usr]`,
		`["/etc, /usr"]`:       `write [/etc, /usr]`,
		`["/etc/shadow:ro"]`:   `ends with a mount option`,
		`['C:\x']`:             `path of Windows`,
		`["!/etc"]`:            `cannot be negated`,
		`[**]`:                 `write "**"`,
		`['/a b/{c,d}', '**']`: ``,
	}},
	{"network_rules: [{name: r, decision: allow, domains: %s}]", map[string]string{
		`[https://example.com]`:                `is a URL, not a host name (write domains: [example.com] and ports: [443])`,
		`["http://localhost:8080/api/v1?x=1"]`: `write domains: [localhost] and ports: [8080] and paths: [/api/v1]`,
		`["example.com:443"]`:                  `write domains: [example.com] and ports: [443]`,
		`["*:443"]`:                            `write domains: ["*"] and ports: [443]`,
		`["[::1]:80"]`:                         `write domains: ["::1"] and ports: [80]`,
		`["example.com/api"]`:                  `write domains: [example.com] and paths: [/api]`,
		`["10.0.0.0/8"]`:                       `write cidrs: ["10.0.0.0/8"]`,
		`["git@github.com:a/b"]`:               `write domains: [github.com]`,
		`[".example.com"]`:                     `write "*.example.com"`,
		`[*.example.com]`:                      `write "*.example.com"`,
		`["a.com, b.com"]`:                     `write [a.com, b.com]`,
		`[“a.com”]`:                            `write a.com`,
		`["$HOST"]`:                            `write "${HOST}"`,
		`["::1", "10.0.0.1", "*", "a.{b,c}"]`:  ``,
	}},
	{"network_rules: [{name: r, decision: allow, cidrs: %s}]", map[string]string{
		`[example.com]`:          `write domains: [example.com]`,
		`["10.0.0.1:80"]`:        `write cidrs: ["10.0.0.1"] and ports: [80]`,
		`["10.0.0.0/255.0.0.0"]`: `write 10.0.0.0/8`,
		`["10.0.*"]`:             `write 10.0.0.0/16`,
		`[“10.0.0.1”]`:           `write "10.0.0.1"`,
	}},
	{"network_rules: [{name: r, decision: allow, domains: ['*'], ports: %s}]", map[string]string{
		`[https]`: `write 443`, `["8000:8080"]`: `write "8000-8080"`, `["80,443"]`: `write [80, 443]`, `["*"]`: `leave ports out`,
		`[443/tcp]`: `write ports: [443] and protocols: [tcp]`, `[":443"]`: `write 443`, `[“443”]`: `write "443"`, `[0]`: `0 is no port`,
		`443`: `write [443]`, `[80, "1000-2000"]`: ``,
	}},
	{"network_rules: [{name: r, decision: allow, domains: ['*'], protocols: %s}]", map[string]string{`[https]`: `in ports 443`}},
	{"network_rules: [{name: r, decision: allow, domains: ['*'], methods: %s}]", map[string]string{
		`["GET,POST"]`: `write [GET, POST]`, `["*"]`: `leave methods out`,
	}},
	{"network_rules: [{name: r, decision: allow, domains: ['*'], paths: %s}]", map[string]string{
		`["https://x.test/y"]`: `write domains: [x.test] and ports: [443] and paths: [/y]`, `["/a?b=1"]`: `has a query`,
	}},
	{"network_rules: [{name: r, decision: allow, binaries: %s}]", map[string]string{`["curl -s"]`: `write curl`, `[*]`: `write "*"`}},
	{"unix_socket_rules: [{name: r, decision: allow, paths: %s}]", map[string]string{
		`["unix:///run/docker.sock"]`: `write /run/docker.sock`, `["unix:/run/x"]`: `write /run/x`, `['\0name']`: `write "@name"`,
		`[@name]`: `write "@name"`, `["@name", "*"]`: ``,
	}},
	{"signal_rules: [{name: r, decision: allow, target: {type: self}, signals: %s}]", map[string]string{
		`["SIGTERM,SIGKILL"]`: `write [SIGTERM, SIGKILL]`, `[-9]`: `write 9`, `["kill -9"]`: `write [9]`, `[@all]`: `write "@all"`, `["*"]`: `write "@all"`,
	}},
	{"env_policy: {allow: %s}", map[string]string{
		`["$PATH"]`: `write PATH`, `["PATH, HOME"]`: `write [PATH, HOME]`, `[“X”]`: `write X`, `["AWS_*"]`: ``,
	}},
	{"exec_from: %s", map[string]string{`["/usr/bin:/bin"]`: `write [/usr/bin, /bin]`, `[bin]`: `write "**/bin"`}},
	{"transparent_commands: {add: %s}", map[string]string{`["sudo -E"]`: `write sudo`}},
	{"extends: %s", map[string]string{`https://x.test/y.yaml`: `fetch it first`, `ci-strict`: `/etc/agentsh/policies/ci-strict.yaml`}},
	{"%s", map[string]string{`“description”: x`: `write description`, `agent: x`: `this is a harness, not a policy`, `tests: []`: `agentsh policy test`}},
}

func TestMistakesAreAnsweredByWhatWasMeant(t *testing.T) {
	for _, m := range mistakes {
		for value, want := range m.values {
			text := "version: 1\nname: t\n" + fmt.Sprintf(m.rule, value) + "\n"
			options := Options{Vars: map[string]string{"WORKSPACE": "/ws", "HOME": "/h"}}
			options.ReadFile = func(string) ([]byte, error) { return nil, errors.New("none") }
			_, err := Load(policy.Source{Name: "p.yaml", Data: []byte(text)}, options)
			switch {
			case want == "" && err != nil:
				t.Errorf("%s is no mistake: %v", text, err)
			case want == "":
			case err == nil:
				t.Errorf("%sloads, want %q", text, want)
			case !strings.Contains(err.Error(), want):
				t.Errorf("%s%v\nwant %q", text, err, want)
			case !strings.HasPrefix(err.Error(), "p.yaml:3:") && !strings.Contains(err.Error(), "this is a"):
				t.Errorf("%sthe position is not that of the value: %v", text, err)
			}
		}
	}
}

// TestEveryKeyWithNamesHasItsMistakes holds the class: a list of texts in a policy
// is judged for quotation marks.
func TestEveryListOfTextsRefusesQuotationMarks(t *testing.T) {
	free := map[string]bool{ // texts of any form
		"command_rules.args_patterns": true, "command_rules.redirect_to.args": true, "command_rules.redirect_to.args_append": true,
		"approvals.command": true, "extends": true,
	}
	var walk func(path string, fields []field)
	walk = func(path string, fields []field) {
		for _, f := range fields {
			name := strings.TrimPrefix(path+"."+f.name, ".")
			s := f.shape
			if s.kind == shapeList {
				s = *s.item
			}
			if s.kind == shapeObject {
				walk(name, s.fields())
				continue
			}
			if f.shape.kind != shapeList || len(s.words) > 0 || free[name] || f.refused != "" {
				continue
			}
			if !quotesRefused(t, name) {
				t.Errorf("%s takes a value in typographic quotation marks", name)
			}
		}
	}
	walk("", fieldsOf(policyKeys))
}

// quotesRefused writes a value that begins with a quotation mark into a list.
func quotesRefused(t *testing.T, name string) bool {
	t.Helper()
	parts := strings.Split(name, ".")
	text := `["“x"]`
	for i := len(parts) - 1; i >= 0; i-- {
		text = "{" + parts[i] + ": " + text + "}"
		if i == 1 && strings.HasSuffix(parts[0], "_rules") {
			text = "[" + text + "]"
		}
	}
	_, err := Load(policy.Source{Name: "p.yaml", Data: []byte(text)}, Options{})
	return err != nil && strings.Contains(err.Error(), "typographic quotation marks")
}

func TestLintNamesValuesThatMatchOtherThings(t *testing.T) {
	text := "version: 1\nname: t\n" +
		"network_rules:\n- {name: n, domains: ['*example.com'], decision: allow}\n- {name: ok, domains: ['*-api.example.com'], decision: allow}\n" +
		"command_rules:\n- {name: c, commands: [git], args: ['push origin'], decision: deny}\n" +
		"- {name: m, commands: [git], args: ['-m', 'push origin'], decision: deny}\n" +
		"- {name: a, commands: [GIT], accept_warnings: [case], decision: deny}\n"
	p, err := Load(policy.Source{Name: "p.yaml", Data: []byte(text)}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, w := range Lint(p) {
		got = append(got, fmt.Sprintf("%d %s", w.Pos.Line, w.Code))
	}
	if want := "4 wide-domain, 7 one-argument"; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}
