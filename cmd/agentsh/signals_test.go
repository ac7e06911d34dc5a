package main

import (
	"bufio"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/testenv"
)

// signalled is agentsh exec with a command that has said that it runs.
type signalled struct {
	*exec.Cmd
	out *bufio.Reader
}

func startSignalled(t *testing.T, dir string, flags []string, script string) *signalled {
	t.Helper()
	cmd := program(t, dir, append(append([]string{"exec"}, flags...), "--timeout", "60s", "--", "sh", "-c", "exec 2>/dev/null; "+script)...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &signalled{cmd, bufio.NewReader(out)}
	s.says(t, "ready")
	return s
}

func (s *signalled) says(t *testing.T, want string) {
	t.Helper()
	line, err := s.out.ReadString('\n')
	if err != nil || strings.TrimSpace(line) != want {
		t.Fatalf("said %q, %v, want %q", line, err, want)
	}
}

func (s *signalled) send(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := s.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// end waits for the end of output, then of the program.
func (s *signalled) end(t *testing.T, want int) {
	t.Helper()
	rest, _ := io.ReadAll(s.out)
	_ = s.Wait()
	if code := s.ProcessState.ExitCode(); code != want {
		t.Errorf("exit status %d, want %d; %q", code, want, rest)
	}
}

func TestACommandGetsTheSignalsOfExec(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := workDir(t)
	session(t, dir, "one")
	ways := map[string][]string{
		"own session":      {"-p", "policy.yaml", "-w", "work"},
		"running session":  {"--session", "one"},
		"own terminal":     {"-p", "policy.yaml", "-w", "work", "-t"},
		"session terminal": {"--session", "one", "-t"},
	}
	for way, flags := range ways {
		t.Run(way, func(t *testing.T) {
			for name, sig := range map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "QUIT": syscall.SIGQUIT,
				"HUP": syscall.SIGHUP} {
				s := startSignalled(t, dir, flags, "echo ready; exec sleep 1000")
				s.send(t, sig)
				s.end(t, 128+int(sig))
				if name == "HUP" && len(flags) != 0 && flags[len(flags)-1] == "-t" {
					continue // says that the terminal is gone: everything ends
				}
				s = startSignalled(t, dir, flags, "trap 'echo got; exit 7' "+name+"; echo ready; while :; do sleep 1000 & wait $!; done")
				s.send(t, sig)
				s.says(t, "got")
				s.end(t, 7)
			}
		})
	}
}

func TestASecondSignalEndsAll(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := workDir(t)
	session(t, dir, "one")
	for _, flags := range [][]string{{"-p", "policy.yaml", "-w", "work"}, {"--session", "one"}} {
		s := startSignalled(t, dir, flags, "trap 'echo got' INT; trap '' TERM; echo ready; while :; do sleep 1000 & wait $!; done")
		s.send(t, syscall.SIGINT)
		s.says(t, "got")
		s.send(t, syscall.SIGINT)
		s.end(t, 128+int(syscall.SIGKILL))
	}
}

// What a process that started this one ignores is not passed on.
func TestIgnoredSignalsStayIgnored(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := workDir(t)
	inner := program(
		t,
		dir,
		"exec",
		"-p",
		"policy.yaml",
		"-w",
		"work",
		"--",
		"sh",
		"-c",
		"trap 'echo got' HUP INT; echo ready; read line; echo $line",
	)
	cmd := exec.Command("/bin/bash", append([]string{"-c", `trap '' HUP INT; exec -a agentsh "$@"`, "sh", inner.Path}, inner.Args[1:]...)...)
	cmd.Dir, cmd.Env = inner.Dir, inner.Env
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s := &signalled{cmd, bufio.NewReader(out)}
	s.says(t, "ready")
	s.send(t, syscall.SIGHUP)
	s.send(t, syscall.SIGINT)
	if _, err := fmt.Fprintln(in, "still here"); err != nil {
		t.Fatal(err)
	}
	s.says(t, "still here")
	s.end(t, 0)
}
