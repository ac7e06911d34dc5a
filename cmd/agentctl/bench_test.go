package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/internal/testenv"
)

// BenchmarkRun is a whole run with an agent that changes ten files, in
// repositories of several sizes. It reports further times in milliseconds: the
// time of the run without the agent, each step, the extraction of the work, and
// the processor time of all processes of the run on the host.
func BenchmarkRun(b *testing.B) {
	for _, files := range []int{1000, 10_000, 100_000} {
		b.Run(fmt.Sprintf("%dfiles", files), func(b *testing.B) { benchRun(b, files) })
	}
}

func benchRun(b *testing.B, files int) {
	p := newFixture(
		b,
		`for i in 0 1 2 3 4 5 6 7 8 9; do echo changed > "d$i/f$i.txt"; done; git commit -q -m changed d0 d1`,
		"security: {enabled: true}",
	)
	p.fillRepo(files)
	sums := map[string]time.Duration{}
	memory := int64(0) // KiB
	for b.Loop() {
		cmd := p.command(p.runArgs("--quiet")...)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		began := time.Now()
		ended, used := start(b, cmd)
		<-ended
		took := time.Since(began)
		if !cmd.ProcessState.Success() {
			b.Fatalf("%v\n%s", cmd.ProcessState, &out)
		}
		memory = max(memory, used.Load())
		var r controller.Result
		p.readJSON("out/result.json", &r)
		var record record.Record
		p.readJSON(strings.TrimPrefix(r.Record, p.dir+"/")+"/record.json", &record)
		agent := r.Iterations[0].Duration
		sums["overhead"] += took - agent
		for _, s := range record.Steps {
			d := s.Ended.Sub(s.Started)
			if s.Name == "iterations" {
				d -= agent
			}
			sums[s.Name] += d
		}
		sums["cpu"] += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	for name, sum := range sums {
		b.ReportMetric(float64(sum.Microseconds())/1000/float64(b.N), name+"-ms")
	}
	b.ReportMetric(float64(memory)/1024, "most-MiB")
}

// BenchmarkRunBySSH is a run over ssh to this machine and a local one, in turn. It reports the medians of both in milliseconds, and
// the ratio. Both are in memory: ext4 gives no inode again within five seconds of its deletion, and each run would search
// past those that the run before has deleted (recently_deleted in fs/ext4/ialloc.c of Linux).
func BenchmarkRunBySSH(b *testing.B) {
	p := newFixtureAt(b, func(dir string) { mountTmpfs(b, dir, "1g") }, "for i in 0 1 2 3 4 5 6 7 8 9; do echo changed > d$i/f$i.txt; done; git commit -q -m changed d0 d1",
		"security: {enabled: true}")
	p.fillRepo(1000)
	at := p.path("at")
	if err := os.Mkdir(at, 0o755); err != nil {
		b.Fatal(err)
	}
	place := testenv.SSHPlace(b, at)
	ways := map[string][]string{"local": nil, "ssh": {"--backend", "ssh", "--connect", place}}
	took := map[string][]float64{}
	for b.Loop() {
		for name, more := range ways {
			began := time.Now()
			if out, err := p.command(p.runArgs(append([]string{"--quiet"}, more...)...)...).CombinedOutput(); err != nil {
				b.Fatalf("%s: %v\n%s", name, err, out)
			}
			took[name] = append(took[name], time.Since(began).Seconds()*1000)
		}
	}
	median := func(name string) float64 {
		slices.Sort(took[name])
		return took[name][len(took[name])/2]
	}
	b.ReportMetric(median("local"), "local-ms")
	b.ReportMetric(median("ssh"), "ssh-ms")
	b.ReportMetric(median("ssh")/median("local"), "x")
}

func (p *fixture) readJSON(name string, v any) {
	p.t.Helper()
	if err := json.Unmarshal([]byte(p.read(name)), v); err != nil {
		p.t.Fatal(err)
	}
}

// fillRepo commits a number of small files, a hundred in a directory.
func (p *fixture) fillRepo(files int) {
	p.t.Helper()
	for i := range files {
		dir := p.path(fmt.Sprintf("repo/d%d", i/100))
		if i%100 == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				p.t.Fatal(err)
			}
		}
		text := strings.Repeat(fmt.Sprintf("line of file %d\n", i), 20+i%50)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d.txt", i%100)), []byte(text), 0o644); err != nil {
			p.t.Fatal(err)
		}
	}
	p.git("config", "gc.auto", "0")
	p.git("config", "maintenance.auto", "false")
	p.git("add", "-A")
	p.git("commit", "-q", "-m", "files")
	p.git("gc", "-q")
}
