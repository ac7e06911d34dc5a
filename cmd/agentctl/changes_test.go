package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// deepDir is a directory of the repository with a path of 3,000 bytes.
var deepDir = strings.Repeat(strings.Repeat("d", 230)+"/", 13)

// makesNames is a run whose agent makes empty files with long names in a deep directory
// of the repository, and a directory that exists already is no new tree.
func makesNames(t testing.TB, files int) *fixture {
	t.Helper()
	p := newFixture(t, fmt.Sprintf("cd %s; i=0; while [ $i -lt %d ]; do : >$i.%s; i=$((i+1)); done", deepDir, files, strings.Repeat("n", 230)),
		"security: {enabled: false}")
	if err := os.MkdirAll(p.path("repo/"+deepDir), 0o755); err != nil {
		t.Fatal(err)
	}
	p.write("repo/"+deepDir+"there", "", 0o644)
	p.git("add", "-A")
	p.git("commit", "-q", "-m", "deep")
	return p
}

// checkNames runs and checks that every file came out.
func (p *fixture) checkNames(files int, args ...string) {
	p.t.Helper()
	if out, err := p.command(p.runArgs(append(args, "--quiet")...)...).CombinedOutput(); err != nil {
		p.t.Fatalf("%v %s", err, out[max(0, len(out)-2000):])
	}
	entries, err := os.ReadDir(filepath.Join(p.path("out/files"), deepDir))
	if err != nil || len(entries) != files {
		p.t.Errorf("%d files, %v", len(entries), err)
	}
}

// The names of the changed files are more than one message can hold.
func TestChangedFilesWithMoreNamesThanAMessageHolds(t *testing.T) {
	t.Parallel()
	makesNames(t, 1400).checkNames(1400)
}

// BenchmarkChangeRecord is a run whose change record has 22 MiB of names. It reports
// the highest resident memory of agentctl, of its supervisor and of the file server.
func BenchmarkChangeRecord(b *testing.B) {
	const files = 7_000
	peaks := map[string]int{}
	for b.Loop() {
		b.StopTimer()
		p := makesNames(b, files)
		done, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			for tick := time.NewTicker(20 * time.Millisecond); ; {
				select {
				case <-done:
					return
				case <-tick.C:
					notePeaks(peaks, os.Getpid(), 0)
				}
			}
		}()
		b.StartTimer()
		p.checkNames(files)
		close(done)
		<-ended
	}
	for name, kib := range peaks {
		b.ReportMetric(float64(kib)/1024, "MiB-"+name)
	}
}

// notePeaks notes the highest resident memory, in KiB, of the processes of a run below
// a process.
func notePeaks(peaks map[string]int, pid, depth int) {
	for _, child := range childrenOf(pid) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)) // it may have ended
		name, _, _ := strings.Cut(string(line), "\x00")
		name = filepath.Base(name)
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", child))
		_, after, found := strings.Cut(string(status), "VmHWM:")
		if fields := strings.Fields(after); found && name != "git" {
			kib, _ := strconv.Atoi(fields[0])
			peaks[name] = max(peaks[name], kib)
		}
		if depth < 3 {
			notePeaks(peaks, child, depth+1)
		}
	}
}
