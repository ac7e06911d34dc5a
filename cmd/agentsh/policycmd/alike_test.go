package policycmd

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/policytest"
	"agentsh/policy/syntax"
	"agentsh/supervisor"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/host"
)

// alikePolicy has a rule for each name that a program may be found by.
const alikePolicy = `version: 1
name: alike
command_rules:
  - {name: no-kill, commands: [kill], decision: deny}
  - {name: no-file, commands: ['${WORKSPACE}/d*/secret*'], decision: deny}
  - {name: no-name, commands: ['bad*'], decision: deny}
  - {name: no-option, commands: [sh], args: ['-x'], decision: deny}
  - {name: watched, commands: ['watch*'], decision: audit}
  - {name: all, commands: ['*'], decision: allow}
file_rules:
  - {name: machine, paths: [/usr/**, /bin/**, /lib/**, /lib64/**, /etc/**], operations: [read, list, stat, execute], decision: allow}
  - {name: devices, paths: [/dev/**], operations: [read, write, list, stat], decision: allow}
  - {name: all, paths: ['${WORKSPACE}/**'], operations: ['*'], decision: allow}
`

// execCase is one execve: a file, the directory that it starts in and how it is called.
type execCase struct {
	File, Dir, Name string
	I               int
}

func (c *execCase) argv() []string { return []string{c.Name, fmt.Sprint("case-", c.I)} }

