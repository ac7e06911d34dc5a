package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// ways are how agentsh exec runs a command: in a session of its own, and in a
// running one.
func ways(t *testing.T, dir string) map[string][]string {
	t.Helper()
	session(t, dir, "one")
	return map[string][]string{
		"own session": {
			"exec",
			"-p",
			filepath.Join(dir, "policy.yaml"),
			"-w",
			filepath.Join(dir, "work"),
			"--audit",
			filepath.Join(dir, "own.jsonl"),
		},
		"running session": {"exec", "-s", "one"},
	}
}

// TestExecExitsAlikeAttachedAndDirect compares what the manual page says of exit
// statuses, streams and flags, with a session of its own and with a running one.
func TestExecExitsAlikeAttachedAndDirect(t *testing.T) {
	dir := workDir(t)
	if err := os.WriteFile(filepath.Join(dir, "work", "text"), []byte("no program\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("0123456789abcde\n", 2<<20) // 32 MiB: far above every buffer in between
	tests := []struct {
		name   string
		flags  []string
		argv   []string
		stdin  string
		code   int
		stdout string
		stderr string // what it must hold; empty: nothing at all
	}{
		{name: "success", argv: []string{"true"}},
		{name: "its own status", argv: []string{"sh", "-c", "echo out; echo err >&2; exit 7"}, code: 7, stdout: "out\n", stderr: "err\n"},
		{name: "a status that agentsh has too", argv: []string{"sh", "-c", "exit 124"}, code: 124},
		{name: "the highest status", argv: []string{"sh", "-c", "exit 255"}, code: 255},
		{
			name:   "timeout",
			flags:  []string{"--timeout", "100ms"},
			argv:   []string{"sh", "-c", "sleep 1000 & wait"},
			code:   124,
			stderr: "ended by its timeout",
		},
		{
			name:   "a timeout that TERM does not end",
			flags:  []string{"--timeout", "100ms"},
			argv:   []string{"sh", "-c", "trap '' TERM; while :; do sleep 1; done"},
			code:   124,
			stderr: "ended by its timeout",
		},
		{name: "a timeout that is not reached", flags: []string{"--timeout", "10m"}, argv: []string{"sh", "-c", "exit 3"}, code: 3},
		{
			name:   "a directory that is not there",
			argv:   []string{"true"},
			flags:  []string{"--cwd", "/no/such/directory"},
			code:   126,
			stderr: "agentsh: ",
		},
		{name: "no program", argv: []string{"./text"}, code: 126, stderr: "agentsh: "},
		{name: "denied", argv: []string{"kill", "-9", "1"}, code: 126, stderr: "agentsh: denied: kill -9 1 (rule no-kill"},
		{name: "not found", argv: []string{"no-such-program"}, code: 127, stderr: "agentsh: no-such-program: not found"},
		{name: "INT", argv: []string{"python3", "-c", "import os,signal; signal.signal(2, signal.SIG_DFL); os.kill(os.getpid(), 2)"}, code: 130},
		{name: "TERM", argv: []string{"python3", "-c", "import os; os.kill(os.getpid(), 15)"}, code: 143},
		{name: "KILL", argv: []string{"python3", "-c", "import os; os.kill(os.getpid(), 9)"}, code: 137},
		{name: "a variable", flags: []string{"--env", "PASSED=a=b c"}, argv: []string{"sh", "-c", "echo $PASSED"}, stdout: "a=b c\n"},
		{name: "an empty variable", flags: []string{"-e", "PASSED="}, argv: []string{"sh", "-c", "echo ${PASSED-unset}."}, stdout: ".\n"},
		{name: "the last of two", flags: []string{"-e", "PASSED=1", "-e", "PASSED=2"}, argv: []string{"sh", "-c", "echo $PASSED"}, stdout: "2\n"},
		{
			name:   "a variable that the policy drops",
			flags:  []string{"-e", "SECRET=1"},
			argv:   []string{"sh", "-c", "echo ${SECRET-unset}"},
			stdout: "unset\n",
		},
		{
			name:   "a variable that the policy sets",
			flags:  []string{"-e", "INJECTED=1"},
			argv:   []string{"sh", "-c", "echo $INJECTED"},
			stdout: "yes\n",
		},
		{name: "no input", argv: []string{"cat"}},
		{name: "input and its end", argv: []string{"cat"}, stdin: "no newline at the end", stdout: "no newline at the end"},
		{name: "large input", argv: []string{"sh", "-c", "exec wc -c"}, stdin: large, stdout: strconv.Itoa(len(large)) + "\n"},
		{name: "large input that comes back", argv: []string{"cat"}, stdin: large, stdout: large},
		{name: "large input that nobody reads", argv: []string{"sh", "-c", "exit 5"}, stdin: large, code: 5},
		{name: "large input of which the first line is read", argv: []string{"head", "-n", "1"}, stdin: large, stdout: large[:16]},
	}
	for way, flags := range ways(t, dir) {
		t.Run(way, func(t *testing.T) {
			for _, tt := range tests {
				t.Run(tt.name, func(t *testing.T) {
					cmd := program(t, dir, append(append(append(append([]string(nil), flags...), tt.flags...), "--"), tt.argv...)...)
					var stdout, stderr bytes.Buffer
					cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(tt.stdin), &stdout, &stderr
					expectEnd(t, cmd, tt.code)
					if got := stdout.String(); got != tt.stdout {
						t.Errorf("%d bytes of output, want %d: %.200q", len(got), len(tt.stdout), got)
					}
					if got := stderr.String(); !strings.Contains(got, tt.stderr) || tt.stderr == "" && got != "" {
						t.Errorf("errors %.500q, want %q", got, tt.stderr)
					}
				})
			}
		})
	}
}

// TestFailuresOfAgentshExitWith125 has no place to run a command in.
func TestFailuresOfAgentshExitWith125(t *testing.T) {
	dir := workDir(t)
	for name, flags := range map[string][]string{
		"own session":     {"-p", "none.yaml", "-w", "work"},
		"running session": {"-s", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			expectEnd(t, program(t, dir, append(append([]string{"exec"}, flags...), "--", "sh", "-c", "exit 3")...), 125)
		})
	}
}

// expectEnd runs a command to its end, which has to be an exit with a status.
func expectEnd(t *testing.T, cmd *exec.Cmd, want int) {
	t.Helper()
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Errorf("exit status %d, want %d", got, want)
	}
}
