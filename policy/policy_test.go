package policy

import (
	"strings"
	"testing"
)

// testVars are the variables of the tests.
var testVars = map[string]string{"WORKSPACE": "/ws", "PROJECT_ROOT": "/ws", "GIT_ROOT": "/ws", "HOME": "/home/agent", "TMPDIR": "/tmp"}

// load loads the rules of a test under a header.
func load(t testing.TB, body string) *Policy {
	t.Helper()
	p, err := Load(Source{Name: "test.yaml", Data: []byte("version: 1\nname: test\n" + body)}, Options{Vars: testVars})
	if err != nil {
		t.Fatalf("%v\n%s", err, body)
	}
	return p
}

// problems are the complaints about a file with the header.
func problems(t testing.TB, body string) string {
	t.Helper()
	_, err := Load(Source{Name: "test.yaml", Data: []byte("version: 1\nname: test\n" + body)}, Options{Vars: testVars})
	if err == nil {
		t.Fatalf("loads:\n%s", body)
	}
	return err.Error()
}

// run is a request to run argv, its program in /usr/bin unless it has a slash.
func run(argv ...string) *CommandRequest {
	file := argv[0]
	if !strings.Contains(file, "/") {
		file = "/usr/bin/" + file
	}
	return &CommandRequest{Program: Program{Called: argv[0], Path: file}, Argv: argv, Cwd: "/ws"}
}

