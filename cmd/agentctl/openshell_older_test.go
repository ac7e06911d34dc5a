package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/internal/openshelldouble"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// TestRunsByOpenShellsProgram has a gateway of 0.0.83, which is found as its program finds it.
func TestRunsByOpenShellsProgram(t *testing.T) {
	t.Parallel()
	testenv.Need(t, testenv.Program("ssh"))
	d := openshelldouble.New(t)
	of := d.Program("0.0.83")
	p := newFixture(t, `env >a.txt; git commit -qam changed`, "image: "+openshelldouble.Image+"\nbackend: openshell\n")
	p.setenv = append(p.setenv, of.Environ...)
	i := slices.IndexFunc(of.Environ, func(v string) bool { return strings.HasPrefix(v, "XDG_CONFIG_HOME=") })
	config := filepath.Join(strings.TrimPrefix(of.Environ[i], "XDG_CONFIG_HOME="), "agentsh")
	if err := os.MkdirAll(config, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "agentctl.yaml"), []byte("openshell: {"+given+"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, code := p.run()
	if code != 0 || r.Backend != "openshell" || r.Image == nil || r.Image.Name != openshelldouble.Image || len(r.Commits) != 1 {
		t.Fatalf("exit code %d: %+v, image %+v", code, r.Error, r.Image)
	}
	i = slices.IndexFunc(r.Guarantees, func(g controller.Guarantee) bool { return g.Group == wire.GroupNetwork })
	if i < 0 || !strings.Contains(r.Guarantees[i].HeldBy, "OpenShell") || r.PlaceLog != nil {
		t.Errorf("who holds the network: %+v, log %+v", r.Guarantees, r.PlaceLog)
	}
	if left := of.Names(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	for _, call := range of.Calls() {
		if strings.Contains(call, "value-of-no-use") {
			t.Errorf("a value of the host is in the command line: %s", call)
		}
	}
}

// TestTheRecipeForSSHRunsNoFilesOfTheAgent has the recipe of doc/platforms/openshell.md in a sandbox whose home directory has
// files that shells read at their start.
func TestTheRecipeForSSHRunsNoFilesOfTheAgent(t *testing.T) {
	testenv.Need(t, testenv.Program("ssh"))
	d := openshelldouble.New(t)
	of := d.Program("0.0.83")
	p := newFixture(t, `echo two >a.txt; git commit -qam changed`, "")
	p.setenv = append(p.setenv, of.Environ...)
	p.write("policy-of-openshell.yaml", "version: 1\nfilesystem_policy: {}\n", 0o644)
	for _, v := range of.Environ {
		name, value, _ := strings.Cut(v, "=")
		t.Setenv(name, value)
	}
	openshell := func(args ...string) []byte {
		out, err := exec.Command("openshell", append([]string{"--gateway", "double", "sandbox"}, args...)...).Output()
		if err != nil {
			t.Fatalf("openshell %q: %v", args, err)
		}
		return out
	}
	openshell("create", "--name", "agent", "--no-auto-providers", "--no-tty", "--from", openshelldouble.Image,
		"--policy", p.path("policy-of-openshell.yaml"), "--", "true")
	p.write("openshell.ssh", string(openshell("ssh-config", "agent")), 0o644)
	for _, name := range []string{".bash_profile", ".bash_login", ".profile", ".bashrc"} {
		if err := os.WriteFile(filepath.Join(of.Home("agent"), name), []byte("echo ran >>"+p.path("ran")+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	page := p.readFile("../../doc/platforms/openshell.md")
	_, recipe, is := strings.Cut(page, "agentctl run harness.yaml --repo repo --backend exec \\\n        --connect \"")
	recipe, _, ends := strings.Cut(recipe, "\n    openshell sandbox delete agent")
	if !is || !ends {
		t.Fatal("the page has no recipe")
	}
	recipe = strings.ReplaceAll(strings.ReplaceAll(strings.TrimSuffix(recipe, "\""), `\"`, `"`), "-F openshell.ssh", "-F "+p.path("openshell.ssh"))
	p.place = []string{"--backend", "exec", "--connect", recipe}
	r, code := p.run()
	if code != 0 || len(r.Commits) != 1 {
		t.Fatalf("exit code %d: %+v", code, r.Error)
	}
	if _, err := os.Stat(p.path("ran")); err == nil {
		t.Error("files of the agent were run outside of its session")
	}
}
