package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller/record"
)

// TestWorkIsDeliveredWhereTheRecordCannotBeCleanedUp puts a directory in the place of the operators' socket, which
// the run then cannot remove.
func TestWorkIsDeliveredWhereTheRecordCannotBeCleanedUp(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo agent at work; while [ ! -e go ]; do sleep 0.05; done; echo two >a.txt", "")
	g := p.start("agent at work")
	sockets, err := filepath.Glob(p.path("state/agentsh/runs/*/socket"))
	if err != nil || len(sockets) != 1 {
		t.Fatal(sockets, err)
	}
	p.must("sandbox", "exec", "latest", "--", "touch", "go")
	if err := os.Remove(sockets[0]); err != nil {
		t.Fatal(err)
	}
	p.write("state/agentsh/runs/"+filepath.Base(filepath.Dir(sockets[0]))+"/socket/file", "", 0o600)
	if code := g.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := p.read("out/" + record.ResultFile); got == "" {
		t.Error("nothing was delivered")
	}
	if !strings.Contains(g.errs.String(), "agentctl: warning: ") {
		t.Error("no warning")
	}
	if err := os.RemoveAll(sockets[0]); err != nil {
		t.Fatal(err)
	}
}
