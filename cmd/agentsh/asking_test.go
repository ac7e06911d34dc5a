package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
)

// open is what the terminal shows when a question can be answered.
const open = "n: no: "

// reply answers the n-th question that a terminal shows.
func (s *seat) reply(t *testing.T, n int, word string) {
	t.Helper()
	s.times(t, open, n)
	s.typeIn(t, word+"\r")
}

// times waits until a text was shown n times.
func (s *seat) times(t testing.TB, text string, n int) {
	t.Helper()
	deadline := time.After(hang)
	for strings.Count(s.text(), text) < n {
		select {
		case <-s.more:
		case <-deadline:
			t.Fatalf("%q did not show %d times: %q", text, n, s.text())
		}
	}
}

// ends waits for the end of a command and returns its exit code.
func (s *seat) ends(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return exitCode(err)
	case <-time.After(hang):
		t.Fatalf("it does not end: %q", s.text())
		return -1
	}
}

func askingFlags(more ...string) []string {
	return append([]string{"exec", "-p", "policy.yaml", "-w", "work", "--audit", "log.jsonl"}, more...)
}

// The terminal that a command reads asks too: what is typed at a question is no input of
// the command, and what is typed otherwise is.
func TestQuestionsAreAskedOnTheTerminalThatTheCommandReads(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	for name, flags := range map[string][]string{"exec": nil, "exec -t": {"-t"}} {
		t.Run(name, func(t *testing.T) {
			s := newSeat(t)
			const script = `read a; echo "first <$a>"; read go; uname -s; uname -s; uname -r || echo "status $?"; read b; echo "last <$b>"`
			cmd := s.sit(t, dir, append(askingFlags(flags...), "--", "sh", "-c", script)...)
			s.typeIn(t, "one\r")
			s.see(t, "first <one>")
			s.typeIn(t, "go\r")
			s.see(t, "agentsh: question 1, denied in ")
			s.times(t, open, 1)
			s.typeIn(t, "\x1b[?1;2cmaybe\r")
			s.see(t, "type y, a or n: ")
			s.typeIn(t, "b\x7fa\r") // always: the second is not asked
			s.reply(t, 2, "n")
			s.see(t, "status 126")
			s.typeIn(t, "two\r")
			s.see(t, "last <two>")
			if code := s.ends(t, cmd); code != 0 {
				t.Errorf("exit %d", code)
			}
			s.see(t, "agentsh: denied: uname -r (rule ask, policy.yaml:")
			s.see(t, " did not approve")
			s.see(t, "agentsh: hint: the answer was no: ")
			text := s.text()
			if strings.Contains(text, "a person can") || strings.Count(text, "Linux") != 2 || strings.Contains(text, "question 3") {
				t.Errorf("%q", text)
			}
		})
	}
}

func TestTwoQuestionsAtOnceAreAskedOneAfterTheOther(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	s := newSeat(t)
	const script = `(uname -s 2>/dev/null || echo no) & (uname -s 2>/dev/null || echo no) & wait; echo end` // dash writes its error in parts
	cmd := s.sit(t, dir, append(askingFlags(), "--", "sh", "-c", script)...)
	s.reply(t, 1, "n")
	s.reply(t, 2, "y")
	s.see(t, "\nend")
	if code := s.ends(t, cmd); code != 0 || strings.Count(s.text(), "\nLinux") != 1 || strings.Count(s.text(), "\nno\r") != 1 {
		t.Errorf("exit %d: %q", code, s.text())
	}
}

// Two programs of a pipeline are on one terminal: a line that is typed answers what it shows. Neither
// command reads the terminal: one that does may get the line.
func TestTwoProcessesOnATerminalAskOneAfterTheOther(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	s := newSeat(t)
	const script = `one() { exec -a agentsh "$0" "$@"; }
one "$@" log1 -- sh -c 'uname -s >&2 || echo no >&2' </dev/null | one "$@" log2 -- sh -c 'uname -r >&2 || echo no >&2; cat'`
	cmd := program(t, dir, "exec", "-p", "policy.yaml", "-w", "work", "--audit")
	cmd.Args = append([]string{"bash", "-c", script, cmd.Path}, cmd.Args[1:]...)
	var err error
	if cmd.Path, err = exec.LookPath("bash"); err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.times(t, open, 1)
	first := strings.Contains(s.text(), "uname -s")
	if text := s.text(); strings.Count(text, "agentsh: question ") != 1 {
		t.Errorf("two questions at once: %q", text)
	}
	s.typeIn(t, "y\r")
	s.reply(t, 2, "n")
	if code := s.ends(t, cmd); strings.Contains(s.text(), "Linux") != first || strings.Count(s.text(), "\nno\r") != 1 {
		t.Errorf("exit %d: %q", code, s.text())
	}
}

