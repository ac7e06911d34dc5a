package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/cmd/agentsh/failure"
	"agentsh/internal/testenv"
)

// allWays are the ways of [ways], with and without a terminal.
func allWays(t *testing.T, dir string) map[string][]string {
	t.Helper()
	all := map[string][]string{}
	for way, flags := range ways(t, dir) {
		flags = flags[:len(flags):len(flags)]
		all[way] = flags
		all[way+", terminal"] = append(flags, "-t")
	}
	return all
}

// openFor opens a file for writing.
func openFor(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func readOnly(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// fullDisk is a file on a filesystem without room.
func fullDisk(t *testing.T) *os.File {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return openFor(t, filepath.Join(dir, "out"))
}

// unreadPipe is a pipe of which nobody reads; gone: and nobody will.
func unreadPipe(t *testing.T, gone bool) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if gone {
		r.Close()
	}
	t.Cleanup(func() {
		r.Close()
		w.Close()
	})
	return w
}

// alive reports whether a process of the machine has an argument.
func alive(t *testing.T, argument string) bool {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		line, _ := os.ReadFile(f) // it may have ended
		if bytes.HasPrefix(line, []byte("sleep\x00"+argument+"\x00")) {
			return true
		}
	}
	return false
}

// hang is a time after which a test says that something hangs.
const hang = 2 * time.Minute

// runToEnd runs a command that must end by itself.
func runToEnd(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return waitEnd(t, cmd)
}

func waitEnd(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	late := time.AfterFunc(hang, func() {
		t.Errorf("it goes on after %s", hang)
		_ = cmd.Process.Kill()
	})
	defer late.Stop()
	_ = cmd.Wait()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return cmd.ProcessState.ExitCode()
}

// TestAnOutputThatCannotBeWrittenIsReported runs commands whose output goes nowhere:
// the client says which and why, and what the command started has ended.
func TestAnOutputThatCannotBeWrittenIsReported(t *testing.T) {
	dir := workDir(t)
	outputs := map[string]struct {
		to  func(*testing.T) *os.File
		why string
	}{
		"a full device":    {func(t *testing.T) *os.File { return openFor(t, "/dev/full") }, "no space left on device"},
		"a full disk":      {fullDisk, "no space left on device"},
		"open for reading": {readOnly, "bad file descriptor"},
		"closed":           {nil, "bad file descriptor"},
	}
	n := 0
	for way, flags := range allWays(t, dir) {
		for name, output := range outputs {
			for fd := 1; fd <= 2; fd++ {
				if fd == 2 && strings.HasSuffix(way, "terminal") {
					continue // has one output
				}
				n++
				sleep := fmt.Sprintf("9%d.%d", os.Getpid(), n)
				t.Run(fmt.Sprintf("%s/%s/%d", way, name, fd), func(t *testing.T) {
					script := fmt.Sprintf("sleep %s & head -c 200000 /dev/zero >&%d; wait", sleep, fd)
					cmd := program(t, dir, append(append([]string{"exec"}, flags[1:]...), "--", "sh", "-c", script)...)
					var told bytes.Buffer
					if output.to == nil {
						inner := cmd.Args[1:]
						cmd.Args = append([]string{"bash", "-c", fmt.Sprintf(`exec -a agentsh "$@" %d>&-`, fd), "bash", cmd.Path}, inner...)
						cmd.Path = "/bin/bash"
					}
					want := "agentsh: standard " + [...]string{"", "output", "error"}[fd] + " could not be written: " + output.why + "\n"
					if fd == 1 {
						cmd.Stderr = &told
					}
					if output.to != nil && fd == 1 {
						cmd.Stdout = output.to(t)
					} else if output.to != nil {
						cmd.Stderr = output.to(t)
					}
					if code := runToEnd(t, cmd); code != failure.Ours {
						t.Errorf("exit status %d, want %d", code, failure.Ours)
					}
					if fd == 1 && (!strings.Contains(told.String(), want) || !strings.Contains(told.String(), "agentsh: hint: ")) {
						t.Errorf("said %q, want %q", &told, want)
					}
					if alive(t, sleep) {
						t.Error("what the command started goes on")
					}
				})
			}
		}
	}
}

// TestAnOutputWithoutAReaderIsAClosedPipe compares with what a program does that
// has such a pipe itself.
func TestAnOutputWithoutAReaderIsAClosedPipe(t *testing.T) {
	dir := workDir(t)
	tests := []struct {
		name, script string
		code         int
	}{
		{"a program that writes on", "exec yes", 128 + int(syscall.SIGPIPE)},
		{"a program that wrote once", "echo once", 128 + int(syscall.SIGPIPE)},
		{"a status of its own", "echo once; exit 7", 7},
		{"a shell goes on after its program", "yes; echo ended >&2; exit 5", 5},
		{
			"a program that is told of EPIPE",
			"exec python3 -c 'import os, sys\ntry:\n  while True: os.write(1, b\"x\" * 4096)\nexcept BrokenPipeError: os._exit(9)'",
			9,
		},
		{"nothing is written", "exit 3", 3},
	}
	for way, flags := range ways(t, dir) {
		for _, tt := range tests {
			t.Run(way+"/"+tt.name, func(t *testing.T) {
				cmd := program(t, dir, append(flags[:len(flags):len(flags)], "--", "sh", "-c", tt.script)...)
				var told bytes.Buffer
				cmd.Stdout, cmd.Stderr = unreadPipe(t, true), &told
				if code := runToEnd(t, cmd); code != tt.code {
					t.Errorf("exit status %d, want %d", code, tt.code)
				}
				if got := strings.Replace(told.String(), "ended\n", "", 1); got != "" {
					t.Errorf("said %q", got)
				}
			})
		}
	}
}