// expect checks the effect and rule of one decision: "deny by block-kill".
func expect(t *testing.T, p *Policy, r Request, want string) {
	t.Helper()
	d, g := p.Evaluate(r)
	if got := d.Effect.String() + " by " + g.Rule; got != want {
		t.Errorf("%s: %s, want %s (%s)", describe(r, reason{}), got, want, g.Message)
	}
	if d.Rule != nil && d.Rule.Name != g.Rule {
		t.Errorf("decision names rule %s, diagnostic %s", d.Rule.Name, g.Rule)
	}
	if !d.Permits() && g.Message == "" {
		t.Errorf("%s: a denial without a message", describe(r, reason{}))
	}
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
		r    *CommandRequest
		want string
	}{
		{"a denied name", run("kill", "1"), "deny by block-kill"},
		{"an allowed name", run("git", "status"), "allow by allow-some"},
		{"a glob of names", run("mkfs.ext4"), "allow by allow-some"},
		{"no rule", run("nmap"), "deny by default"},
		{"a path glob", run("/opt/evil/x"), "deny by block-kill"},
		{
			"a link of the system to another name",
			&CommandRequest{Program: Program{Called: "/usr/bin/python3", Path: "/usr/bin/python3.11"}},
			"allow by allow-some",
		},
		{
			"a link told by the supervisor",
			&CommandRequest{Program: Program{Called: "python", Path: "/opt/python3.11", Names: []string{"/usr/bin/python3"}}},
			"allow by allow-some",
		},
		{
			"a bare name does not vouch for another file",
			&CommandRequest{Program: Program{Called: "python3", Path: "/usr/bin/python3.11"}},
			"deny by default",
		},
		{
			"a link a command could have made",
			&CommandRequest{Program: Program{Called: "/ws/ls", Path: "/usr/bin/nmap"}, Cwd: "/ws"},
			"deny by default",
		},
		{
			"a link below /proc",
			&CommandRequest{Program: Program{Called: "/proc/self/cwd/ls", Path: "/usr/bin/nmap"}, Cwd: "/ws"},
			"deny by default",
		},
		{
			"an allowed link to a denied program",
			&CommandRequest{Program: Program{Called: "/usr/bin/git", Path: "/usr/bin/kill"}},
			"deny by block-kill",
		},
		{
			"a denied link to an allowed program",
			&CommandRequest{Program: Program{Called: "/ws/kill", Path: "/usr/bin/git"}},
			"deny by block-kill",
		},
		{
			"a denied argv[0]",
			&CommandRequest{Program: Program{Called: "/usr/bin/git", Path: "/usr/bin/git"}, Argv: []string{"kill"}},
			"deny by block-kill",
		},
		{
			"a copy of a denied program",
			&CommandRequest{Program: Program{Called: "git", Path: "/ws/git", Same: []string{"/usr/bin/kill"}}},
			"deny by block-kill",
		},
		{"a file that was not found", &CommandRequest{Program: Program{Called: "git"}}, "deny by default"},
		{"a path that is not resolved", &CommandRequest{Program: Program{Called: "git", Path: "/usr/bin/../bin/git"}}, "deny by default"},
		{"nothing at all", &CommandRequest{}, "deny by default"},
		{"a redirected program", run("curl", "x"), "redirect by redirect-curl"},
		{
			"a script and its interpreter",
			&CommandRequest{Program: Program{Called: "/ws/git", Path: "/ws/git"}, Chain: []Program{{Called: "/bin/bash", Path: "/usr/bin/bash"}}},
			"allow by allow-some",
		},
		{
			"a script whose interpreter is denied",
			&CommandRequest{
				Program: Program{Called: "/ws/git", Path: "/ws/git"},
				Chain:   []Program{{Called: "/usr/bin/kill", Path: "/usr/bin/kill"}},
			},
			"deny by block-kill",
		},
		{
			"a script whose interpreter no rule allows",
			&CommandRequest{
				Program: Program{Called: "/ws/git", Path: "/ws/git"},
				Chain:   []Program{{Called: "/usr/bin/perl", Path: "/usr/bin/perl"}},
			},
			"deny by default",
		},
		{
			"a script whose interpreter is redirected",
			&CommandRequest{
				Program: Program{Called: "/ws/git", Path: "/ws/git"},
				Chain:   []Program{{Called: "/usr/bin/curl", Path: "/usr/bin/curl"}},
			},
			"deny by redirect-curl",
		},
		{"a wrapper of a denied program", run("env", "-i", "A=b", "kill", "1"), "deny by block-kill"},
		{"a wrapper in a wrapper", run("timeout", "-s", "KILL", "5", "env", "-S", "kill -9 1"), "deny by block-kill"},
		{"a wrapper of a program no rule is about waits for its execve", run("env", "nmap"), "allow by allow-some"},
		{"a wrapper of a redirected program", run("env", "curl"), "deny by redirect-curl"},
		{"a loader's program that was not found", run("/lib64/ld-linux-x86-64.so.2", "/usr/bin/git"), "deny by default"},
		{"a loader's denied program", run("/lib64/ld-linux-x86-64.so.2", "--argv0", "x", "/usr/bin/kill"), "deny by block-kill"},
		{
			"a loader's program that was found",
			&CommandRequest{
				Program: Program{Called: "/lib64/ld-linux-x86-64.so.2", Path: "/lib64/ld-linux-x86-64.so.2"},
				Argv:    []string{"ld", "/usr/bin/git"},
				Chain:   []Program{{Called: "/usr/bin/git", Path: "/usr/bin/git"}},
			},
			"allow by allow-some",
		},
		{"loader options nobody knows", run("/lib64/ld-linux-x86-64.so.2", "--new", "/usr/bin/git"), "deny by default"},
		{"a busybox applet that is allowed", run("busybox", "ls"), "allow by allow-some"},
		{"a busybox applet that is denied", run("busybox", "kill", "1"), "deny by block-kill"},
		{"a busybox applet no rule is about", run("busybox", "nc"), "deny by default"},
		{"a busybox applet through a wrapper applet", run("busybox", "env", "nc"), "deny by default"},
		{
			"an applet by its link",
			&CommandRequest{Program: Program{Called: "/bin/ls", Path: "/bin/busybox", Same: []string{"/bin/kill"}}, Argv: []string{"ls"}},
			"allow by allow-some",
		},
		{
			"a script for a busybox applet",
			&CommandRequest{
				Program: Program{Called: "/ws/git", Path: "/ws/git"},
				Argv:    []string{"git"},
				Chain:   []Program{{Called: "/bin/busybox", Path: "/bin/busybox", Args: []string{"/bin/busybox", "kill", "/ws/git"}}},
			},
			"deny by block-kill",
		},
		{
			"a copied loader that runs busybox",
			&CommandRequest{
				Program: Program{Called: "/ws/git", Path: "/ws/git"},
				Argv:    []string{"git", "/bin/busybox", "nc"},
				Chain:   []Program{{Called: "/bin/busybox", Path: "/bin/busybox", Args: []string{"/bin/busybox", "nc"}}},
			},
			"deny by default",
		},
		{
			"busybox by a longer name",
			&CommandRequest{Program: Program{Called: "/bin/busybox", Path: "/bin/busybox"}, Argv: []string{"busyboxes", "kill", "1"}},
			"deny by block-kill",
		},
		{
			"a copy of busybox",
			&CommandRequest{Program: Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true}, Argv: []string{"busybox", "kill", "1"}},
			"deny by block-kill",
		},
		{
			"a copy of busybox by a longer name",
			&CommandRequest{Program: Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true}, Argv: []string{"-busybox.x", "nc"}},
			"deny by default",
		},
		{
			"a copy of busybox that is called as an applet",
			&CommandRequest{Program: Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true}, Argv: []string{"kill"}},
			"deny by block-kill",
		},
		{
			"a copy of busybox that is called as a wrapper",
			&CommandRequest{Program: Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true}, Argv: []string{"timeout", "5", "kill"}},
			"deny by block-kill",
		},
		{
			"an unknown program called busybox",
			&CommandRequest{Program: Program{Called: "/ws/git", Path: "/ws/git"}, Argv: []string{"busyboxx", "kill", "1"}},
			"deny by block-kill",
		},
		{
			"an unknown program called busybox with another word",
			&CommandRequest{Program: Program{Called: "/ws/git", Path: "/ws/git"}, Argv: []string{"busyboxx", "status"}},
			"allow by allow-some",
		},
		{
			"a copy of coreutils that is told its applet",
			&CommandRequest{
				Program: Program{Called: "/ws/git", Path: "/ws/git", MultiCall: true},
				Argv:    []string{"git", "--coreutils-prog=kill", "1"},
			},
			"deny by block-kill",
		},
		{
			"a script of the coreutils program",
			&CommandRequest{
				Program: Program{Called: "/bin/coreutils", Path: "/bin/coreutils"},
				Argv:    []string{"x", "--coreutils-prog-shebang=kill", "1"},
			},
			"deny by default",
		},
		{
			"another applet by an allowed link",
			&CommandRequest{Program: Program{Called: "/bin/ls", Path: "/bin/busybox"}, Argv: []string{"nc"}},
			"deny by default",
		},
		{
			"a denied applet by an allowed link",
			&CommandRequest{Program: Program{Called: "/bin/ls", Path: "/bin/busybox"}, Argv: []string{"-kill"}},
			"deny by block-kill",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) { expect(t, p, test.r, test.want) })
	}
}

