package main

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/testenv"
)

// TestPolicyRenderTakesTheNameOfAPolicyOfThePackages has a mount namespace with these policies in /etc.
func TestPolicyRenderTakesTheNameOfAPolicyOfThePackages(t *testing.T) {
	t.Parallel()
	testenv.Need(t, testenv.Root)
	packs, err := filepath.Abs("../../packaging/policies")
	if err != nil {
		t.Fatal(err)
	}
	p := newFixture(t, "true", "")
	render := func(name, without string) (string, int) {
		t.Helper()
		cmd := exec.Command("unshare", "-m", "sh", "-ec", `mount -t tmpfs none /etc; mkdir -p /etc/agentsh; cp -r "$1" /etc/agentsh/policies
exec "$2" policy render "$3" --for openshell --without "$4"`, "sh", packs, p.bin+"/agentctl", name, without)
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	const without = "commands,env,file_metadata,file_operations,file_parts,loopback,signals"
	if out, code := render("plain", without); code != 0 || !strings.Contains(out, "/etc/agentsh/policies/plain.yaml:") {
		t.Errorf("by its name: %d %s", code, out)
	}
	if out, code := render("plain", "env"); code != controller.ExitConfiguration ||
		!strings.Contains(out, "/etc/agentsh/policies/plain.yaml:") {
		t.Errorf("what is not held: %d %s", code, out)
	}
	out, code := render("plaim", without)
	if code != controller.ExitConfiguration || !strings.Contains(out, "Or name a policy of the packages: agent-sandbox, ") {
		t.Errorf("a name that is none: %d %s", code, out)
	}
}
