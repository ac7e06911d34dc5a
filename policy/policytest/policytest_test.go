package policytest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"agentsh/policy"
)

const small = `version: 1
name: small
command_rules:
  - name: block-force-push
    commands: [git]
    args: ["push", "**", "--force|-f"]
    decision: deny
    message: history is not rewritten from here
  - name: git
    commands: [git]
    decision: allow
  - name: block-kill
    commands: [kill]
    decision: deny
file_rules:
  - name: hooks
    paths: ["${WORKSPACE}/.git/hooks/**"]
    operations: [write, create]
    decision: deny
  - name: workspace
    paths: ["${WORKSPACE}/**"]
    operations: ["*"]
    decision: allow
signal_rules:
  - name: own
    signals: ["@all"]
    target: {type: self}
    decision: allow
env_policy:
  deny: ["SECRET_*"]
`

const smallTests = `policy: small.yaml
tests:
  - name: a force push is denied
    command: [git, push, origin, --force]
    expect: {decision: deny, rule: block-force-push, message: rewritten}
  - name: a push is allowed
    command: [git, push]
    expect: {decision: allow, rule: git}
  - name: kill is denied
    command: [kill, "-9", "1"]
    expect: {decision: deny, rule: block-kill}
  - name: hooks are not written
    file: {path: "${WORKSPACE}/.git/hooks/pre-commit", operation: write}
    expect: {decision: deny, rule: hooks}
  - name: the workspace is written
    file: {path: "${WORKSPACE}/a", operation: write}
    expect: allow
  - name: nothing else is read
    file: {path: /etc/shadow, operation: read}
    expect: {decision: deny, rule: default}
  - name: a program signals itself
    signal: {signal: TERM, target: self}
    expect: allow
  - name: secrets do not reach git
    variable: SECRET_KEY
    command: [git, status]
    expect: deny
  - name: other variables reach git
    variable: CI
    command: [git, status]
    expect: allow
  - name: secrets do not reach any command
    variable: SECRET_KEY
    expect: deny
`

