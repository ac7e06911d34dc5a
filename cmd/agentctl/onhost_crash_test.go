package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// newOnHostCrash is a [crashFixture] whose agent works on the host.
func newOnHostCrash(t *testing.T, size string) *crashFixture {
	t.Helper()
	p := newCrashFixture(t, size)
	for dir := p.dir; dir != os.TempDir() && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	p.write("bin/agent", hostAgent+`set -e
call exec '{"command": "echo half > a.txt; git commit -q -a -m half; echo more > b.txt; echo report > ../output/report.txt"}'
echo agent at work
`, 0o755)
	const inside = "/sandbox/claude-config/skills/task/run.sh"
	p.write("harness.yaml", strings.Replace(p.read("harness.yaml"), inside, "'"+p.path("bin/agent")+"'", 1)+
		"\ncontainer: {harness: false}\n", 0o644)
	return p
}

// onHostSteps are the steps in which there is a program on the host, or what it left.
func onHostSteps(t *testing.T, steps []string) []string {
	t.Helper()
	first := slices.Index(steps, "agent_host")
	if first < 0 {
		t.Fatalf("no step of the host: %s", steps)
	}
	return steps[first:]
}

func TestAFullDiskWhileTheProgramOnTheHostIsPreparedIsOneClearLine(t *testing.T) {
	steps, counts := rehearse(t, newOnHostCrash)
	fullAtAnyMoment(t, newOnHostCrash, steps, counts, []string{"agent_host"})
}

func TestAnAgentOnTheHostKilledAtAnyMomentLeavesNothing(t *testing.T) {
	steps, counts := rehearse(t, newOnHostCrash)
	killedAtAnyMoment(t, newOnHostCrash, steps, counts, onHostSteps(t, steps))
}
