package main

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"agentsh/controller/batch"
)

// What a short run of a batch may cost.
const (
	mostProcessorTime = 150 * time.Millisecond // of all processes, for each run
	mostMemory        = 100 << 10              // KiB of agentctl
)

// shortRuns is the number of runs of the batch that is measured, and whether the bounds hold.
// AGENTSH_THOUSAND sets the number.
func shortRuns(t *testing.T) (n int, measured bool) {
	t.Helper()
	asked := os.Getenv("AGENTSH_THOUSAND")
	if asked == "" {
		return 24, false
	}
	n, err := strconv.Atoi(asked)
	if err != nil {
		t.Fatal(err)
	}
	return n, true
}

// halfway remembers the memory of agentctl when half of the lines of a batch were printed.
type halfway struct {
	lines  int // that are left until then
	memory func() int64
	at     int64 // KiB
	said   bytes.Buffer
}

func (h *halfway) Write(p []byte) (int, error) {
	if h.lines > 0 {
		if h.lines -= bytes.Count(p, []byte("\n")); h.lines <= 0 {
			h.at = h.memory()
		}
	}
	return h.said.Write(p)
}

// childTime is the processor time of the processes that ended below this one.
func childTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestShortRunsOfABatchAreCheap has a batch of runs that do nothing, 8 at once. All must be done,
// and only results, records and the batch may be left.
func TestShortRunsOfABatchAreCheap(t *testing.T) {
	n, measured := shortRuns(t)
	p := newBatchFixture(t, "true", "")
	p.writeBatch(n, "caps: {runs: 8}")
	p.write("tmp/kept", "", 0o644)
	p.setenv = []string{"TMPDIR=" + p.path("tmp")}
	adopt(t)
	cmd := p.command("batch", "batch.yaml")
	said := &halfway{lines: n, memory: func() int64 { return peakMemory(cmd.Process.Pid) }} // a run has two lines
	cmd.Stdout, cmd.Stderr = said, said
	used, began := childTime(t), time.Now()
	ended, memory := start(t, cmd)
	<-ended
	took := time.Since(began)
	waitOrphans(t)
	each := (childTime(t) - used) / time.Duration(n)
	if v := p.view(); !cmd.ProcessState.Success() || v.Status != batch.StatusDone || v.Counts.Done() != n {
		t.Fatalf("%s\n%s", cmd.ProcessState, said.said.String())
	}
	t.Logf("%d runs in %s, each %s of processor time; memory of agentctl: %d KiB after half of them, %d KiB at the end",
		n, took.Round(time.Millisecond), each.Round(time.Millisecond), said.at, memory.Load())
	if left, err := os.ReadDir(p.path("tmp")); err != nil || len(left) != 1 {
		t.Errorf("temporary files: %v, %v", left, err)
	}
	if measured && each > mostProcessorTime {
		t.Errorf("%s of processor time for each run, at most %s", each, mostProcessorTime)
	}
	if memory.Load() > mostMemory || said.at == 0 {
		t.Errorf("%d KiB of memory, at most %d", memory.Load(), mostMemory)
	}
}
