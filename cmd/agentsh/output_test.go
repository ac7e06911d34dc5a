package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/wire"
)

// lastOutput is what the audit log says the last command wrote.
func lastOutput(t *testing.T, log string) wire.OutputEnd {
	t.Helper()
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	var last *wire.OutputEnd
	d := json.NewDecoder(bytes.NewReader(data))
	for d.More() {
		var e wire.Event
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		if e.Type == wire.EventCommand && e.Phase == "end" {
			last = e.Output
		}
	}
	if last == nil {
		t.Fatal("the end of the last command tells no output")
	}
	return *last
}

// TestOutputIsCountedInFullAndStoredInPart runs commands that write known numbers
// of bytes, far more than is kept, and ends some of them while they write.
func TestOutputIsCountedInFullAndStoredInPart(t *testing.T) {
	dir := workDir(t)
	const mib = 1 << 20
	const some = `head -c 5000000 /dev/zero | tr '\0' x; head -c 3000000 /dev/zero | tr '\0' x >&2; `
	tests := []struct {
		name           string
		flags          []string
		script         string
		code           int
		stdout, stderr int64 // -1: what it comes to write
	}{
		{"nothing", nil, "true", 0, 0, 0},
		{"50 MiB and 20 MiB", nil, "head -c 50M /dev/zero & head -c 20M /dev/zero >&2; wait", 0, 50 * mib, 20 * mib},
		{"ended by its timeout", []string{"--timeout", "1s"}, some + "exec sleep 1000", 124, -1, -1},
		{"ended by a signal", nil, some + "echo >$0; exec sleep 1000", 143, 5_000_000, 3_000_000},
		{"killed", nil, some + "exec python3 -c 'import os; os.kill(os.getpid(), 9)'", 137, 5_000_000, 3_000_000},
		{"a status of its own", nil, some + "exit 9", 9, 5_000_000, 3_000_000},
		{"written in the background", nil, "(" + some + ") & wait", 0, 5_000_000, 3_000_000},
		{
			"a writer stays behind with what was written",
			nil,
			"(" + some + "echo >$0; exec sleep 1000) & while [ ! -e $0 ]; do sleep 0.01; done",
			0,
			5_000_000,
			3_000_000,
		},
	}
	logs := map[string]string{"own session": "own.jsonl", "running session": "one.jsonl"}
	for way, flags := range ways(t, dir) {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			for _, tt := range tests {
				t.Run(tt.name, func(t *testing.T) {
					args := append(append([]string(nil), flags...), tt.flags...)
					written := filepath.Join(dir, "work", strings.ReplaceAll(t.Name(), "/", "-")) // its own: the ways share a directory
					cmd := program(t, dir, append(args, "--json", "--", "sh", "-c", tt.script, written)...)
					var stdout, stderr bytes.Buffer
					cmd.Stdout, cmd.Stderr = &stdout, &stderr
					if err := cmd.Start(); err != nil {
						t.Fatal(err)
					}
					if tt.code == 128+int(syscall.SIGTERM) {
						waitForLine(t, written)
						_ = cmd.Process.Signal(syscall.SIGTERM)
					}
					if code := waitEnd(t, cmd); code != tt.code {
						t.Errorf("exit status %d, want %d", code, tt.code)
					}
					var got jsonResult
					if err := json.Unmarshal(stdout.Bytes(), &got); err != nil {
						t.Fatalf("%v: %s", err, &stderr)
					}
					for name, s := range map[string]struct {
						jsonStream
						want int64
					}{"stdout": {got.Stdout, tt.stdout}, "stderr": {got.Stderr, tt.stderr}} {
						if s.want < 0 {
							s.want = s.Bytes
						}
						if s.Bytes != s.want || s.Truncated != (s.want > maxCaptured) || int64(len(s.Text)) != min(s.want, maxCaptured) {
							t.Errorf("%s: %d bytes, %d kept, truncated %t; it wrote %d", name, s.Bytes, len(s.Text), s.Truncated, s.want)
						}
					}
					want := wire.OutputEnd{Stdout: got.Stdout.Bytes, Stderr: got.Stderr.Bytes}
					if logged := lastOutput(t, filepath.Join(dir, logs[way])); logged != want {
						t.Errorf("the audit log says %+v, want %+v", logged, want)
					}
				})
			}
		})
	}
}

// TestBufferedOutputIsBounded passes more output than any process of agentsh may
// hold, and looks at the peak of each before the command ends.
func TestBufferedOutputIsBounded(t *testing.T) {
	dir := workDir(t)
	all := ways(t, dir)
	one := sessions(t, dir)[0]
	for way, flags := range all {
		t.Run(way, func(t *testing.T) {
			cmd := program(
				t,
				dir,
				append(append([]string(nil), flags...), "--", "sh", "-c", "head -c 300M /dev/zero; echo written >&2; read line")...)
			var stdout counter
			cmd.Stdout = &stdout
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stderr, err := cmd.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if line, err := bufio.NewReader(stderr).ReadString('\n'); line != "written\n" {
				t.Errorf("said %q, %v", line, err)
			}
			for name, pid := range map[string]int{"exec": cmd.Process.Pid, "the supervisor of the running session": one.PID} {
				if kib := peak(t, pid); kib > 150<<10 {
					t.Errorf("%s held %d KiB", name, kib)
				}
			}
			if _, err := io.WriteString(stdin, "end\n"); err != nil {
				t.Error(err)
			}
			if err := cmd.Wait(); err != nil || stdout != 300<<20 {
				t.Errorf("%d bytes arrived, %v", stdout, err)
			}
		})
	}
}

// peak is the most memory a process held, in KiB. See proc_pid_status(5).
func peak(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(status), "VmHWM:")
	if !found {
		t.Fatalf("no peak in %s", status)
	}
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib
}

// counter counts what is written to it.
type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
