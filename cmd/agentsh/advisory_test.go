package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// Where no engine is allowed, every place that shows a session says that rules about nested
// programs are advisory.
func TestAdvisoryRulesAreShownAsSuchEverywhere(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.Landlock)
	const uid = 60600
	outer := testenv.OuterProgram(t)
	dir := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		"agentsh": string(self), "agentctl": "#!/bin/sh\n", "work/f": "", "run/.keep": "", "tmp/.keep": "", "state/.keep": "",
		"policy.yaml": "version: 1\nname: advisory\ncommand_rules:\n  - {name: no-id, commands: [id], decision: deny}\n" +
			"  - {name: rest, commands: ['*'], decision: allow}\nfile_rules:\n" +
			"  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**'], operations: ['*'], decision: allow}\n" +
			"  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}\n",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(data), 0o755); err != nil { //nolint:gosec // another user runs it
			t.Fatal(err)
		}
	}
	for _, name := range []string{"work", "run", "tmp", "state"} {
		path := filepath.Join(dir, name)
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// One listener is above all of them: a session ends with it.
	places := []string{
		"exec $flags -- echo ran", "session create --name one $flags", "exec --session one -- true", "mcp --session one",
		"session list", "session list --json",
		"events", "events --json", "report", "session destroy one", "detect --degraded nested_commands,cgroup",
	}
	script := `flags="--config /dev/null -p ../policy.yaml -w . --degraded nested_commands,cgroup"` + "\n"
	for n, place := range places {
		script += fmt.Sprintf("../agentsh %s >../tmp/%d 2>&1 || { cat ../tmp/%d; exit 1; }\n", place, n, n)
	}
	cmd := exec.CommandContext(t.Context(), outer, "whole", "/bin/sh", "-c", script)
	cmd.Dir = filepath.Join(dir, "work")
	cmd.Env = []string{"OUTER_UID=60600", "PATH=" + os.Getenv("PATH"), "HOME=/nonexistent", "NO_COLOR=1",
		"TMPDIR=" + filepath.Join(dir, "tmp"), "XDG_STATE_HOME=" + filepath.Join(dir, "state"), "XDG_RUNTIME_DIR=" + filepath.Join(dir, "run")}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const note = "rules about programs that a command starts are advisory"
	for n, place := range places {
		out, err := os.ReadFile(filepath.Join(dir, "tmp", strconv.Itoa(n)))
		want := note
		switch name, _, _ := strings.Cut(place, " --"); name {
		case "exec $flags":
			want = "agentsh: note: " + note + ": nothing stops them\nran\n"
		case "detect":
			want = "\ncommands                     advisory    the first program"
		case "session create", "session destroy one":
			continue
		}
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("agentsh %s: %v\n%s", place, err, out)
		}
	}
}
