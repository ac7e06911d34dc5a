package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// TestTheSandboxesPageIsTrue runs the commands of doc/sandboxes.md, and holds that it names every method.
func TestTheSandboxesPageIsTrue(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "", "")
	commands := 0
	for _, f := range fencesOf(t, "../../doc/sandboxes.md") {
		if f.info != "console" {
			continue
		}
		commands++
		line, want, _ := strings.Cut(f.text, "\n")
		cmd := p.command()
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", strings.TrimPrefix(line, "$ ")}
		cmd.Env = append(cmd.Env, "PATH="+p.bin+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if got, want := p.alike(string(out)), p.alike(want); err != nil || !matches(got, want) {
			t.Errorf("doc/sandboxes.md:%d: %v printed\n%s\nthe page says\n%s", f.line, err, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	p.must("sandbox", "delete", "latest")
	if commands < 5 {
		t.Errorf("%d commands", commands)
	}
}

// TestSolutionsAreGradedInParallel runs the example.
func TestSolutionsAreGradedInParallel(t *testing.T) {
	t.Parallel()
	testenv.Need(t, testenv.Program("python3"))
	p := newFixture(t, "", "")
	client, err := os.ReadFile("../../examples/sandboxes/agentsh_sandboxes.py")
	if n := strings.Count(string(client), "\n"); err != nil || n > 100 {
		t.Errorf("the client has %d lines, %v", n, err)
	}
	script, err := filepath.Abs("../../examples/sandboxes/grade.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/usr/bin/python3", "-B", script)
	cmd.Dir, cmd.Env = p.dir, slices.Concat(p.command().Env, []string{"PATH=" + p.bin + ":/usr/bin:/bin"})
	out, err := cmd.CombinedOutput()
	const want = `a01 passed
a02 passed
a03 failed: roman(4) is IIII, not IV
a04 failed: it takes too long
a05 failed: refused printf 1
a06 failed: refused read /etc/passwd
a07 failed: refused sh -c rm -rf /sandbox
a08 failed: refused 192.0.2.1:80
a09 passed
a10 failed: SyntaxError: expected ':'
`
	if got := strings.ReplaceAll(string(out), "sh -c -- ", "sh -c "); err != nil || got != want { // -- since glibc 2.41
		t.Errorf("%v\n%s", err, out)
	}
}