// TestASignalEndsWhatWaitsForAReader has nobody read what a command writes.
func TestASignalEndsWhatWaitsForAReader(t *testing.T) {
	dir := workDir(t)
	for way, flags := range allWays(t, dir) {
		for name, tt := range map[string]struct {
			script string
			flags  []string
			signal syscall.Signal
			code   int
		}{
			"TERM":                           {"echo ready >&2; exec cat /dev/zero", nil, syscall.SIGTERM, 143},
			"INT":                            {"echo ready >&2; exec cat /dev/zero", nil, syscall.SIGINT, 130},
			"a timeout":                      {"echo ready >&2; exec cat /dev/zero", []string{"--timeout", "300ms"}, 0, 124},
			"nothing is read of messages":    {"echo ready >&2; exec cat /dev/zero >&2", nil, syscall.SIGTERM, 143},
			"a writer stays behind for ever": {"trap '' TERM; cat /dev/zero & echo ready >&2; exit 4", nil, syscall.SIGTERM, 4},
		} {
			terminal := strings.HasSuffix(way, "terminal")
			if terminal && name != "TERM" && name != "a timeout" {
				continue // it has one output
			}
			t.Run(way+"/"+name, func(t *testing.T) {
				args := append([]string(nil), flags...)
				args = append(args, tt.flags...)
				cmd := program(t, dir, append(args, "--", "sh", "-c", tt.script)...)
				out := unreadPipe(t, false)
				cmd.Stdout = out
				r, w, err := os.Pipe()
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				cmd.Stderr = w
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				w.Close()
				switch {
				case tt.signal == 0: // the time may be over before the command has begun
				case terminal:
					testenv.WaitFull(t, out)
				default:
					if _, err := io.ReadFull(r, make([]byte, len("ready\n"))); err != nil {
						t.Fatal(err)
					}
				}
				if tt.signal != 0 {
					if err := cmd.Process.Signal(tt.signal); err != nil {
						t.Fatal(err)
					}
				}
				if code := waitEnd(t, cmd); code != tt.code {
					t.Errorf("exit status %d, want %d", code, tt.code)
				}
			})
		}
	}
}

// TestANonBlockingOutputIsWrittenInFull makes the pipe non-blocking that agentsh
// writes to, as another program that has it may.
func TestANonBlockingOutputIsWrittenInFull(t *testing.T) {
	dir := workDir(t)
	const size = 1 << 20
	for way, flags := range ways(t, dir) {
		t.Run(way, func(t *testing.T) {
			cmd := program(t, dir, append(flags[:len(flags):len(flags)], "--", "sh", "-c", fmt.Sprintf("read line; head -c %d /dev/zero", size))...)
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			cmd.Stdout = w
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if err := unix.SetNonblock(int(w.Fd()), true); err != nil { // it has been started with one that blocks
				t.Fatal(err)
			}
			if _, err := io.WriteString(stdin, "go\n"); err != nil {
				t.Fatal(err)
			}
			testenv.WaitFull(t, w)
			w.Close()
			n, err := io.Copy(io.Discard, r)
			if code := waitEnd(t, cmd); code != 0 || n != size || err != nil {
				t.Errorf("exit status %d, %d bytes of %d, %v", code, n, size, err)
			}
		})
	}
}

// TestAnInputThatCannotBeRead is told; one that fails at once is an empty one.
func TestAnInputThatCannotBeRead(t *testing.T) {
	dir := workDir(t)
	for way, flags := range ways(t, dir) {
		t.Run(way, func(t *testing.T) {
			in, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer in.Close()
			cmd := program(t, dir, append(flags[:len(flags):len(flags)], "--", "sh", "-c", "wc -c; exit 3")...)
			var out, told bytes.Buffer
			cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &told
			if code := runToEnd(t, cmd); code != 3 || out.String() != "0\n" {
				t.Errorf("exit status %d, %q", code, &out)
			}
			if want := "agentsh: standard input could not be read: is a directory: the command had an empty one\n"; told.String() != want {
				t.Errorf("said %q, want %q", &told, want)
			}
		})
	}
}

// TestAResultThatCannotBeWritten is that of exec --json.
func TestAResultThatCannotBeWritten(t *testing.T) {
	dir := workDir(t)
	for way, flags := range ways(t, dir) {
		t.Run(way, func(t *testing.T) {
			cmd := program(t, dir, append(flags[:len(flags):len(flags)], "--json", "--", "true")...)
			var told bytes.Buffer
			cmd.Stdout, cmd.Stderr = openFor(t, "/dev/full"), &told
			if code := runToEnd(t, cmd); code != failure.Ours ||
				!strings.Contains(told.String(), "standard output could not be written: no space left on device") {
				t.Errorf("exit status %d, %q", code, &told)
			}
		})
	}
}

// TestAShellWhoseOutputCannotBeWritten is an interactive one.
func TestAShellWhoseOutputCannotBeWritten(t *testing.T) {
	dir := workDir(t)
	s := newSeat(t)
	cmd := program(t, dir, "shell", "-p", "policy.yaml", "-w", "work")
	var told bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, openFor(t, "/dev/full"), &told
	if code := runToEnd(t, cmd); code != failure.Ours ||
		!strings.Contains(told.String(), "standard output could not be written: no space left on device") {
		t.Errorf("exit status %d, %q", code, &told)
	}
}
