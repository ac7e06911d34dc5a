package policy_test

import (
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/internal/fixture"
	"agentsh/policy/syntax"
)

// load loads the rules of a test under a header.
func load(t testing.TB, body string) *policy.Policy {
	t.Helper()
	p, err := syntax.Load(
		policy.Source{Name: "test.yaml", Data: []byte("version: 1\nname: test\n" + body)},
		syntax.Options{Vars: fixture.Vars},
	)
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	return p
}

const commands = `
command_rules:
  - name: block-kill
    commands: [kill, "/opt/evil/**"]
    decision: deny
  - name: allow-some
    commands: [git, python3, env, ls, "mkfs.*", bash, "[", ld-linux-x86-64.so.2, busybox, xargs, timeout]
    decision: allow
  - name: redirect-curl
    commands: [curl]
    decision: redirect
    redirect_to: {command: fetch, args: ["--source"], args_append: [end], environment: {A: b}}
`

func TestCommandsAreJudgedByAllTheirNames(t *testing.T) {
	p := load(t, commands+"file_rules:\n  - {name: ws, paths: ['/ws/**'], operations: ['*'], decision: allow}\n")
	tests := []struct {
		name string
		r    *policy.CommandRequest
		want string
	}{
		{"a denied name", fixture.Run("kill", "1"), "deny by block-kill"},
		{"an allowed name", fixture.Run("git", "status"), "allow by allow-some"},
		{"a glob of names", fixture.Run("mkfs.ext4"), "allow by allow-some"},
		{"no rule", fixture.Run("nmap"), "deny by default"},
		{"a path glob", fixture.Run("/opt/evil/x"), "deny by block-kill"},
		{
			"a link of the system to another name",
			&policy.CommandRequest{Program: policy.Program{Called: "/usr/bin/python3", Path: "/usr/bin/python3.11"}},
			"allow by allow-some",
		},
		{
			"a link told by the supervisor",
			&policy.CommandRequest{Program: policy.Program{Called: "python", Path: "/opt/python3.11", Names: []string{"/usr/bin/python3"}}},
			"allow by allow-some",
		},
		{
			"a bare name does not vouch for another file",
			&policy.CommandRequest{Program: policy.Program{Called: "python3", Path: "/usr/bin/python3.11"}},
			"deny by default",
		},
		{
			"a link a command could have made",
			&policy.CommandRequest{Program: policy.Program{Called: "/ws/ls", Path: "/usr/bin/nmap"}, Cwd: "/ws"},
			"deny by default",
		},
		{
			"a link below /proc",
			&policy.CommandRequest{Program: policy.Program{Called: "/proc/self/cwd/ls", Path: "/usr/bin/nmap"}, Cwd: "/ws"},
			"deny by default",
		},
		{
			"an allowed link to a denied program",
			&policy.CommandRequest{Program: policy.Program{Called: "/usr/bin/git", Path: "/usr/bin/kill"}},
			"deny by block-kill",
		},
		{
			"a denied link to an allowed program",
			&policy.CommandRequest{Program: policy.Program{Called: "/ws/kill", Path: "/usr/bin/git"}},
			"deny by block-kill",
		},
		{
			"a denied argv[0]",
			&policy.CommandRequest{Program: policy.Program{Called: "/usr/bin/git", Path: "/usr/bin/git"}, Argv: []string{"kill"}},
			"deny by block-kill",
		},
		{
			"a copy of a denied program",
			&policy.CommandRequest{Program: policy.Program{Called: "git", Path: "/ws/git", Same: []string{"/usr/bin/kill"}}},
			"deny by block-kill",
		},
		{"a file that was not found", &policy.CommandRequest{Program: policy.Program{Called: "git"}}, "deny by default"},
		{
			"a path that is not resolved",
			&policy.CommandRequest{Program: policy.Program{Called: "git", Path: "/usr/bin/../bin/git"}},
			"deny by default",
		},
		{"nothing at all", &policy.CommandRequest{}, "deny by default"},
		{"a redirected program", fixture.Run("curl", "x"), "redirect by redirect-curl"},
		{
			"a script and its interpreter",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/ws/git", Path: "/ws/git"},
				Chain:   []policy.Program{{Called: "/bin/bash", Path: "/usr/bin/bash"}},
			},
			"allow by allow-some",
		},
		{
			"a script whose interpreter is denied",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/ws/git", Path: "/ws/git"},
				Chain:   []policy.Program{{Called: "/usr/bin/kill", Path: "/usr/bin/kill"}},
			},
			"deny by block-kill",
		},
		{
			"a script whose interpreter no rule allows",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/ws/git", Path: "/ws/git"},
				Chain:   []policy.Program{{Called: "/usr/bin/perl", Path: "/usr/bin/perl"}},
			},
			"deny by default",
		},
		{
			"a script whose interpreter is redirected",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/ws/git", Path: "/ws/git"},
				Chain:   []policy.Program{{Called: "/usr/bin/curl", Path: "/usr/bin/curl"}},
			},
			"deny by redirect-curl",
		},
		{"a wrapper of a denied program", fixture.Run("env", "-i", "A=b", "kill", "1"), "deny by block-kill"},
		{"a wrapper in a wrapper", fixture.Run("timeout", "-s", "KILL", "5", "env", "-S", "kill -9 1"), "deny by block-kill"},
		{"a wrapper of a program no rule is about waits for its execve", fixture.Run("env", "nmap"), "allow by allow-some"},
		{"a wrapper of a redirected program", fixture.Run("env", "curl"), "deny by redirect-curl"},
		{"a loader's program that was not found", fixture.Run("/lib64/ld-linux-x86-64.so.2", "/usr/bin/git"), "deny by default"},
		{"a loader's denied program", fixture.Run("/lib64/ld-linux-x86-64.so.2", "--argv0", "x", "/usr/bin/kill"), "deny by block-kill"},
		{
			"a loader's program that was found",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/lib64/ld-linux-x86-64.so.2", Path: "/lib64/ld-linux-x86-64.so.2"},
				Argv:    []string{"ld", "/usr/bin/git"},
				Chain:   []policy.Program{{Called: "/usr/bin/git", Path: "/usr/bin/git"}},
			},
			"allow by allow-some",
		},
		{"loader options nobody knows", fixture.Run("/lib64/ld-linux-x86-64.so.2", "--new", "/usr/bin/git"), "deny by default"},
		{"a busybox applet that is allowed", fixture.Run("busybox", "ls"), "allow by allow-some"},
		{"a busybox applet that is denied", fixture.Run("busybox", "kill", "1"), "deny by block-kill"},
		{"a busybox applet no rule is about", fixture.Run("busybox", "nc"), "deny by default"},
		{"a busybox applet through a wrapper applet", fixture.Run("busybox", "env", "nc"), "deny by default"},
		{
			"an applet by its link",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/bin/ls", Path: "/bin/busybox", Same: []string{"/bin/kill"}},
				Argv:    []string{"ls"},
			},
			"allow by allow-some",
		},
		{
			"a script for a busybox applet",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/ws/git", Path: "/ws/git"},
				Argv:    []string{"git"},
				Chain:   []policy.Program{{Called: "/bin/busybox", Path: "/bin/busybox", Args: []string{"/bin/busybox", "kill", "/ws/git"}}},
			},
			"deny by block-kill",
		},
		{
			"a copied loader that runs busybox",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/ws/git", Path: "/ws/git"},
				Argv:    []string{"git", "/bin/busybox", "nc"},
				Chain:   []policy.Program{{Called: "/bin/busybox", Path: "/bin/busybox", Args: []string{"/bin/busybox", "nc"}}},
			},
			"deny by default",
		},
		{
			"busybox by a longer name",
			&policy.CommandRequest{Program: policy.Program{Called: "/bin/busybox", Path: "/bin/busybox"}, Argv: []string{"busyboxes", "kill", "1"}},
			"deny by block-kill",
		},
		{
			"a copy of busybox",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true},
				Argv:    []string{"busybox", "kill", "1"},
			},
			"deny by block-kill",
		},
		{
			"a copy of busybox by a longer name",
			&policy.CommandRequest{Program: policy.Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true}, Argv: []string{"-busybox.x", "nc"}},
			"deny by default",
		},
		{
			"a copy of busybox that is called as an applet",
			&policy.CommandRequest{Program: policy.Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true}, Argv: []string{"kill"}},
			"deny by block-kill",
		},
		{
			"a copy of busybox that is called as a wrapper",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true},
				Argv:    []string{"timeout", "5", "kill"},
			},
			"deny by block-kill",
		},
		{
			"an unknown program called busybox",
			&policy.CommandRequest{Program: policy.Program{Called: "/ws/git", Path: "/ws/git"}, Argv: []string{"busyboxx", "kill", "1"}},
			"deny by block-kill",
		},
		{
			"an unknown program called busybox with another word",
			&policy.CommandRequest{Program: policy.Program{Called: "/ws/git", Path: "/ws/git"}, Argv: []string{"busyboxx", "status"}},
			"allow by allow-some",
		},
		{
			"a copy of coreutils that is told its applet",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true},
				Argv:    []string{"git", "--coreutils-prog=kill", "1"},
			},
			"deny by block-kill",
		},
		{
			"a script of the coreutils program",
			&policy.CommandRequest{
				Program: policy.Program{Called: "/bin/coreutils", Path: "/bin/coreutils"},
				Argv:    []string{"x", "--coreutils-prog-shebang=kill", "1"},
			},
			"deny by default",
		},
		{
			"another applet by an allowed link",
			&policy.CommandRequest{Program: policy.Program{Called: "/bin/ls", Path: "/bin/busybox"}, Argv: []string{"nc"}},
			"deny by default",
		},
		{
			"a denied applet by an allowed link",
			&policy.CommandRequest{Program: policy.Program{Called: "/bin/ls", Path: "/bin/busybox"}, Argv: []string{"-kill"}},
			"deny by block-kill",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { fixture.Expect(t, p, test.r, test.want) })
	}
}

