package harness

import (
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// hundred creates 100 harnesses, each on five bases of its own, with realistic policies,
// scripts and variables.
func hundred(b *testing.B) string {
	b.Helper()
	files := tests{
		"policies/p.yaml":   "version: 1\nname: p\ncommand_rules: [{name: all, commands: ['*'], decision: allow}]\n",
		"scripts/s.sh":      "",
		"env/t.env":         "A_TOOL=${X}\n",
		"skills/s/SKILL.md": "",
	}
	for i := range 100 {
		for depth := range 6 {
			var text strings.Builder
			if depth < 5 {
				fmt.Fprintf(&text, "base: h%d-%d.yaml\n", i, depth+1)
			} else {
				text.WriteString(head + "runtime: command\ncommand: [x]\n")
			}
			fmt.Fprintf(
				&text,
				"description: layer %d\npolicy: policies/p.yaml\npre_script: scripts/s.sh\nskills: [skills/s]\ntimeout_minutes: %d\n",
				depth,
				depth,
			)
			fmt.Fprintf(&text, "validation_loop: {script: scripts/s.sh, max_iterations: 2}\n")
			fmt.Fprintf(&text, "host_files:\n  - {src: env/t.env, dest: /sandbox/workspace/.env.d/t%d.env, expand: true}\n", depth)
			text.WriteString("env:\n")
			for _, side := range []string{"runner", "sandbox"} {
				fmt.Fprintf(&text, "  %s:\n", side)
				for v := range 10 {
					fmt.Fprintf(&text, "    VAR_%d_%d: \"${HOST_%d}\"\n", depth, v, v)
				}
			}
			fmt.Fprintf(
				&text,
				"forge:\n  github: {env: {runner: {FORGE: github}, sandbox: {FORGE: github, LAYER: '%d'}}}\n  gitlab: {env: {runner: {FORGE: gitlab}}}\n",
				depth,
			)
			files[fmt.Sprintf("harness/h%d-%d.yaml", i, depth)] = text.String()
		}
	}
	return lay(b, files)
}

// BenchmarkHundredHarnesses lints and renders 100 harnesses with five bases
// each: at most 300 ms and 40 MB.
func BenchmarkHundredHarnesses(b *testing.B) {
	dir := hundred(b)
	var peak uint64
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		l := NewLoader(Options{Forge: "github"})
		for i := range 100 {
			h, ps := l.Load(filepath.Join(dir, fmt.Sprintf("harness/h%d-0.yaml", i)))
			if h == nil {
				b.Fatal(ps)
			}
			if err := h.Render(io.Discard); err != nil {
				b.Fatal(err)
			}
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapSys-m.HeapReleased)
	}
	b.ReportMetric(float64(peak)/1e6, "MB-heap")
	b.ReportMetric(float64((cpuTime(b)-before).Milliseconds())/float64(b.N), "cpu-ms/op")
}

// cpuTime is the processor time of the process: other work on the machine does
// not count.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
