package main

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/openshelldouble"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// confined has the runs of a fixture at a double of OpenShell's gateway, whose sandboxes are confined as those of OpenShell 0.1.
func confined(t *testing.T, agent, more string) (*fixture, *openshelldouble.Double) {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.Landlock)
	p, d := atOpenShell(t, agent, ", "+given)
	p.write("harness.yaml", p.read("harness.yaml")+"degraded: [nested_commands]\n"+more, 0o644)
	p.write("policy.yaml", p.readFile("../../test/platforms/openshell/policy.yaml")+
		"network_rules: [{name: api, domains: [api.example.com], ports: [443], decision: allow}]\n", 0o644)
	lib, err := os.MkdirTemp("/var/tmp", "openshell-lib")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(lib) })
	if err := errors.Join(os.Chmod(lib, 0o755), os.Mkdir(lib+"/agentsh", 0o755),
		os.WriteFile(lib+"/agentsh/bash_startup.sh", []byte(p.readFile("../../bash_startup.sh")), 0o644),
		os.WriteFile(lib+"/agentsh/agentsh", []byte(p.readFile(p.bin+"/agentsh")), 0o755)); err != nil { // as the packages have it in an image
		t.Fatal(err)
	}
	if err := sandboxDirectory(); err != nil {
		t.Fatal(err)
	}
	openshelldouble.Confine(d, testenv.OuterProgram(t), lib)
	return p, d
}

// TestARunInsideOfOpenShellIsWhole goes all the way: a sandbox is made, ready and filled, the agent works below the listener, the
// filters and the Landlock domain that the rendered policy makes, and what it made comes out.
func TestARunInsideOfOpenShellIsWhole(t *testing.T) {
	t.Parallel()
	const agent = `echo "$INJECTED $(type -t kill) $HTTPS_PROXY" >&2
echo two > a.txt; git commit -q -a -m two; echo more > b.txt
echo report > "$AGENTSH_OUTPUT_DIR/report.txt"
python3 -c 'import os; os.setuid(0)' 2>/dev/null || echo "the user is kept" >&2
unshare -r true 2>/dev/null || echo "namespaces are refused" >&2
{ echo x > /sandbox/claude-config/x; } 2>/dev/null || echo "configuration is kept" >&2
{ echo x > /tmp/x; } 2>/dev/null || echo "the machine is kept" >&2
ls /var/tmp/agentsh-state >/dev/null 2>&1 || ls /var/tmp/agentsh-home >/dev/null 2>&1 || echo "the files of agentsh are out of reach" >&2
cat /etc/shadow 2>/dev/null || echo "secrets are kept" >&2`
	p, d := confined(t, agent, "")
	r, code := p.run()
	if code != controller.ExitDone {
		t.Fatalf("exit code %d: %+v", code, r.Error)
	}
	var names []string
	for _, c := range r.Changed {
		names = append(names, c.Status+" "+string(c.Path))
	}
	if len(r.Commits) != 1 || r.Engine != "none" || r.Backend != "openshell" || r.AuditGaps != 0 ||
		!slices.Contains(names, "modified a.txt") || !slices.Contains(names, "added b.txt") {
		t.Errorf("%+v", r)
	}
	if p.read("out/output/report.txt") != "report\n" {
		t.Error("the output did not come out")
	}
	log := p.read("out/agent.log")
	for _, want := range []string{"from-policy function " + openshelldouble.Proxy, "the user is kept", "namespaces are refused",
		"configuration is kept", "the machine is kept", "the files of agentsh are out of reach", "secrets are kept"} {
		if !strings.Contains(log, want) {
			t.Errorf("the agent did not say %q:\n%s", want, log)
		}
	}
	held := map[string]string{}
	for _, g := range r.Guarantees {
		held[g.Group] = g.HeldBy
	}
	for group, want := range map[string]string{
		wire.GroupCommands: "not held", wire.GroupNetwork: "OpenShell", wire.GroupFiles: "agentsh and OpenShell", wire.GroupWorkspace: "agentsh",
	} {
		if held[group] != want {
			t.Errorf("%s: %q, want %q", group, held[group], want)
		}
	}
	if left := d.Names(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
