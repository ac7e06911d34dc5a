package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// below has the runs of a fixture at a double of OpenShell 0.1: a user below a listener and
// filters like its own, on a machine with a directory /sandbox.
func (p *fixture) below() {
	p.t.Helper()
	testenv.Need(p.t, testenv.Root, testenv.UserNotif, testenv.Landlock)
	outer := testenv.OuterProgram(p.t)
	for _, dir := range []string{p.dir, filepath.Dir(p.dir)} {
		if err := os.Chmod(dir, 0o755); err != nil {
			p.t.Fatal(err)
		}
	}
	for _, name := range []string{"sandbox", "place"} {
		if err := errors.Join(os.Mkdir(p.path(name), 0o755), os.Chown(p.path(name), 60600, 60600)); err != nil {
			p.t.Fatal(err)
		}
	}
	if err := sandboxDirectory(); err != nil {
		p.t.Fatal(err)
	}
	p.write("lib/agentsh/bash_startup.sh", p.readFile("../../bash_startup.sh"), 0o644) // as the packages have it in an image
	p.write("lib/agentsh/agentsh", p.readFile(filepath.Join(p.bin, "agentsh")), 0o755)
	place := p.path("place")
	p.write("enter", "#!/bin/sh\nset -e\nmount --bind "+p.path("sandbox")+" /sandbox\nmkdir -p "+p.path("work")+
		"\nmount -t overlay overlay -o lowerdir=/usr/lib,upperdir="+p.path("lib")+",workdir="+p.path("work")+" /usr/lib\n"+
		"exec env -i PATH=/usr/bin:/bin HOME="+place+" XDG_STATE_HOME="+place+" OUTER_UID=60600 "+outer+" whole /bin/sh\n", 0o755)
	p.place = []string{"--backend", "exec", "--connect", "exec:unshare --mount --propagation private " + p.path("enter")}
	p.write("policy.yaml", p.readFile("../../test/platforms/openshell/policy.yaml"), 0o644)
	p.t.Cleanup(func() {
		entries, err := os.ReadDir(p.path("sandbox"))
		if err != nil || len(entries) > 0 {
			p.t.Errorf("left in /sandbox: %v, %v", entries, err)
		}
	})
}

func TestARunBelowAnotherSupervisorIsWhole(t *testing.T) {
	t.Parallel()
	const agent = `echo "$INJECTED $SAID $(type -t kill)" >&2
echo two > a.txt; git commit -q -a -m two; echo more > b.txt; rm gone.txt
echo report > "$AGENTSH_OUTPUT_DIR/report.txt"
{ echo x > /sandbox/claude-config/x; } 2>/dev/null || echo "configuration is kept" >&2
{ echo x > /sandbox/workspace/.env.d/x; } 2>/dev/null || echo "variables are kept" >&2
cat /etc/shadow 2>/dev/null || echo "secrets are kept" >&2
printf x > "$(printf 'odd\n\303')"`
	p := newFixture(t, agent, "env: {sandbox: {SAID: hello}}\ndegraded: [nested_commands]")
	p.write("repo/gone.txt", "1\n", 0o644)
	p.git("add", "-A")
	p.git("commit", "-q", "-m", "second")
	p.below()
	r, code := p.run()
	if code != controller.ExitDone {
		t.Fatalf("exit code %d: %+v", code, r.Error)
	}
	var names []string
	for _, c := range r.Changed {
		names = append(names, c.Status+" "+string(c.Path))
	}
	if len(r.Commits) != 1 || r.Engine != "none" || !slices.Contains(r.Degraded, "nested_commands") || r.AuditGaps != 0 {
		t.Errorf("%+v", r)
	}
	for _, want := range []string{"modified a.txt", "added b.txt", "deleted gone.txt", "added odd\n\xc3"} {
		if !slices.Contains(names, want) {
			t.Errorf("changed files are %q, without %q", names, want)
		}
	}
	if p.read("out/output/report.txt") != "report\n" {
		t.Error("the output did not come out")
	}
	log := p.read("out/agent.log")
	for _, want := range []string{"from-policy hello function", "configuration is kept", "variables are kept", "secrets are kept"} {
		if !strings.Contains(log, want) {
			t.Errorf("the agent did not say %q:\n%s", want, log)
		}
	}
	first, _, _ := strings.Cut(p.read("out/audit.jsonl"), "\n")
	var e wire.Event
	if err := json.Unmarshal([]byte(first), &e); err != nil || e.Mechanism != "none" || e.Decision != "degraded" {
		t.Errorf("the first event: %v, %s", err, first)
	}
	held := map[string]string{}
	for _, g := range r.Guarantees {
		held[g.Group] = g.HeldBy
	}
	for group, want := range map[string]string{wire.GroupFiles: "agentsh", wire.GroupCommands: "not held", wire.GroupNetwork: "not held"} {
		if held[group] != want {
			t.Errorf("%s: %q, want %q", group, held[group], want)
		}
	}
}

func (p *fixture) readFile(name string) string {
	p.t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		p.t.Fatal(err)
	}
	return string(data)
}

// The harness that test/platforms/openshell.sh runs at the real one.
func TestTheProbesForOpenShellAreStopped(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "false", "")
	if err := os.CopyFS(p.path("smoke"), os.DirFS("../../test/platforms/openshell")); err != nil {
		t.Fatal(err)
	}
	p.below()
	p.harness = "smoke/harness.yaml"
	r, code := p.run()
	log := p.read("out/agent.log")
	if code != controller.ExitDone || len(r.Commits) != 1 || strings.Count(log, "stopped: ") != 10 {
		t.Errorf("exit code %d, %d commits, %+v\n%s", code, len(r.Commits), r.Error, log)
	}
}