func TestALinkIsOnlyTrustedWhereNobodyCanMakeOne(t *testing.T) {
	link := &policy.CommandRequest{Program: policy.Program{Called: "/usr/bin/python3", Path: "/usr/bin/python3.11"}}
	p := load(t, commands+"file_rules:\n  - {name: all, paths: ['**'], operations: ['*'], decision: allow}\n")
	fixture.Expect(t, p, link, "deny by default")
	p = load(
		t,
		commands+"file_rules:\n  - {name: usr, paths: [/usr/**], operations: [symlink], decision: deny}\n  - {name: all, paths: ['**'], operations: ['*'], decision: allow}\n",
	)
	fixture.Expect(t, p, link, "deny by default")
	p = load(
		t,
		commands+"file_rules:\n  - {name: usr, paths: [/usr/**], operations: ['*'], decision: deny}\n  - {name: all, paths: ['**'], operations: ['*'], decision: allow}\n",
	)
	fixture.Expect(t, p, link, "allow by allow-some")
}

func TestAClosingRuleSaysNothingAboutOneName(t *testing.T) {
	rules := "command_rules:\n  - {name: some, commands: [python3, perl], decision: allow}\n  - {name: rest, commands: ['*'], decision: %s}\n"
	for _, effect := range []string{"deny", "approve"} {
		p := load(t, strings.Replace(rules, "%s", effect, 1))
		fixture.Expect(
			t,
			p,
			&policy.CommandRequest{Program: policy.Program{Called: "/usr/bin/python3", Path: "/usr/bin/python3.11"}},
			"allow by some",
		)
		fixture.Expect(
			t,
			p,
			&policy.CommandRequest{
				Program: policy.Program{Called: "python3", Path: "/usr/bin/python3.11", Names: []string{"/usr/bin/py", "/usr/bin/python3"}},
			},
			"allow by some",
		)
		fixture.Expect(
			t,
			p,
			&policy.CommandRequest{Program: policy.Program{Called: "/usr/bin/perl", Path: "/usr/bin/perl", Same: []string{"/usr/bin/perl5.36"}}},
			"allow by some",
		)
		fixture.Expect(t, p, fixture.Run("nmap"), effect+" by rest")
		fixture.Expect(
			t,
			p,
			&policy.CommandRequest{Program: policy.Program{Called: "/ws/perl", Path: "/usr/bin/nmap"}, Cwd: "/ws"},
			effect+" by rest",
		)
		if got := p.DeniedPrograms(); len(got) != 0 {
			t.Errorf("%q", got)
		}
	}
}

