package main

import (
	"bytes"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// supervisor is the supervisor of a run.
func (g *going) supervisor() int {
	g.t.Helper()
	for _, pid := range childrenOf(g.cmd.Process.Pid) {
		line, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline") // it may have ended
		if bytes.Contains(line, []byte("serve\x00--stream-fd")) {
			return pid
		}
	}
	g.t.Fatal("the run has no supervisor")
	return 0
}

// The supervisor, the run or the client of an operator is stopped and continued. The
// operator's commands lose nothing. AGENTSH_PAUSE makes the pause longer, as in "30s".
func TestAnOperatorsCommandOutlastsAStoppedProcess(t *testing.T) {
	t.Parallel()
	pause := time.Second
	if text := os.Getenv("AGENTSH_PAUSE"); text != "" {
		var err error
		if pause, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	p := newFixture(t, waiting, "")
	g := p.start("agent at work")
	running := p.command("sandbox", "exec", "latest", "--", "sh", "-c", "echo ready; read line; echo $line; exit 7")
	var errs bytes.Buffer
	running.Stderr = &errs
	in, err := running.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := running.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		line := make([]byte, 64)
		n, err := out.Read(line)
		if err != nil {
			t.Fatalf("%v %s", err, &errs)
		}
		return string(line[:n])
	}
	if got := read(); got != "ready\n" {
		t.Fatalf("%q %s", got, &errs)
	}
	for name, pid := range map[string]int{"supervisor": g.supervisor(), "run": g.cmd.Process.Pid, "client": running.Process.Pid} {
		t.Run(name, func(t *testing.T) {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			var late *exec.Cmd
			var said bytes.Buffer
			if name != "client" {
				late = p.command("sandbox", "exec", "latest", "--", "echo", "late")
				late.Stdout, late.Stderr = &said, &said
				if err := late.Start(); err != nil {
					t.Error(err)
				}
			}
			<-time.After(pause) // the fault itself: time in which nobody answers
			if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if late != nil {
				if err := late.Wait(); err != nil || said.String() != "late\n" {
					t.Errorf("a command meanwhile: %v %s", err, &said)
				}
			}
		})
	}
	if _, err := in.Write([]byte("on\n")); err != nil {
		t.Error(err)
	}
	if got := read(); got != "on\n" {
		t.Errorf("%q", got)
	}
	if err := running.Wait(); running.ProcessState.ExitCode() != 7 {
		t.Errorf("the command: %v %s", err, &errs)
	}
	if out, errs, code := p.try("", "sandbox", "exec", "latest", "--", "touch", "/sandbox/workspace/go"); code != 0 {
		t.Errorf("%s %s", out, errs)
	}
	if code := g.wait(); code != 0 {
		t.Errorf("the run: exit %d", code)
	}
}