// A program that uses the whole screen has it again after a question, and its keys.
func TestAQuestionInterruptsAProgramOfTheWholeScreen(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	s := newSeat(t)
	const editor = `stty raw -echo; printf '\033[?1049h\033[?25l\033[?1000hscreen'; r=; trap r=1 WINCH
k=$(dd bs=1 count=1 2>/dev/null); uname -s >/dev/null
until [ "$r" ]; do sleep 0.05; done; printf redrawn
printf 'still %s' "$(stty size)"; k=$(dd bs=1 count=1 2>/dev/null); printf "key <$k>"; printf '\033[?1049l\033[?25h'; /usr/bin/kill -0 1; exit 5`
	cmd := s.sit(t, dir, append(askingFlags("-t"), "--", "sh", "-c", editor)...)
	s.see(t, "\x1b[?1000hscreen") // a question may come before what was written just then
	s.typeIn(t, "g")
	s.times(t, open, 1)
	if text := s.text(); !strings.Contains(text, "\x1b[?1000l") || !strings.Contains(text, "\x1b[?1049l") {
		t.Errorf("the question stands on the program's screen: %q", text)
	}
	s.typeIn(t, "y\r")
	s.see(t, "\x1b[?25l\x1b[?1000h\x1b[?1049h")
	s.see(t, "still ")
	s.typeIn(t, "q")
	s.see(t, "redrawn")
	s.see(t, "key <q>")
	if code := s.ends(t, cmd); code != 5 {
		t.Errorf("exit %d: %q", code, s.text())
	}
	s.see(t, "agentsh: denied: /usr/bin/kill -0 1")
	if at := strings.Index(s.text(), "agentsh: denied: /usr/bin/kill -0 1"); at < strings.LastIndex(s.text(), "\x1b[?1049l") {
		t.Errorf("the reason stands on the program's screen, or nowhere: %q", s.text())
	}
}

func TestCtrlCAtAQuestionDenies(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	for name, flags := range map[string][]string{"exec": nil, "exec -t": {"-t"}} {
		t.Run(name, func(t *testing.T) {
			s := newSeat(t)
			cmd := s.sit(t, dir, append(askingFlags(flags...), "--", "bash", "-c", `trap 'echo caught; exit 4' INT; uname -s; echo on; exit 4`)...)
			s.times(t, open, 1)
			s.typeIn(t, "\x03")
			if code := s.ends(t, cmd); code != 4 || strings.Contains(s.text(), "\nLinux") {
				t.Errorf("exit %d: %q", code, s.text())
			}
		})
	}
}

func TestATerminalThatGoesAnswersNothing(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	s := newSeat(t)
	cmd := s.sit(t, dir, append(askingFlags(), "--", "sh", "-c", "trap '' HUP; uname -s >allowed; exit 7")...)
	s.times(t, open, 1)
	s.slave.Close()
	s.master.Close()
	s.ends(t, cmd)
	if data, err := os.ReadFile(filepath.Join(dir, "work/allowed")); err != nil || len(data) > 0 {
		t.Errorf("%v: %q", err, data)
	}
}