// load parses a policy and its tests, both given as text.
func load(t testing.TB, policyText, suiteText string) (*policy.Policy, *Suite) {
	t.Helper()
	s, err := ParseSuite("dir/small_test.yaml", []byte(suiteText))
	if err != nil {
		t.Fatal(err)
	}
	p, err := LoadPolicy(s, func(name string) ([]byte, error) {
		if name != "dir/small.yaml" {
			return nil, fmt.Errorf("%s was asked for", name)
		}
		return []byte(policyText), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return p, s
}

func TestSuitePasses(t *testing.T) {
	p, s := load(t, small, smallTests)
	report := Run(s, p)
	for _, r := range report.Results {
		if r.Problem != "" {
			t.Errorf("%s: %s", r.Case.Name, r.Problem)
		}
	}
	if c := Cover(report); c.Percent() != 100 || c.Rules != 6 {
		t.Errorf("coverage is %d %% of %d rules, missed %v", c.Percent(), c.Rules, c.Missed)
	}
}

func TestCasesFail(t *testing.T) {
	tests := []struct{ name, kase, want string }{
		{
			"another decision",
			`{name: x, command: [kill], expect: allow}`,
			"decision is deny by rule block-kill at dir/small.yaml:12:5, expected allow",
		},
		{"another rule", `{name: x, command: [kill], expect: {decision: deny, rule: git}}`, "decided by rule block-kill"},
		{"another message", `{name: x, command: [git, push, -f], expect: {decision: deny, message: tomorrow}}`, "message is"},
		{"a default where a rule is expected", `{name: x, command: [ls], expect: {decision: deny, rule: git}}`, "decided by rule default"},
		{"a variable that passes", `{name: x, variable: CI, expect: deny}`, "decision is allow"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, s := load(t, small, "policy: small.yaml\ntests:\n  - "+tt.kase+"\n")
			report := Run(s, p)
			if report.Failed() != 1 || !strings.Contains(report.Results[0].Problem, tt.want) {
				t.Errorf("problem is %q, want %q in it", report.Results[0].Problem, tt.want)
			}
		})
	}
}

func TestMalformedSuitesAreRefusedWithPosition(t *testing.T) {
	head := "policy: p.yaml\ntests:\n  - "
	tests := []struct{ name, in, want string }{
		{"an empty file", "", "x_test.yaml:1:1: the file is empty"},
		{"broken YAML", "policy: [", "x_test.yaml:1:1: not YAML"},
		{"a list", "- a\n", "x_test.yaml:1:1: a test file must be a mapping"},
		{"an unknown key", "policy: p\nteste: []\n", `x_test.yaml:2:1: a test file has no key "teste"`},
		{"no policy", "tests: [{name: x, command: [a], expect: deny}]\n", "x_test.yaml:1:1: the test file names no policy"},
		{"no tests", "policy: p\n", "x_test.yaml:1:1: tests must be a list"},
		{"a case without a name", head + "{command: [a], expect: deny}\n", "x_test.yaml:3:5: the case has no name"},
		{"a case without an expectation", head + "{name: x, command: [a]}\n", "x_test.yaml:3:5: the case expects nothing"},
		{"a case without a request", head + "{name: x, expect: deny}\n", "x_test.yaml:3:5: a case has exactly one of"},
		{"a case with two requests", head + "{name: x, expect: deny, command: [a], file: {path: /a, operation: read}}\n", "exactly one of"},
		{"an unknown decision", head + "{name: x, command: [a], expect: maybe}\n", `x_test.yaml:3:37: unknown decision "maybe"`},
		{"an unknown operation", head + "{name: x, file: {path: /a, operation: look}, expect: deny}\n", `"look" is not one operation`},
		{"two operations", head + "{name: x, file: {path: /a, operation: '*'}, expect: deny}\n", `"*" is not one operation`},
		{"an unknown signal", head + "{name: x, signal: {signal: NOPE, target: self}, expect: deny}\n", `unknown signal "NOPE"`},
		{"a relative path", head + "{name: x, file: {path: a/b, operation: read}, expect: deny}\n", `"a/b" is not a clean absolute path`},
		{"an undefined variable", head + "{name: x, file: {path: '${NOPE}/b', operation: read}, expect: deny}\n", "variable NOPE is not defined"},
		{"command keys without a command", head + "{name: x, cwd: /a, file: {path: /a, operation: read}, expect: deny}\n", "belong to a command"},
		{
			"the same name twice",
			head + "{name: x, command: [a], expect: deny}\n  - {name: x, command: [a], expect: deny}\n",
			`x_test.yaml:4:5: two cases are called "x"`,
		},
		{"a key given twice", head + "{name: x, name: y, command: [a], expect: deny}\n", `key "name" is given twice`},
		{"an anchor", head + "&a {name: x, command: [a], expect: deny}\n", "anchors"},
		{"an empty command", head + "{name: x, command: [], expect: deny}\n", "command is empty"},
		{"a destination without a host", head + "{name: x, network: {port: 1}, expect: deny}\n", "neither domain nor address"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := ParseSuite("x_test.yaml", []byte(tt.in))
			var problems policy.Problems
			if !errors.As(err, &problems) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error is %v, want %q in it", err, tt.want)
			}
			if s != nil {
				t.Error("a suite came with the error")
			}
		})
	}
}

func TestEveryCommandKeyReachesTheRequest(t *testing.T) {
	_, s := load(t, small, `policy: small.yaml
vars: {WORKSPACE: /ws}
tests:
  - {name: a, command: [git, "${WORKSPACE}/x"], path: /opt/git, cwd: /c, depth: 3, parent: /usr/bin/make, ancestors: [/usr/bin/make, /usr/bin/sh], same: [/usr/bin/kill], chain: [/usr/bin/python3], interactive: true, expect: deny}
  - {name: b, command: [./x], expect: deny}
  - {name: c, command: [x], depth: 1, expect: deny}
`)
	a := s.Cases[0].Request.(*policy.CommandRequest)
	if a.Path != "/opt/git" || a.Cwd != "/c" || a.Depth != 3 || a.Parent != "/usr/bin/make" || len(a.Ancestors) != 2 ||
		len(a.Same) != 1 || len(a.Chain) != 1 || !a.Interactive || a.Argv[1] != "/ws/x" || a.Called != "git" {
		t.Errorf("request is %+v", a)
	}
	if c := s.Cases[2].Request.(*policy.CommandRequest); c.Path != "/usr/bin/x" || c.Parent == "" || c.Cwd != "/ws" {
		t.Errorf("defaults of a nested command are %+v", c)
	}
}

func TestMutantsAreNoticed(t *testing.T) {
	p, s := load(t, small, smallTests)
	m, err := Mutate(p, []*Suite{s})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Survivors) != 0 || m.Mutants == 0 {
		t.Errorf("%d mutants, survivors %v", m.Mutants, m.Survivors)
	}
}