func TestALinkIsOnlyTrustedWhereNobodyCanMakeOne(t *testing.T) {
	link := &CommandRequest{Program: Program{Called: "/usr/bin/python3", Path: "/usr/bin/python3.11"}}
	p := load(t, commands+"file_rules:\n  - {name: all, paths: ['**'], operations: ['*'], decision: allow}\n")
	expect(t, p, link, "deny by default")
	p = load(
		t,
		commands+"file_rules:\n  - {name: usr, paths: [/usr/**], operations: [symlink], decision: deny}\n  - {name: all, paths: ['**'], operations: ['*'], decision: allow}\n",
	)
	expect(t, p, link, "deny by default")
	p = load(
		t,
		commands+"file_rules:\n  - {name: usr, paths: [/usr/**], operations: ['*'], decision: deny}\n  - {name: all, paths: ['**'], operations: ['*'], decision: allow}\n",
	)
	expect(t, p, link, "allow by allow-some")
}

func TestAClosingRuleSaysNothingAboutOneName(t *testing.T) {
	rules := "command_rules:\n  - {name: some, commands: [python3, perl], decision: allow}\n  - {name: rest, commands: ['*'], decision: %s}\n"
	for _, effect := range []string{"deny", "approve"} {
		p := load(t, strings.Replace(rules, "%s", effect, 1))
		expect(t, p, &CommandRequest{Program: Program{Called: "/usr/bin/python3", Path: "/usr/bin/python3.11"}}, "allow by some")
		expect(
			t,
			p,
			&CommandRequest{Program: Program{Called: "python3", Path: "/usr/bin/python3.11", Names: []string{"/usr/bin/py", "/usr/bin/python3"}}},
			"allow by some",
		)
		expect(
			t,
			p,
			&CommandRequest{Program: Program{Called: "/usr/bin/perl", Path: "/usr/bin/perl", Same: []string{"/usr/bin/perl5.36"}}},
			"allow by some",
		)
		expect(t, p, run("nmap"), effect+" by rest")
		expect(t, p, &CommandRequest{Program: Program{Called: "/ws/perl", Path: "/usr/bin/nmap"}, Cwd: "/ws"}, effect+" by rest")
		if got := p.DeniedPrograms(); len(got) != 0 {
			t.Errorf("%q", got)
		}
	}
}

func TestALinkThatCameWithTheWorkspaceVouchesForNothing(t *testing.T) {
	p := load(t, commands)
	for _, dir := range []string{"/ws/bin", "/home/agent/bin", "/tmp", "/proc/self/cwd"} {
		expect(t, p, &CommandRequest{Program: Program{Called: "ls", Path: "/usr/bin/nmap", Names: []string{dir + "/ls"}}}, "deny by default")
		expect(t, p, &CommandRequest{Program: Program{Called: "ls", Path: "/usr/bin/git", Names: []string{dir + "/kill"}}}, "deny by block-kill")
	}
}

