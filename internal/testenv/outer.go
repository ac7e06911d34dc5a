package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
)

// Outer compiles test/outer, the program with a seccomp listener that tests run below, and
// returns its path.
func Outer(t testing.TB) string {
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
	_, here, _, _ := runtime.Caller(0)
	source = filepath.Join(filepath.Dir(here), "../..", source)
	cmd := exec.CommandContext(t.Context(), "cc", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", source, err, out)
	}
	return program
}
