package testenv

import (
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// outerEnv has the name of a run below the listener of test/outer.
const outerEnv = "AGENTSH_TEST_OUTER"

// Outer is the name of this run of a test below the listener of test/outer; empty: it is none.
func Outer() string { return os.Getenv(outerEnv) }

// Below runs a test again, under a name, below the listener of test/outer in one of its modes.
// The run logs "held: NAME" at its end.
func Below(t *testing.T, test, mode, name string, env ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	outer := OuterProgram(t)
	program := filepath.Join(filepath.Dir(outer), "program") // another user can read it there
	data, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(program, data, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), outer, mode, program, "-test.run=^"+test+"$", "-test.v", "-test.timeout=5m")
	// Which engine a session gets there is what is tested.
	cmd.Env = append(append(os.Environ(), outerEnv+"="+name, "AGENTSH_ENGINE="), env...)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "held: "+name) {
		t.Errorf("%s below %s: %v\n%s", name, mode, err, out)
	}
}

// Answers has the listener above a run of [Below] answer in another way: see test/outer/outer.c.
func Answers(t *testing.T, how unix.Signal) {
	t.Helper()
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, unix.SIGUSR2)
	defer signal.Stop(changed)
	outer, err := os.FindProcess(os.Getppid())
	if err == nil {
		err = outer.Signal(how) // by pidfd_send_signal, which the listener does not take
	}
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	case <-time.After(2 * time.Minute):
		t.Fatal("the listener does not change its answers")
	}
}

// OuterProgram compiles test/outer, the program with a seccomp listener, and returns its path.
func OuterProgram(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return Compile(t, "test/outer/outer.c", filepath.Join(dir, "outer"))
}

// Compile compiles a C program of this tree, and returns its path.
func Compile(t testing.TB, source, program string) string {
	t.Helper()
	source = filepath.Join(root(t), source)
	cmd := exec.CommandContext(t.Context(), "cc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", source, err, out)
	}
	return program
}

// root returns the directory of this tree: a test runs in that of its package.
func root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above the directory of the test")
	return ""
}
