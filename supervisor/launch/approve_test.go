package launch_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/launch"
)

// An approval program has the nice value and the OOM score that the supervisor was started
// with, its own arguments, and no descriptor or variable of the supervisor.
func TestAnApprovalProgramHasNothingOfTheSupervisor(t *testing.T) {
	launch.KeepScore(1000)
	launch.KeepNice(19)
	dir := t.TempDir()
	program, seen := filepath.Join(dir, "ask"), filepath.Join(dir, "seen")
	script := `#!/bin/sh
read score </proc/self/oom_score_adj
{
	echo "$score $(nice)"
	for n in 3 4 5 6 7 8 9; do
		test ! -e /proc/$$/fd/$n || echo "descriptor $n"
	done
	tr '\0' '\n' </proc/$$/environ
	printf '[%s]\n' "$@"
	cat
} >"$1"
`
	if err := os.WriteFile(program, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 100<<10)
	if allowed, err := launch.Approve(t.Context(), []string{program, seen, "", long}, "a question"); !allowed || err != nil {
		t.Fatal(allowed, err)
	}
	text, err := os.ReadFile(seen)
	got := strings.ReplaceAll(string(text), long, "LONG")
	want := `1000 19
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
[` + seen + `]
[]
[LONG]
"a question"`
	if err != nil || got != want {
		t.Errorf("%v: %s", err, got)
	}
}

// A program that cannot be executed is an error and no decision.
func TestAnApprovalProgramThatCannotBeExecutedIsAnError(t *testing.T) {
	dir := t.TempDir()
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]error{filepath.Join(dir, "missing"): unix.ENOENT, dir: unix.EACCES, empty: unix.ENOEXEC} {
		allowed, err := launch.Approve(t.Context(), []string{program}, "a question")
		if allowed || !errors.Is(err, want) || !strings.Contains(err.Error(), program) {
			t.Errorf("%s: %v, %v", program, allowed, err)
		}
	}
}