func TestALinkOfTheWorkspaceIsNotTrusted(t *testing.T) {
	p := load(t, commands)
	for _, dir := range []string{"/ws/bin", "/home/agent/bin", "/tmp", "/proc/self/cwd"} {
		fixture.Expect(
			t,
			p,
			&policy.CommandRequest{Program: policy.Program{Called: "ls", Path: "/usr/bin/nmap", Names: []string{dir + "/ls"}}},
			"deny by default",
		)
		fixture.Expect(
			t,
			p,
			&policy.CommandRequest{Program: policy.Program{Called: "ls", Path: "/usr/bin/git", Names: []string{dir + "/kill"}}},
			"deny by block-kill",
		)
	}
}

func TestIdentityNameMatchesNamesOnly(t *testing.T) {
	copied := &policy.CommandRequest{Program: policy.Program{Called: "/ws/x", Path: "/ws/x", Same: []string{"/usr/bin/kill"}}}
	rules := "command_rules:\n  - {name: k, commands: [kill], decision: deny%s}\n  - {name: all, commands: ['*'], decision: allow}\n"
	fixture.Expect(t, load(t, strings.Replace(rules, "%s", "", 1)), copied, "deny by k")
	p := load(t, strings.Replace(rules, "%s", ", identity: name", 1))
	fixture.Expect(t, p, copied, "allow by all")
	if got := p.DeniedPrograms(); len(got) != 0 {
		t.Errorf("denied programs: %q", got)
	}
	if got := load(t, strings.Replace(rules, "%s", "", 1)).DeniedPrograms(); len(got) != 1 || got[0] != "kill" {
		t.Errorf("denied programs: %q", got)
	}
}

