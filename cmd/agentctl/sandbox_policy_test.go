package main

import (
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller/boxes"
)

// TestASandboxSaysWhatThePolicyRefused has a command start what the policy refuses.
func TestASandboxSaysWhatThePolicyRefused(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "exit 1", "")
	p.must("sandbox", "create", "--policy", "policy.yaml")
	for range 2 {
		r := object[boxes.Result](p, "sandbox", "exec", "--json", "latest", "--", "sh", "-c", "/usr/bin/kill 1; exit 3")
		if len(r.Refusals) == 0 || r.Refusals[len(r.Refusals)-1].Rule != "block-kill" || r.ExitCode != 3 {
			t.Errorf("%+v", r)
		}
	}
	out, err := p.agentctl("", "sandbox", "exec", "latest", "--", "sh", "-c", "/usr/bin/kill 1; exit 3")
	if err == nil || !strings.Contains(out, " (rule block-kill, ") {
		t.Errorf("%v %s", err, out)
	}
	out, err = p.agentctl("", "sandbox", "exec", "latest", "--", "kill", "1")
	if err == nil || strings.Count(out, "denied") != 1 {
		t.Errorf("%v %s", err, out)
	}
	p.must("sandbox", "delete", "latest")
}

// TestThePoliciesOfThePackagesMakeSandboxes uses each that judges a workspace.
func TestThePoliciesOfThePackagesMakeSandboxes(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "exit 1", "")
	for _, name := range []string{"agent-sandbox", "agent-strict", "default"} {
		file, err := filepath.Abs("../../packaging/policies/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		p.must("sandbox", "create", "--policy", file, "--repo", "repo")
		if out := p.must("sandbox", "exec", "latest", "--", "git", "log", "--oneline"); !strings.Contains(out, "first") {
			t.Errorf("%s: %s", name, out)
		}
		p.must("sandbox", "delete", "latest")
	}
}

// TestASandboxThatCannotBeMadeSaysWhatToWrite holds that nobody reads of the harness that agentctl makes.
func TestASandboxThatCannotBeMadeSaysWhatToWrite(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "exit 1", "")
	for want, flags := range map[string][]string{
		"--image NAME": {"--policy", "policy.yaml", "--backend", "docker"},
		"name a file that exists; a relative path starts from the current directory": {"--policy", "nosuch"},
		"container is a mapping of keys":                                             {"--spec", "spec.json"},
		"--policy FILE":                                                              {},
	} {
		p.write("spec.json", `{"policy": "policy.yaml", "container": "x"}`, 0o644)
		for _, command := range [][]string{{"sandbox", "create"}, {"mcp"}} {
			if command[0] == "mcp" && (want == "container is a mapping of keys" || want == "--image NAME") {
				continue
			}
			out, err := p.agentctl("", append(command, flags...)...)
			if err == nil || !strings.Contains(out, want) || strings.Contains(out, "/agentctl-") || strings.Contains(out, "in the harness") {
				t.Errorf("%v %v: %v\n%s", command, flags, err, out)
			}
		}
	}
}