func TestIdentityNameGoesByNamesOnly(t *testing.T) {
	copied := &CommandRequest{Program: Program{Called: "/ws/x", Path: "/ws/x", Same: []string{"/usr/bin/kill"}}}
	rules := "command_rules:\n  - {name: k, commands: [kill], decision: deny%s}\n  - {name: all, commands: ['*'], decision: allow}\n"
	expect(t, load(t, strings.Replace(rules, "%s", "", 1)), copied, "deny by k")
	p := load(t, strings.Replace(rules, "%s", ", identity: name", 1))
	expect(t, p, copied, "allow by all")
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
			want := p.Rules(GroupCommand)[0].Effect.String() + " by it"
			for _, argv := range test.yes {
				expect(t, p, run(argv...), want)
			}
			for _, argv := range test.no {
				expect(t, p, run(argv...), "audit by other")
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
	expect(t, p, run("git", "push", "origin", "--force"), "deny by force")
	expect(t, p, run("git", "push", "\n", "-f"), "deny by force")
	expect(t, p, run("git", "status", "-s"), "allow by status")
	expect(t, p, run("git", "status", "-s\n"), "deny by default")
	expect(t, p, run("git", "push", strings.Repeat("x", maxJoined)), "deny by force")
	expect(t, p, run("git", "status"), "allow by status")
	if n := testing.AllocsPerRun(50, func() { p.Evaluate(run2) }); n != 0 && !raceDetector {
		t.Errorf("%v allocations", n)
	}
}

var run2 = run("git", "status", "-s")

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
	at := func(name string, change func(*CommandRequest)) *CommandRequest {
		q := run(name)
		change(q)
		return q
	}
	expect(t, p, run("a"), "allow by direct")
	expect(t, p, at("a", func(q *CommandRequest) { q.Depth = 1 }), "deny by default")
	expect(t, p, run("b"), "deny by default")
	expect(t, p, at("b", func(q *CommandRequest) { q.Depth = 7 }), "allow by nested")
	for depth, want := range []string{"deny by default", "deny by default", "allow by range", "allow by range", "deny by default"} {
		expect(t, p, at("c", func(q *CommandRequest) { q.Depth = depth }), want)
	}
	expect(t, p, run("d"), "deny by default")
	expect(t, p, at("d", func(q *CommandRequest) { q.Parent = "/usr/bin/make" }), "allow by parent")
	expect(t, p, at("e", func(q *CommandRequest) { q.Ancestors = []string{"/bin/sh", "/usr/bin/make"} }), "allow by ancestor")
	expect(t, p, at("e", func(q *CommandRequest) { q.Ancestors = []string{"/ws/make"} }), "deny by default")
	expect(t, p, run("f"), "allow by cwd")
	expect(t, p, at("f", func(q *CommandRequest) { q.Cwd = "/wsx" }), "deny by default")
	expect(t, p, run("g"), "deny by default")
	expect(t, p, at("g", func(q *CommandRequest) { q.Interactive = true }), "allow by tty")
	expect(t, p, run("h"), "allow by notty")
	expect(t, p, at("h", func(q *CommandRequest) { q.Interactive = true }), "deny by default")
}

// TestARuleThatAllowsNamesWhatItAllows: "any value but these" would allow what
// nobody thought of.
func TestARuleThatAllowsNamesWhatItAllows(t *testing.T) {
	for _, decision := range []string{"allow", "audit"} {
		_, err := Load(
			Source{
				Name: "p.yaml",
				Data: []byte(
					"version: 1\nname: x\ncommand_rules:\n  - {name: a, commands: [git], args: ['-c=!{a.b=*}', '**'], decision: " + decision + "}\n",
				),
			},
			Options{Vars: testVars},
		)
		if err == nil || !strings.Contains(err.Error(), `p.yaml:4:5: word "-c=!{a.b=*}": =! is for rules that refuse`) {
			t.Errorf("%s: %v", decision, err)
		}
	}
	for _, bad := range []string{"-c=!{a", "-[c=!a"} {
		_, err := Load(
			Source{
				Name: "p.yaml",
				Data: []byte("version: 1\nname: x\ncommand_rules:\n  - {name: a, commands: [git], args: ['" + bad + "'], decision: deny}\n"),
			},
			Options{Vars: testVars},
		)
		if err == nil {
			t.Errorf("%s loads", bad)
		}
	}
}