// Nobody is asked by a job in the background or without a terminal: the refusal says
// where somebody would be.
func TestWhereNobodyCanBeAskedTheRefusalSaysHow(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	out, err := program(t, dir, append(askingFlags(), "--", "uname")...).CombinedOutput()
	if exitCode(err) != 126 || !strings.Contains(string(out), "agentsh has no terminal to ask on: run 'agentsh exec' on a terminal") {
		t.Errorf("without a terminal: %v %s", err, out)
	}
	s := newSeat(t)
	cmd := program(t, dir, append(askingFlags(), "--", "uname")...)
	cmd.Args = append([]string{"bash", "-mc", `(exec -a agentsh "$0" "$@") </dev/null & wait $!`, cmd.Path}, cmd.Args[1:]...)
	if cmd.Path, err = exec.LookPath("bash"); err != nil {
		t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if code := s.ends(t, cmd); code != 126 || strings.Contains(s.text(), open) {
		t.Errorf("in the background: exit %d: %q", code, s.text())
	}
	s.see(t, "agentsh runs in the background of its terminal: bring it to the foreground with fg")
}

// Each caller of a shared session is asked about its own command.
func TestEachClientOfASessionIsAskedAboutItsOwnCommand(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	session(t, dir, "one")
	var seats [2]*seat
	var cmds [2]*exec.Cmd
	for i, option := range []string{"-s", "-r"} {
		seats[i] = newSeat(t)
		cmds[i] = seats[i].sit(t, dir, "exec", "--session", "one", "-t", "--", "uname", option)
	}
	for i, option := range []string{"-s", "-r"} {
		seats[i].times(t, open, 1)
		if text := seats[i].text(); !strings.Contains(text, "uname "+option) || strings.Count(text, "agentsh: question ") != 1 {
			t.Errorf("%d: %q", i, text)
		}
	}
	seats[0].typeIn(t, "y\r")
	seats[1].typeIn(t, "n\r")
	for i, want := range []int{0, 126} {
		if code := seats[i].ends(t, cmds[i]); code != want {
			t.Errorf("%d: exit %d: %q", i, code, seats[i].text())
		}
	}
	out, err := program(t, dir, "exec", "--session", "one", "--", "uname").CombinedOutput()
	if exitCode(err) != 126 || !strings.Contains(string(out), "no approver is there: run 'agentsh approve'") {
		t.Errorf("without a terminal: %v %s", err, out)
	}
}

func TestAQuestionThatNobodyAnswersInTimeIsDenied(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	text, err := os.ReadFile(filepath.Join(dir, "policy.yaml"))
	if err == nil {
		text = []byte(strings.Replace(string(text), "timeout: 10m", "timeout: 100ms", 1))
		err = os.WriteFile(filepath.Join(dir, "policy.yaml"), text, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := newSeat(t)
	cmd := s.sit(t, dir, append(askingFlags(), "--", "sh", "-c", `uname -s || echo "status $?"; exec 3<>/dev/tty`)...)
	s.see(t, "status 126")
	if code := s.ends(t, cmd); code == 0 || strings.Contains(s.text(), "\nLinux") {
		t.Errorf("exit %d, or a command has a terminal of its caller: %q", code, s.text())
	}
	s.see(t, "no answer within 100ms")
}

// A user's session without namespaces shares the user's terminals with its commands: the
// question would be theirs to write and the answer theirs to read. So nothing is asked.
func TestATerminalThatCommandsCanOpenIsNotAskedOn(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif)
	dir := workDir(t)
	inside := copyProgram(t, dir)
	write(t, filepath.Join(dir, "policy.yaml"), `version: 1
name: ask
approvals: {via: tty}
command_rules:
  - {name: ask, commands: [uname], decision: approve, timeout: 2s}
  - {name: rest, commands: ['*'], decision: allow}
file_rules:
  - {name: all, paths: ['${WORKSPACE}/**', '/dev/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc/**', '/proc/**'], operations: [read, list, stat, execute], decision: allow}
signal_rules:
  - {name: own, signals: ['@all'], target: {type: session}, decision: allow}
`)
	if out, err := exec.Command("chown", "-R", "1000:1000", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := newSeat(t)
	number, err := unix.IoctlGetInt(int(s.master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal := "/dev/pts/" + strconv.Itoa(number)
	if err := os.Chown(terminal, 1000, 5); err != nil { // as at a login
		t.Fatal(err)
	}
	like := program(t, dir)
	cmd := testenv.Without(t, []string{testenv.WithoutNamespaces}, inside, "exec", "--degraded", "any", "-p", "policy.yaml",
		"-w", "work", "--", "sh", "-c", "echo written by a command >"+terminal+"; uname -s; echo status $?")
	cmd.Path, cmd.Dir, cmd.Env = inside, like.Dir, like.Env
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.slave, s.slave, s.slave
	user := &syscall.Credential{Uid: 1000, Gid: 1000, NoSetGroups: true}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Credential: user}
	if err := cmd.Run(); err != nil {
		t.Errorf("%v: %s", err, s.text())
	}
	s.see(t, "written by a command") // else there would be nothing to refuse
	s.see(t, "status 126")
	s.see(t, "can read and write the terminal that would ask")
	if text := s.text(); strings.Contains(text, "question 1") || strings.Contains(text, "Linux") {
		t.Errorf("%q", text)
	}
}
