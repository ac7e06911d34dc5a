package main

import (
	"testing"
	"time"
)

// TestAClientIsAnsweredBeforeItsSandboxIsThere has a sandbox that is made slowly, and then not at all. Clients that
// wait for 5 seconds only have the tools, and their calls the reason.
func TestAClientIsAnsweredBeforeItsSandboxIsThere(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "exit 1", "pre_script: pre.sh")
	p.write("pre.sh", "#!/bin/sh\nwhile [ ! -e "+p.path("go")+" ]; do sleep 0.1; done\nexit 1\n", 0o755)
	start := time.Now()
	b := serveRun(p, "harness.yaml")
	if took := time.Since(start); took < earlyWait {
		t.Errorf("answered after %s", took)
	}
	p.write("go", "", 0o644)
	for range 2 {
		b.fails("exec", args{"command": "true"}, "there is no sandbox: pre_script: ", "exit status 1")
	}
	_ = b.session.Close() // the failure of the program
	if code := b.cmd.ProcessState.ExitCode(); code != 2 {
		t.Errorf("exit code %d\n%s", code, b.stderr)
	}
	b.want(b.stderr.String(), "agentctl: pre_script: ", "agentctl: hint: ")
}