func TestArgs(t *testing.T) {
	tests := []struct {
		name, rule string
		yes, no    [][]string
	}{
		{"a refused option in any spelling and place", `commands: [git], args: ["push", "**", "--force|-f"], decision: deny`,
			[][]string{
				{"git", "push", "--force"},
				{"git", "push", "-f", "origin", "main"},
				{"git", "push", "origin", "-vf"},
				{"git", "push", "--forc"},
				{"git", "-c", "a=b", "-C", "/x", "push", "--force"},
				{"git", "--git-dir=/x", "push", "-fv"},
				{"git", "push", "origin", "main", "--force", "\n", ""},
			},
			[][]string{
				{"git", "push"},
				{"git", "push", "origin", "--", "-f"},
				{"git", "fetch", "--force"},
				{"git", "push", "--follow-tags"},
				{"git", "push", "-o", "-f"},
				{"git", "push", "--push-option", "--force"},
			}},
		{"an abbreviation, but not another option that begins alike", `commands: [git], args: ["push", "--force-with-lease"], decision: deny`,
			[][]string{{"git", "push", "--force-with-lease"}, {"git", "push", "--force-with-lease=main:abc"}, {"git", "push", "--force-w=x"}},
			[][]string{{"git", "push", "--force"}}},
		{"a refused operand", `commands: [git], args: ["push", "**", "+*"], decision: deny`,
			[][]string{{"git", "push", "origin", "+main"}, {"git", "push", "-v", "origin", "a", "+b:c", "d"}},
			[][]string{{"git", "push", "origin", "main"}}},
		{"two options must both be there", `commands: [rm], args: ["-r|--recursive", "-f|--force"], decision: deny`,
			[][]string{
				{"rm", "-rf", "/"},
				{"rm", "-r", "-f", "x"},
				{"rm", "x", "--recursive", "-f"},
				{"rm", "-Rf", "x"},
				{"rm", "--rec", "--for", "x"},
			},
			[][]string{{"rm", "-r", "x"}, {"rm", "--", "-rf"}, {"rm", "x"}}},
		{"a permitting rule must cover every word", `commands: [git], args: ["status|diff"], decision: allow`,
			[][]string{{"git", "status"}, {"git", "diff"}},
			[][]string{{"git", "status", "x"}, {"git", "status", "-s"}, {"git", "-c", "core.pager=sh", "status"}, {"git"}, {"git", "push"}}},
		{"two stars cover options and operands", `commands: [git], args: ["log", "**"], decision: allow`,
			[][]string{{"git", "log"}, {"git", "log", "-p", "--stat", "HEAD"}}, [][]string{{"git", "push", "log"}}},
		{
			"a permitted option covers its value only when it says so",
			`commands: [curl], args: ["--silent", "--output=/tmp/*", "https://example.com/*"], decision: allow`,
			[][]string{
				{"curl", "-s", "-o", "/tmp/x", "https://example.com/a"},
				{"curl", "--output=/tmp/x", "--silent", "https://example.com/"},
				{"curl", "-so/tmp/x", "https://example.com/"},
			},
			[][]string{
				{"curl", "-s", "-o", "/etc/x", "https://example.com/a"},
				{"curl", "-s", "--output", "/tmp/x", "-K", "f", "https://example.com/a"},
				{"curl", "-s", "https://example.com/"},
			},
		},
		{"no arguments at all", `commands: [make], args: [], decision: allow`, [][]string{{"make"}}, [][]string{{"make", "x"}}},
		{"a program whose options are not known keeps bundles whole", `commands: [tool], args: ["-f"], decision: deny`,
			[][]string{{"tool", "-f"}, {"tool", "x", "-f=3"}}, [][]string{{"tool", "-rf"}}},
		{"a value of an option nobody knows does not hide the operand", `commands: [tool], args: ["run", "x*"], decision: deny`,
			[][]string{
				{"tool", "run", "x"},
				{"tool", "--context", "c", "run", "x"},
				{"tool", "-c", "c", "run", "-v", "y", "x1"},
				{"tool", "run", "-v", "x"},
			},
			[][]string{{"tool", "ps", "run", "x"}, {"tool", "--context=c", "ps", "run", "x"}, {"tool", "--", "a", "run", "x"}, {"tool", "run"}}},
		{"an unknown option of a known program", `commands: [git], args: ["push"], decision: deny`,
			[][]string{{"git", "--new-option", "x", "push"}, {"git", "-Y", "x", "push"}, {"git", "-C", "x", "push"}},
			[][]string{{"git", "-C", "push", "x"}, {"git", "--git-dir", "push", "x"}, {"git", "--bare", "x", "push"}}},
		{"an unknown option before the host", `commands: [ssh], args: ["host"], decision: deny`,
			[][]string{{"ssh", "host"}, {"ssh", "-v", "-p", "22", "host", "x"}, {"ssh", "-Z", "z", "host"}},
			[][]string{{"ssh", "-p", "host", "other"}, {"ssh", "other", "host"}}},
		{"single-dash words", `commands: [find], args: ["**", "-delete|-exec|-execdir|-ok"], decision: deny`,
			[][]string{{"find", "/", "-name", "x", "-delete"}, {"find", ".", "-exec", "rm", "{}", ";"}}, [][]string{{"find", ".", "-depth"}}},
		{"a value that is none of those allowed", `commands: [git, tool], args: ["-c=!{user.name=*,log.*}|--set=!a*"], decision: deny`,
			[][]string{
				{"git", "-c", "alias.x=push -f", "x"},
				{"git", "-c", "REMOTE.o.push=+a", "push"},
				{"git", "-calias.x=y", "x"},
				{"git", "-c", "user.name", "log"},
				{"git", "-c", "user.name=me", "-c", "a.b=c", "log"},
				{"git", "-pc", "a.b=c", "log"},
				{"tool", "--set=b"},
				{"tool", "x", "--set=b"},
				{"tool", "--se=b"},
			},
			[][]string{
				{"git", "-c", "user.name=me", "commit"},
				{"git", "-c", "log.x=y", "-c", "user.name=a b", "log"},
				{"git", "switch", "-c", "topic"},
				{"git", "commit", "-c", "HEAD"},
				{"git", "log", "-c"},
				{"git", "-c"},
				{"tool", "--set=abc"},
			}},
		{"an abbreviated option with a value", `commands: [tar], args: ["--to-command"], decision: deny`,
			[][]string{{"tar", "xf", "a", "--to-command=sh"}, {"tar", "xf", "a", "--to-c", "sh"}}, [][]string{{"tar", "xf", "--to-stdout"}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := load(t, "command_rules:\n  - {name: it, "+test.rule+"}\n  - {name: other, commands: ['*'], decision: audit}\n")
			want := p.Rules(policy.GroupCommand)[0].Effect.String() + " by it"
			for _, argv := range test.yes {
				fixture.Expect(t, p, fixture.Run(argv...), want)
			}
			for _, argv := range test.no {
				fixture.Expect(t, p, fixture.Run(argv...), "audit by other")
			}
		})
	}
}

