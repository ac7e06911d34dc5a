package notify

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// BenchmarkNestedScript compares starting scripts below a command with the same
// outside, in turn. A script that commands can exchange is followed until its
// interpreter has opened it. It reports the medians and their ratios.
func BenchmarkNestedScript(b *testing.B) {
	bin, _ := place(b)
	dir := b.TempDir()
	scripts := map[string]string{"dash": "#!/bin/dash\nexit 0\n", "bash": "#!/bin/bash\nexit 0\n", "env": "#!/usr/bin/env bash\nexit 0\n",
		"perl": "#!/usr/bin/perl\nexit 0;\n", "python": "#!" + python(b) + " -IS\n", "node": "#!/usr/bin/node\nprocess.exit(0)\n",
		"head": "#!/usr/bin/head -c0\n"}
	for name, text := range scripts {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
			b.Fatal(err)
		}
		each := "200"
		if name == "node" || name == "python" {
			each = "20"
		}
		b.Run(name, func(b *testing.B) {
			spawn := func(text string, err error) float64 {
				n, bad := strconv.ParseFloat(strings.TrimSpace(text), 64)
				if err != nil || bad != nil {
					b.Fatalf("printed %q: %v", text, err)
				}
				return n
			}
			var native, supervised []float64
			for b.Loop() {
				out, err := exec.Command(filepath.Join(bin, "spawn"), file, each).Output()
				native = append(native, spawn(string(out), err))
				supervised = append(
					supervised,
					spawn(run(b, Config{Rules: identified(b, "/usr/bin/kill")}, filepath.Join(bin, "spawn"), file, each).out.String(), nil),
				)
			}
			b.ReportMetric(median(native)/1e3, "us/native")
			b.ReportMetric(median(supervised)/1e3, "us/supervised")
			b.ReportMetric(median(supervised)/median(native), "ratio")
			b.ReportMetric(0, "ns/op")
		})
	}
}
