package policytest

import (
	"slices"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

func mustLoad(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte(text)}, syntax.Options{Vars: Vars()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// described are the differences as lines: kind, rules and examples.
func described(list []Difference) string {
	var b strings.Builder
	for _, d := range list {
		b.WriteString(d.Kind() + " " + d.RuleBefore + " " + d.RuleAfter + ":")
		for _, q := range d.Requests {
			b.WriteString(" [" + Describe(q) + "]")
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestDiffReportsChangedDecisions(t *testing.T) {
	const head = "version: 1\nname: x\n"
	tests := []struct {
		name, a, b string
		want       []string // in the description; none: no difference
	}{
		{"the same policy", small, small, nil},
		{
			"comments, names and messages do not count",
			small,
			strings.NewReplacer("history is not", "history is never", "name: own", "name: mine").Replace(small),
			nil,
		},
		{"a program becomes allowed", head + "command_rules: [{name: r, commands: [ls], decision: allow}]\n",
			head + "command_rules: [{name: r, commands: [ls, cat], decision: allow}]\n", []string{"allowed default r: [cat]"}},
		{"an argument becomes denied", head + "command_rules: [{name: r, commands: [git], decision: allow}]\n",
			head + "command_rules: [{name: p, commands: [git], args: [push, '**'], decision: deny}, {name: r, commands: [git], decision: allow}]\n", []string{"denied r p: [git push]"}},
		{
			"an expression becomes narrower",
			head + "command_rules: [{name: r, commands: [rm], args_patterns: ['-r'], decision: deny}, {name: all, commands: ['*'], decision: allow}]\n",
			head + "command_rules: [{name: r, commands: [rm], args_patterns: ['^-rf$'], decision: deny}, {name: all, commands: ['*'], decision: allow}]\n",
			[]string{"allowed r all: [rm -r]"},
		},
		{"one more operation", head + "file_rules: [{name: r, paths: ['/a/**'], operations: [read], decision: allow}]\n",
			head + "file_rules: [{name: r, paths: ['/a/**'], operations: [read, write], decision: allow}]\n", []string{"allowed default r: [write /a]"}},
		{"a port", head + "network_rules: [{name: r, domains: [a.example], ports: [443], decision: allow}]\n",
			head + "network_rules: [{name: r, domains: [a.example], ports: ['440-443'], decision: allow}]\n", []string{"allowed default r:", "a.example:440"}},
		{"a network one bit wider", head + "network_rules: [{name: r, cidrs: [10.0.0.0/9], decision: allow}]\n",
			head + "network_rules: [{name: r, cidrs: [10.0.0.0/8], decision: allow}]\n", []string{"allowed default r:", "10.128.0.0"}},
		{"a socket", head + "unix_socket_rules: [{name: r, paths: ['/run/a'], decision: allow}]\n",
			head + "unix_socket_rules: [{name: r, paths: ['/run/a'], operations: [connect], decision: allow}]\n", []string{"denied r default:", "bind /run/a"}},
		{"a signal", head + "signal_rules: [{name: r, signals: [TERM], target: {type: self}, decision: allow}]\n",
			head + "signal_rules: [{name: r, signals: [TERM, KILL], target: {type: self}, decision: allow}]\n", []string{"allowed default r: [signal KILL to self"}},
		{"a default", head, head + "defaults: {network: allow}\n", []string{"allowed default default: [tcp"}},
		{"audit instead of allow", head + "command_rules: [{name: r, commands: [ls], decision: allow}]\n",
			head + "command_rules: [{name: r, commands: [ls], decision: audit}]\n", []string{"changed r r: [ls]"}},
		{"a redirection elsewhere", head + "command_rules: [{name: r, commands: [rm], redirect_to: {command: trash}, decision: redirect}]\n",
			head + "command_rules: [{name: r, commands: [rm], redirect_to: {command: echo}, decision: redirect}]\n", []string{"changed r r: [rm]"}},
		{"a condition", head + "command_rules: [{name: r, commands: [ls], decision: allow}]\n",
			head + "command_rules: [{name: r, commands: [ls], when: {parent: make}, decision: allow}]\n", []string{"denied r default:"}},
		{"a depth", head + "command_rules: [{name: r, commands: [ls], context: {min_depth: 7}, decision: allow}]\n",
			head + "command_rules: [{name: r, commands: [ls], context: {min_depth: 8}, decision: allow}]\n", []string{"denied r default: [ls (below /usr/bin/bash, depth 7)]"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			list, err := Diff(mustLoad(t, tt.a), mustLoad(t, tt.b))
			if err != nil {
				t.Fatal(err)
			}
			got := described(list)
			if (got == "") != (len(tt.want) == 0) {
				t.Errorf("differences are\n%s", got)
			}
			for _, want := range tt.want {
				if !strings.Contains(got, want) {
					t.Errorf("differences are\n%swant %q in them", got, want)
				}
			}
		})
	}
}

func TestPatternsBecomeTexts(t *testing.T) {
	tests := []struct {
		pattern string
		want    []string
	}{
		{"/a/**", []string{"/a", "/a/x", "/a/x/y"}},
		{"/a/*.go", []string{"/a/x.go", "/a/.go"}},
		{"**/b", []string{"b", "x/b"}},
		{"{a,b}c", []string{"ac", "bc"}},
		{"[xyz]", []string{"x", "z"}},
		{"[!a-z]", []string{"0"}},
		{`\*`, []string{"*"}},
		{"a?", []string{"ax"}},
		{"{a,{b,c}}", []string{"a", "b", "c"}},
		{"", []string{""}},
	}
	for _, tt := range tests {
		got := globTexts(tt.pattern)
		for _, want := range tt.want {
			if !slices.Contains(got, want) {
				t.Errorf("%q gives %q, want %q in them", tt.pattern, got, want)
			}
		}
	}
}

func TestExpressionsBecomeTexts(t *testing.T) {
	tests := []struct {
		expression string
		want       []string
	}{
		{`^push\s+--force`, []string{"push --force"}},
		{`a|b`, []string{"a", "b"}},
		{`ab?c*`, []string{"a", "ab", "abc"}},
		{`[0-9]{3}`, []string{"000"}},
		{`(unclosed`, nil},
	}
	for _, tt := range tests {
		got := regexTexts(tt.expression)
		for _, want := range tt.want {
			if !slices.Contains(got, want) {
				t.Errorf("%q gives %q, want %q in them", tt.expression, got, want)
			}
		}
	}
}

// FuzzTexts: no pattern hangs or overflows the makers of probes.
func FuzzTexts(f *testing.F) {
	for _, s := range []string{"/a/**", "{a,{b,c}}[!x]?", "(a|b)*c{2,5}", "[", "{", `\`} {
		f.Add(s)
	}
	f.Fuzz(func(_ *testing.T, s string) {
		globTexts(s)
		regexTexts(s)
		wordTexts([]string{s, "**"})
		cidrProbes(s)
	})
}

func TestDiffReportsChangedCommandSettings(t *testing.T) {
	const head = "version: 1\nname: x\n"
	tests := []struct {
		name, a, b string
		want       []string
	}{
		{"nothing", small, small, nil},
		{
			"a denied variable",
			head,
			head + "env_policy: {deny: ['INTERNAL_*']}\n",
			[]string{"variable INTERNAL_x of a request no longer reaches commands"},
		},
		{
			"an allow list",
			head,
			head + "env_policy: {allow: [CI]}\n",
			[]string{"variable SOME_OTHER_VARIABLE of a request no longer reaches commands"},
		},
		{
			"a hook let through",
			head,
			head + "env_policy: {allow: ['*', LD_PRELOAD]}\n",
			[]string{"variable LD_PRELOAD of a request reaches commands"},
		},
		{
			"an injected variable",
			head + "env_inject: {A: hunter2, B: '1'}\n",
			head + "env_inject: {A: hunter3, C: '1'}\n",
			[]string{"env_inject sets another A", "env_inject no longer sets B", "env_inject sets C"},
		},
		{"a guard less", head + "git_guard: true\n", head, []string{"repositories are no longer guarded (git_guard)"}},
		{
			"a limit",
			head + "resource_limits: {open_files: 10}\n",
			head + "resource_limits: {open_files: 20, command_timeout: 5m}\n",
			[]string{"limit OpenFiles is 20, was 10", "limit CommandTimeout is 5m0s, was 0s"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := DiffSettings(mustLoad(t, tt.a), mustLoad(t, tt.b))
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				if !slices.Contains(got, want) {
					t.Errorf("differences are %q, want %q", got, want)
				}
			}
			if strings.Contains(strings.Join(got, ""), "hunter") || (len(got) > 0) != (len(tt.want) > 0) {
				t.Errorf("differences are %q", got)
			}
		})
	}
}
