package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/cmd/agentctl/output"
)

// fence is a fenced block of a page.
type fence struct {
	info string
	text string
	line int
}

func fencesOf(t *testing.T, file string) []fence {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []fence
	inside := false
	for i, line := range strings.SplitAfter(string(data), "\n") {
		switch {
		case strings.HasPrefix(line, "```") && !inside:
			inside = true
			out = append(out, fence{info: strings.TrimSpace(line[3:]), line: i + 1})
		case strings.HasPrefix(line, "```"):
			inside = false
		case inside:
			out[len(out)-1].text += line
		}
	}
	return out
}

// TestTheScanPageIsTrue writes the files of doc/scan.md and runs its commands.
func TestTheScanPageIsTrue(t *testing.T) {
	fences := fencesOf(t, "../../doc/scan.md")
	t.Chdir(t.TempDir())
	commands := 0
	for _, f := range fences {
		if name, ok := strings.CutPrefix(f.info, "file "); ok {
			if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(name, []byte(f.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if f.info != "console" {
			continue
		}
		command, want, _ := strings.Cut(f.text, "\n")
		words := strings.Fields(command)
		if len(words) < 3 || words[0] != "$" || words[1] != "agentctl" {
			t.Fatalf("doc/scan.md:%d: %q is no command of agentctl", f.line, command)
		}
		commands++
		root := newRoot()
		var out bytes.Buffer
		root.SetArgs(words[2:])
		root.SetOut(&out)
		root.SetErr(&out)
		if code := output.Report(root.Execute(), &out); code != 0 {
			fmt.Fprintf(&out, "exit code %d\n", code)
		}
		if out.String() != want {
			t.Errorf("doc/scan.md:%d: printed\n%s\nthe page says\n%s", f.line, out.String(), want)
		}
	}
	if commands < 3 {
		t.Errorf("%d commands", commands)
	}
}
