package main

import (
	"os"
	"strings"
	"testing"
)

// TestTheTelemetryPageIsTrue runs the commands of doc/telemetry.md. The collector of the page is a
// double at another port.
func TestTheTelemetryPageIsTrue(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo two > a.txt", "")
	c := newRequests(t)
	commands := 0
	for _, f := range fencesOf(t, "../../doc/telemetry.md") {
		if name, ok := strings.CutPrefix(f.info, "file "); ok {
			p.write(name, f.text, 0o644)
			continue
		}
		commands++
		line, want, _ := strings.Cut(f.text, "\n")
		cmd := p.command()
		line = strings.ReplaceAll(strings.TrimPrefix(line, "$ "), "http://127.0.0.1:4318", c.URL)
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", line}
		cmd.Env = append(cmd.Env, "PATH="+p.bin+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		if got, want := p.alike(string(out)), p.alike(want); err != nil || !matches(got, want) {
			t.Errorf("doc/telemetry.md:%d: %v printed\n%s\nthe page says\n%s", f.line, err, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if commands < 1 || c.seen["/v1/logs"] == 0 || c.seen["/v1/traces"] == 0 {
		t.Errorf("%d commands, requests %v", commands, c.seen)
	}
}
