package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/foreground"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// seat is a terminal with a person at it: what it showed, and keys to type.
type seat struct {
	master, slave *os.File
	mu            sync.Mutex
	shown         bytes.Buffer
	more          chan struct{}
	done          chan struct{}
}

func newSeat(t testing.TB) *seat {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &seat{master: os.NewFile(uintptr(fd), "master"), more: make(chan struct{}, 1), done: make(chan struct{})}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC)
	if errno != 0 {
		t.Fatal(errno)
	}
	s.slave = os.NewFile(peer, "slave")
	s.size(t, 31, 97)
	go s.watch()
	t.Cleanup(func() {
		s.slave.Close()
		s.master.Close()
		<-s.done
	})
	return s
}

func (s *seat) watch() {
	defer close(s.done)
	buf := make([]byte, 4096)
	for {
		n, err := s.master.Read(buf)
		s.mu.Lock()
		s.shown.Write(buf[:n])
		s.mu.Unlock()
		select {
		case s.more <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (s *seat) size(t testing.TB, rows, cols uint16) {
	t.Helper()
	if err := unix.IoctlSetWinsize(int(s.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		t.Fatal(err)
	}
}

func (s *seat) mode(t testing.TB) unix.Termios {
	t.Helper()
	m, err := unix.IoctlGetTermios(int(s.slave.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *m
}

func (s *seat) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.shown.String()
}

func (s *seat) see(t testing.TB, text string) {
	t.Helper()
	deadline := time.After(hang)
	for !strings.Contains(s.text(), text) {
		select {
		case <-s.more:
		case <-deadline:
			t.Fatalf("%q never showed: %q", text, s.text())
		}
	}
}

func (s *seat) typeIn(t testing.TB, keys string) {
	t.Helper()
	if _, err := io.WriteString(s.master, keys); err != nil {
		t.Fatal(err)
	}
}

// sit runs agentsh with the seat as its controlling terminal.
func (s *seat) sit(t testing.TB, dir string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := program(t, dir, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return cmd
}

// program is a command line of this program, with its state in dir.
func program(t testing.TB, dir string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Args[0] = "agentsh"
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "TERM=vt100", "XDG_STATE_HOME=" + filepath.Join(dir, "state"),
		"XDG_RUNTIME_DIR=" + filepath.Join(dir, "run"), "HOME=" + dir}
	return cmd
}

// copyProgram copies this program to where another user may run it.
func copyProgram(t testing.TB, dir string) string {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(dir, "agentsh")
	if err := os.WriteFile(copied, self, 0o755); err != nil {
		t.Fatal(err)
	}
	return copied
}

// entryPolicy refuses a program and a file, filters and injects variables.
const entryPolicy = `version: 1
name: entry
command_rules:
  - {name: no-kill, commands: [kill, /usr/bin/kill], decision: deny, message: no signals}
  - {name: rest, commands: ['*'], decision: allow}
file_rules:
  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**', /tmp, '/tmp/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
env_policy: {allow: [PASSED, TERM, PATH]}
env_inject: {BASH_ENV: /usr/lib/agentsh/bash_startup.sh, INJECTED: 'yes'}
`

// workDir is a workspace with entryPolicy in it that commands can reach.
func workDir(t testing.TB) string {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"run", "work"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(entryPolicy), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func exitCode(err error) int {
	if e := (*exec.ExitError)(nil); errors.As(err, &e) {
		return e.ExitCode()
	}
	if err != nil {
		return -1
	}
	return 0
}

var ttyFlags = []string{"exec", "-t", "-p", "policy.yaml", "-w", "work", "--audit", "log.jsonl", "--"}

func TestExecPassesTheCallersTerminalOn(t *testing.T) {
	dir := workDir(t)
	s := newSeat(t)
	before := s.mode(t)
	cmd := s.sit(
		t,
		dir,
		append(
			ttyFlags,
			"bash",
			"-c",
			`test -t 0 && stty size; echo $TERM; trap 'stty size; exit 3' WINCH; read x; echo "got $x"; while :; do read -t 0.05; done`,
		)...)
	s.see(t, "31 97\r\nvt100\r\n")
	if raw := s.mode(t); raw.Lflag&(unix.ICANON|unix.ECHO|unix.ISIG) != 0 || raw.Oflag&unix.OPOST != 0 {
		t.Errorf("the caller's terminal still interprets: %+v", raw)
	}
	s.typeIn(t, "word\r")
	s.see(t, "word\r\ngot word\r\n")
	s.size(t, 50, 120)
	s.see(t, "50 120")
	if code := exitCode(cmd.Wait()); code != 3 {
		t.Errorf("exit %d: %s", code, s.text())
	}
	if s.mode(t) != before {
		t.Error("the terminal was not restored")
	}
}

func TestCtrlCGoesToTheCommand(t *testing.T) {
	dir := workDir(t)
	s := newSeat(t)
	cmd := s.sit(t, dir, append(ttyFlags, "bash", "-c", `trap 'echo caught; exit 4' INT; echo ready; while :; do read -t 0.05; done`)...)
	s.see(t, "ready")
	s.typeIn(t, "\x03")
	s.see(t, "caught")
	if code := exitCode(cmd.Wait()); code != 4 {
		t.Errorf("exit %d: %s", code, s.text())
	}
}

func TestTheTerminalIsRestoredHoweverItEnds(t *testing.T) {
	dir := workDir(t)
	for name, sig := range map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP,
		"QUIT": syscall.SIGQUIT} {
		t.Run(name, func(t *testing.T) {
			s := newSeat(t)
			before := s.mode(t)
			cmd := s.sit(t, dir, append(ttyFlags, "sh", "-c", "echo ready; exec sleep 1000")...)
			s.see(t, "ready")
			if err := cmd.Process.Signal(sig); err != nil {
				t.Fatal(err)
			}
			if code := exitCode(cmd.Wait()); code == 0 {
				t.Errorf("exit %d", code)
			}
			if s.mode(t) != before {
				t.Error("the terminal was not restored")
			}
		})
	}
	t.Run("panic", func(t *testing.T) {
		s := newSeat(t)
		before := s.mode(t)
		defer func() {
			if recover() == nil {
				t.Error("the panic was lost")
			}
			if s.mode(t) != before {
				t.Error("the terminal was not restored")
			}
		}()
		_, _ = foreground.OnTerminal(s.slave, func(context.Context, wire.ExecRequest, wire.Streams) (result, error) {
			if s.mode(t) == before {
				t.Error("the terminal is not raw")
			}
			panic("of a test")
		})(context.Background(), wire.ExecRequest{}, wire.Streams{})
	})
}

func TestAVanishedTerminalEndsTheCommand(t *testing.T) {
	dir := workDir(t)
	s := newSeat(t)
	cmd := s.sit(t, dir, append(ttyFlags, "sh", "-c", "echo ready; trap '' HUP TERM; while :; do sleep 0.1; done")...)
	s.see(t, "ready")
	s.slave.Close()
	s.master.Close()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-ended:
	case <-time.After(hang):
		t.Fatal("it outlives its terminal")
	}
}

func TestATerminalWithoutACallersOne(t *testing.T) {
	dir := workDir(t)
	cmd := program(t, dir, append(ttyFlags, "sh", "-c", "stty size; cat")...)
	cmd.Stdin = strings.NewReader("typed\n")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "24 80\r\n") || strings.Count(string(out), "typed\r\n") != 2 {
		t.Errorf("%v: %q", err, out)
	}
}

func TestShellIsInteractiveUnderThePolicy(t *testing.T) {
	dir := workDir(t)
	s := newSeat(t)
	cmd := s.sit(t, dir, "shell", "-p", "policy.yaml", "-w", "work", "--audit", "log.jsonl")
	s.typeIn(t, "echo flags $-; type kill; kill -0 1; echo status $?\r")
	s.see(t, "status 126")
	s.see(t, "agentsh: denied: kill -0 1 (rule no-kill, policy.yaml:4:5): no signals") // before the shell's end
	s.typeIn(t, "exit 6\r")
	if code := exitCode(cmd.Wait()); code != 6 {
		t.Errorf("exit %d", code)
	}
	s.see(t, "kill is a function") // that runs the program
	if text := s.text(); strings.Count(text, "agentsh: denied") != 1 || strings.Contains(text, "builtin") || !regexp.MustCompile(`flags [A-Za-z]*i`).MatchString(text) {
		t.Errorf("%q", text)
	}
	out, err := program(t, dir, "shell", "-p", "policy.yaml").CombinedOutput()
	if exitCode(err) != 125 || !strings.Contains(string(out), "not a terminal") {
		t.Errorf("without a terminal: %v %s", err, out)
	}
}
