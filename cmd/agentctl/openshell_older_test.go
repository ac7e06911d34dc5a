package main

import (
	"os"
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