func TestArgsPatternsSeeTheArgumentsJoined(t *testing.T) {
	p := load(t, `
command_rules:
  - {name: force, commands: [git], args_patterns: ["^push.*--force", "^push.* -f"], decision: deny}
  - {name: status, commands: [git], args_patterns: ["^status( -s)?$"], decision: allow}
`)
	fixture.Expect(t, p, fixture.Run("git", "push", "origin", "--force"), "deny by force")
	fixture.Expect(t, p, fixture.Run("git", "push", "\n", "-f"), "deny by force")
	fixture.Expect(t, p, fixture.Run("git", "status", "-s"), "allow by status")
	fixture.Expect(t, p, fixture.Run("git", "status", "-s\n"), "deny by default")
	fixture.Expect(t, p, fixture.Run("git", "push", strings.Repeat("x", policy.MaxJoined)), "deny by force")
	fixture.Expect(t, p, fixture.Run("git", "status"), "allow by status")
	if n := testing.AllocsPerRun(50, func() { p.Evaluate(run2) }); n != 0 && !raceDetector {
		t.Errorf("%v allocations", n)
	}
}

var run2 = fixture.Run("git", "status", "-s")

func TestContextAndWhen(t *testing.T) {
	p := load(t, `
command_rules:
  - {name: direct, commands: [a], context: direct, decision: allow}
  - {name: nested, commands: [b], context: [nested], decision: allow}
  - {name: range, commands: [c], context: {min_depth: 2, max_depth: 3}, decision: allow}
  - {name: parent, commands: [d], when: {parent: make}, decision: allow}
  - {name: ancestor, commands: [e], when: {ancestor: [/usr/bin/make]}, decision: allow}
  - {name: cwd, commands: [f], when: {cwd: "${WORKSPACE}/**"}, decision: allow}
  - {name: tty, commands: [g], when: {interactive: true}, decision: allow}
  - {name: notty, commands: [h], when: {interactive: false}, decision: allow}
`)
	at := func(name string, change func(*policy.CommandRequest)) *policy.CommandRequest {
		q := fixture.Run(name)
		change(q)
		return q
	}
	fixture.Expect(t, p, fixture.Run("a"), "allow by direct")
	fixture.Expect(t, p, at("a", func(q *policy.CommandRequest) { q.Depth = 1 }), "deny by default")
	fixture.Expect(t, p, fixture.Run("b"), "deny by default")
	fixture.Expect(t, p, at("b", func(q *policy.CommandRequest) { q.Depth = 7 }), "allow by nested")
	for depth, want := range []string{"deny by default", "deny by default", "allow by range", "allow by range", "deny by default"} {
		fixture.Expect(t, p, at("c", func(q *policy.CommandRequest) { q.Depth = depth }), want)
	}
	fixture.Expect(t, p, fixture.Run("d"), "deny by default")
	fixture.Expect(t, p, at("d", func(q *policy.CommandRequest) { q.Parent = "/usr/bin/make" }), "allow by parent")
	fixture.Expect(t, p, at("e", func(q *policy.CommandRequest) { q.Ancestors = []string{"/bin/sh", "/usr/bin/make"} }), "allow by ancestor")
	fixture.Expect(t, p, at("e", func(q *policy.CommandRequest) { q.Ancestors = []string{"/ws/make"} }), "deny by default")
	fixture.Expect(t, p, fixture.Run("f"), "allow by cwd")
	fixture.Expect(t, p, at("f", func(q *policy.CommandRequest) { q.Cwd = "/wsx" }), "deny by default")
	fixture.Expect(t, p, fixture.Run("g"), "deny by default")
	fixture.Expect(t, p, at("g", func(q *policy.CommandRequest) { q.Interactive = true }), "allow by tty")
	fixture.Expect(t, p, fixture.Run("h"), "allow by notty")
	fixture.Expect(t, p, at("h", func(q *policy.CommandRequest) { q.Interactive = true }), "deny by default")
}

// TestARuleThatAllowsNamesWhatItAllows: "any value but these" would allow what
// nobody thought of.
func TestARuleThatAllowsNamesWhatItAllows(t *testing.T) {
	for _, decision := range []string{"allow", "audit"} {
		_, err := syntax.Load(
			policy.Source{
				Name: "p.yaml",
				Data: []byte(
					"version: 1\nname: x\ncommand_rules:\n  - {name: a, commands: [git], args: ['-c=!{a.b=*}', '**'], decision: " + decision + "}\n",
				),
			},
			syntax.Options{Vars: fixture.Vars},
		)
		if err == nil || !strings.Contains(err.Error(), `p.yaml:4:5: word "-c=!{a.b=*}": =! is for rules that refuse`) {
			t.Errorf("%s: %v", decision, err)
		}
	}
	for _, bad := range []string{"-c=!{a", "-[c=!a"} {
		_, err := syntax.Load(
			policy.Source{
				Name: "p.yaml",
				Data: []byte("version: 1\nname: x\ncommand_rules:\n  - {name: a, commands: [git], args: ['" + bad + "'], decision: deny}\n"),
			},
			syntax.Options{Vars: fixture.Vars},
		)
		if err == nil {
			t.Errorf("%s loads", bad)
		}
	}
}
