package report

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/internal/wire"
)

// BenchmarkPage writes the page of a run with 15,000 events.
func BenchmarkPage(b *testing.B) {
	run := example(b, controller.StatusDone)
	var log []wire.Event
	for i := range 15_000 {
		log = append(log, wire.Event{
			Session: "S1", Time: run.Started.Add(time.Duration(i) * time.Millisecond), Type: wire.EventExec, Command: "c",
			Argv: []string{"compile", "-o", fmt.Sprint(i)}, Decision: "allow",
			Path: "/usr/lib/go/pkg/tool/linux_amd64/compile", Process: &wire.Process{PID: i}, Rule: &wire.RuleAt{
				Name: "everything-else", File: "policy.yaml", Line: 20, Column: 5,
			},
		})
	}
	data := chain(b, log)
	if err := os.WriteFile(filepath.Join(run.Path, record.AuditFile), data, 0o600); err != nil {
		b.Fatal(err)
	}
	for i := range run.Stored {
		if run.Stored[i].Name == record.AuditFile {
			run.Stored[i].Bytes, run.Stored[i].Of = int64(len(data)), int64(len(data))
		}
	}
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		r, err := Load(run)
		if err == nil {
			err = r.HTML(io.Discard)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