func TestMutantsSurviveWeakTests(t *testing.T) {
	tests := []struct {
		name   string
		remove string // name of the case left out
		want   []string
	}{
		{
			"without the force push",
			"a force push is denied",
			[]string{"block-force-push deleted", "block-force-push inverted", "block-force-push tried after"},
		},
		{"without the hooks", "hooks are not written", []string{"hooks deleted", "hooks inverted", "hooks tried after"}},
		{"without the signal", "a program signals itself", []string{"own deleted", "own inverted"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, s := load(t, small, smallTests)
			var kept []Case
			for _, c := range s.Cases {
				if c.Name != tt.remove {
					kept = append(kept, c)
				}
			}
			s.Cases = kept
			m, err := Mutate(p, []*Suite{s})
			if err != nil {
				t.Fatal(err)
			}
			if len(m.Survivors) != len(tt.want) {
				t.Errorf("survivors are %v, want %v", m.Survivors, tt.want)
			}
			for i, want := range tt.want {
				if i < len(m.Survivors) && !strings.Contains(m.Survivors[i].String(), want) {
					t.Errorf("survivor is %s, want %s", m.Survivors[i], want)
				}
			}
		})
	}
}

func TestMutantsThatChangeNothingAreNotReported(t *testing.T) {
	text := strings.Replace(small, "file_rules:", `  - name: said-twice
    commands: [kill]
    decision: deny
file_rules:`, 1)
	p, s := load(t, text, smallTests)
	m, err := Mutate(p, []*Suite{s})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Survivors) != 0 || m.Equivalent == 0 {
		t.Errorf("survivors are %v, %d equivalent", m.Survivors, m.Equivalent)
	}
}

func TestMutatingAnExtendedFile(t *testing.T) {
	s, err := ParseSuite("d/x_test.yaml", []byte("policy: a.yaml\ntests: [{name: x, command: [kill], expect: deny}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := LoadPolicy(s, func(name string) ([]byte, error) {
		if name == "d/a.yaml" {
			return []byte("version: 1\nname: a\nextends: [b.yaml]\ncommand_rules: [{name: k, commands: [kill], decision: deny}]\n"), nil
		}
		return []byte("version: 1\nname: b\ncommand_rules: [{name: all, commands: ['*'], decision: allow}]\n"), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	m, err := Mutate(p, []*Suite{s})
	if err != nil {
		t.Fatal(err)
	}
	if m.Mutants != 4 || len(m.Survivors) != 2 || m.Survivors[0].Pos.File != "d/b.yaml" {
		t.Errorf("%d mutants, survivors %v", m.Mutants, m.Survivors)
	}
}

func FuzzParseSuite(f *testing.F) {
	f.Add([]byte(smallTests))
	f.Add([]byte("policy: p\nvars: {A: b}\ntests: [{name: x, signal: {signal: 9, target: self}, expect: {decision: deny}}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseSuite("x", data)
		if (s == nil) == (err == nil) {
			t.Errorf("suite %v, error %v", s, err)
		}
	})
}

// TestMutantsOfKeysThatOnlyOneEffectHas: no arguments is for rules that allow, any
// value but some for rules that refuse. Their inverses look at fewer words.
func TestMutantsOfKeysThatOnlyOneEffectHas(t *testing.T) {
	const rules = `version: 1
name: x
command_rules:
  - {name: alone, commands: [git], args: [], decision: allow}
  - {name: options, commands: [git], args: ['-c=!{user.name=*}'], decision: deny}
  - {name: rest, commands: ['*'], decision: allow}
`
	p, s := load(t, rules, `policy: small.yaml
tests:
  - {name: alone, command: [git], expect: {decision: allow, rule: alone}}
  - {name: a setting, command: [git, -c, a.b=c, log], expect: {decision: deny, rule: options}}
  - {name: another, command: [git, -c, user.name=me, log], expect: {decision: allow, rule: rest}}
`)
	m, err := Mutate(p, []*Suite{s})
	if err != nil || m.Mutants != 8 || len(m.Survivors) != 0 {
		t.Errorf("%d mutants, survivors %v, %v", m.Mutants, m.Survivors, err)
	}
	s.Cases = s.Cases[:1]
	if m, err = Mutate(p, []*Suite{s}); err != nil || len(m.Survivors) == 0 {
		t.Errorf("survivors without tests of the denial: %v, %v", m.Survivors, err)
	}
}