// TestAuthorsAndSessionsAreAnsweredAlike compares the decisions of explain, replay and
// test with those of a session, for programs of a generated tree. AGENTSH_ALIKE sets the
// number of programs.
func TestAuthorsAndSessionsAreAnsweredAlike(t *testing.T) {
	needSandbox(t)
	n := 150
	if text := os.Getenv("AGENTSH_ALIKE"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	s := openAlike(t)
	cases := generateTree(t, s.dir, n)
	got := s.execAll(t, cases)
	p, err := loadPolicy(s.policy, host.PolicyVars(s.dir, nil))
	if err != nil {
		t.Fatal(err)
	}
	programs, err := openPrograms(p)
	if err != nil {
		t.Fatal(err)
	}
	defer programs.Close()
	counts := map[string]int{}
	var tests strings.Builder
	fmt.Fprintf(&tests, "policy: %s\nvars: {WORKSPACE: %s}\ntests:\n", s.policy, s.dir)
	for i := range cases {
		want := explainCase(p, programs, &cases[i])
		if got[i] == noFormat && !strings.HasPrefix(want, "deny") {
			continue // the policy permits what the kernel does not
		}
		if got[i] != want {
			t.Errorf("%+v: a session says %q, explain says %q", cases[i], got[i], want)
		}
		counts[want]++
		if decision, rule, _ := strings.Cut(want, " "); want != notRun && cases[i].Name == cases[i].File {
			fmt.Fprintf(&tests, "- {name: t%d, command: [%q, %q], cwd: %q, depth: 1, expect: {decision: %s, rule: %s}}\n",
				i, cases[i].Name, "x", cases[i].Dir, decision, rule)
		}
	}
	for _, all := range []string{"deny no-kill", "deny no-file", "deny no-name", "deny no-option", "audit watched", "allow all", notRun} {
		if counts[all] == 0 {
			t.Errorf("no case is %q: %v", all, counts)
		}
	}
	suite := filepath.Join(t.TempDir(), "alike_test.yaml")
	if err := os.WriteFile(suite, []byte(tests.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, code := agentsh(t, s.dir, "policy", "test", suite); code != 0 {
		t.Errorf("policy test: exit code %d\n%s", code, out)
	}
	log := filepath.Join(s.state, "audit.jsonl")
	if out, code := agentsh(t, s.dir, "policy", "replay", "--workspace", s.dir, "-p", s.policy, log); code != 0 {
		t.Errorf("policy replay: exit code %d\n%s", code, out)
	}
}

// notRun is the answer about a file about which nothing is decided.
const notRun = "not run"

// noFormat is the answer of the kernel about a file that is no program.
const noFormat = "no format"

// alike is a session whose workspace has the same path inside and outside.
type alike struct {
	*scratch
	policy string
}

func openAlike(t *testing.T) *alike {
	t.Helper()
	root := t.TempDir()
	s := &alike{scratch: &scratch{state: t.TempDir(), dir: filepath.Join(root, "w")}, policy: filepath.Join(root, "p.yaml")}
	if err := os.WriteFile(s.policy, []byte(alikePolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for dir := s.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { // commands run as another user
			t.Fatal(err)
		}
	}
	p, err := syntax.Load(policy.Source{Name: s.policy, Data: []byte(alikePolicy)}, syntax.Options{Vars: host.PolicyVars(s.dir, nil)})
	if err != nil {
		t.Fatal(err)
	}
	operator, err := host.ReadConfig(layout.Config, true)
	if err != nil {
		t.Fatal(err)
	}
	if s.log, err = audit.Open(filepath.Join(s.state, "audit.jsonl"), audit.Options{KeyFile: filepath.Join(s.state, "key")}); err != nil {
		t.Fatal(err)
	}
	boot := wire.Bootstrap{
		Governed: []wire.Governed{{Backing: s.dir, Path: s.dir}}, Home: layout.CommandHome, StoreDir: filepath.Join(s.state, "store"),
	}
	cfg := supervisor.SessionConfig(operator, supervisor.Request{Boot: boot, Policy: p, Audit: s.log})
	if s.session, err = supervisor.Open(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// explainCase is what policy explain says about a case.
func explainCase(p *policy.Policy, programs *supervisor.Programs, c *execCase) string {
	r := policytest.Command(c.argv())
	r.Cwd, r.Depth, r.Called = c.Dir, 1, c.File
	if err := find(programs, r, c.File); err != nil {
		return notRun
	}
	x := explainRequest(p, r, "")
	if x.Rule == nil {
		return x.Decision + " default"
	}
	return x.Decision + " " + x.Rule.Name
}

// execAll executes every case from one program in the session. The answer is the
// decision of the event of each. What was not decided was not run.
func (s *alike) execAll(t *testing.T, cases []execCase) map[int]string {
	t.Helper()
	const script = `import json, os, sys
null = os.open("/dev/null", os.O_RDWR)
for c in json.load(open(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        out = os.dup(1)
        for fd in 0, 1, 2:
            os.dup2(null, fd)
        os.set_inheritable(out, False)
        try:
            os.chdir(c["Dir"])
            os.execve(c["File"], [c["Name"], "case-%d" % c["I"]], {"PATH": "/usr/bin:/bin"})
        except OSError as e:
            os.write(out, b"%d %d\n" % (c["I"], e.errno))
        os._exit(1)
    os.waitpid(pid, 0)
print("done")
`
	data, err := json.Marshal(cases)
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(s.dir, "cases.json")
	if err := os.WriteFile(list, data, 0o644); err != nil {
		t.Fatal(err)
	}
	o, err := s.run(t.Context(), "python3", "-c", script, list)
	if err != nil || !strings.HasSuffix(string(o.output), "done\n") {
		t.Fatalf("%v: %+v\n%s", err, o.exit, o.output)
	}
	got := map[int]string{}
	for line := range strings.Lines(strings.TrimSuffix(string(o.output), "done\n")) {
		var i, errno int
		if _, err := fmt.Sscan(line, &i, &errno); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if got[i] = notRun; syscall.Errno(errno) == syscall.ENOEXEC {
			got[i] = noFormat
		}
	}
	log, err := os.Open(filepath.Join(s.state, "audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	err = policytest.Events(log, func(e wire.Event) error {
		if e.Type != wire.EventExec || e.Decision == "" || len(e.Argv) != 2 || !strings.HasPrefix(e.Argv[1], "case-") {
			return nil
		}
		i, err := strconv.Atoi(strings.TrimPrefix(e.Argv[1], "case-"))
		if err != nil {
			return err
		}
		if was, known := got[i]; known && was != notRun && was != noFormat {
			return nil // what the program started
		}
		rule := "default"
		if e.Rule != nil {
			rule = e.Rule.Name
		}
		got[i] = e.Decision + " " + rule
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// generateTree makes directories with programs, links and scripts that refer to each
// other, and cases that execute them.
func generateTree(t *testing.T, root string, n int) []execCase {
	t.Helper()
	g := &grower{t: t, r: rand.New(rand.NewPCG(18, uint64(n)))}
	for i := range 8 {
		g.dirs = append(g.dirs, filepath.Join(root, fmt.Sprint("d", i)))
		g.must(os.Mkdir(g.dirs[i], 0o755))
	}
	g.files = append([]string{root + "/missing", g.dirs[0], "/bin/sh"}, programsOfTree...)
	for i := range n / 2 {
		g.grow(i)
	}
	cases := make([]execCase, n)
	for i := range cases {
		file, dir := g.pick(g.files), g.pick(g.dirs)
		if rel, err := filepath.Rel(dir, file); err == nil && g.r.IntN(3) == 0 && strings.Contains(rel, "/") {
			file = rel
		}
		cases[i] = execCase{file, dir, g.pick([]string{file, file, filepath.Base(file), "kill", "badname", "true"}), i}
	}
	return cases
}

// programsOfTree end by themselves. env is none of them: a script of env alone runs itself for ever.
var programsOfTree = []string{"/usr/bin/true", "/bin/true", "/usr/bin/kill", "/usr/bin/false"}

// grower adds files to a tree.
type grower struct {
	t           *testing.T
	r           *rand.Rand
	dirs, files []string
}

func (g *grower) pick(list []string) string { return list[g.r.IntN(len(list))] }

func (g *grower) must(err error) {
	g.t.Helper()
	if err != nil {
		g.t.Fatal(err)
	}
}

// grow adds a link, a copy, a script or a file that is none.
func (g *grower) grow(i int) {
	file := filepath.Join(g.pick(g.dirs), fmt.Sprintf("%s%d", g.pick([]string{"tool", "bad", "watch", "secret", "x", "kill"}), i))
	target := g.pick(g.files)
	if rel, err := filepath.Rel(filepath.Dir(file), target); err == nil && g.r.IntN(4) == 0 {
		target = rel
	}
	write := func(text string, mode os.FileMode) { g.must(os.WriteFile(file, []byte(text), mode)) }
	switch g.r.IntN(9) {
	case 0, 1:
		g.must(os.Symlink(target, file))
	case 2:
		data, err := os.ReadFile(g.pick(programsOfTree))
		g.must(err)
		write(string(data), 0o755)
	case 3:
		write("#!/usr/bin/env -S "+g.pick([]string{"true", "kill -l", "-i true", "nothing"})+"\n", 0o755)
	case 4:
		write(g.pick([]string{"", "plain text\n", "#!\n", "#! \n"}), []os.FileMode{0o755, 0o644}[g.r.IntN(2)])
	case 5:
		write("#!/bin/sh -x\n", 0o755)
	default:
		text := "#!" + g.pick([]string{"", " "}) + target + g.pick([]string{"", " -x", " one two "}) + "\n"
		write(text, []os.FileMode{0o755, 0o755, 0o644}[g.r.IntN(3)])
	}
	g.files = append(g.files, file)
}
