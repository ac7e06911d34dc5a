package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"agentsh/internal/testenv"
)

// alike replaces text that differs between runs.
var alike = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`\b(b?)\d{8}t\d{6}-[0-9a-f]{8}\b`), "${1}20260122t101500-1a2b3c4d"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "2026-01-22 10:15:00"},
	{regexp.MustCompile(`\b\d\d:\d\d:\d\d\b`), "10:15:00"},
	{regexp.MustCompile(`\b(\d+m)?[0-9.]+m?s\b`), "1s"},
	{regexp.MustCompile(`\b[0-9a-f]{12} Say two`), "1a2b3c4d5e6f Say two"},
	{regexp.MustCompile("(?m)^```"), "~~~"}, // a fence within a fence of the page
	{regexp.MustCompile(` +`), " "},         // columns are as wide as their longest word
}

func (p *fixture) alike(text string) []string {
	text = strings.ReplaceAll(text, p.dir, "/work")
	for _, a := range alike {
		text = a.what.ReplaceAllString(text, a.with)
	}
	return strings.Split(strings.TrimRight(text, "\n"), "\n")
}

// matches compares output with the text of the page. "..." matches any lines.
func matches(got, want []string) bool {
	if len(want) == 0 {
		return len(got) == 0
	}
	if want[0] == "..." {
		for i := range len(got) + 1 {
			if matches(got[i:], want[1:]) {
				return true
			}
		}
		return false
	}
	return len(got) > 0 && got[0] == want[0] && matches(got[1:], want[1:])
}

// TestTheRunsPageIsTrue writes the files of doc/runs.md and runs its commands.
func TestTheRunsPageIsTrue(t *testing.T) {
	t.Parallel()
	testenv.Need(t, testenv.Program("ssh"), testenv.Program("scp"))
	p := newFixture(t, "", "")
	p.write("policy.yaml", p.read("policy.yaml")+"\nssh: {sessions: true}\n", 0o644)
	var run *going
	commands := 0
	for _, f := range fencesOf(t, "../../doc/runs.md") {
		if name, ok := strings.CutPrefix(f.info, "file "); ok {
			p.write(name, f.text, 0o755)
			continue
		}
		line, want, _ := strings.Cut(f.text, "\n")
		words := strings.Fields(line)
		if len(words) < 3 || words[0] != "$" {
			t.Fatalf("doc/runs.md:%d: %q is no command", f.line, line)
		}
		commands++
		if f.info == "console background" {
			run = p.startAs("| waiting", words[2:])
			continue
		}
		cmd := p.command()
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", strings.TrimPrefix(line, "$ ")}
		cmd.Env = append(cmd.Env, "PATH="+p.bin+":"+os.Getenv("PATH"))
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run()
		if code := cmd.ProcessState.ExitCode(); code != 0 {
			fmt.Fprintf(&out, "exit code %d\n", code)
		}
		if got, want := p.alike(out.String()), p.alike(want); !matches(got, want) {
			t.Errorf("doc/runs.md:%d: printed\n%s\nthe page says\n%s", f.line, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if strings.HasSuffix(line, "/sandbox/workspace/go") {
			if code := run.wait(); code != 0 {
				t.Errorf("the run ended with %d", code)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(p.dir, "run.html")); err != nil {
		t.Error(err)
	}
	if commands < 10 {
		t.Errorf("%d commands", commands)
	}
}
