package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
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
	"agentsh/internal/wire"
	"agentsh/supervisor/cgroup"
	"agentsh/supervisor/host"
)

// startReady starts a client whose command prints a line and waits.
func startReady(t *testing.T, cmd *exec.Cmd) *bytes.Buffer {
	t.Helper()
	errs := &bytes.Buffer{}
	cmd.Stderr = errs
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it has ended
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // its messages are whole afterwards
		t.Fatalf("%q %v %s", line, err, errs)
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return errs
}

// lastEvent is the last event of a log.
func lastEvent(t *testing.T, path string) wire.Event {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(data), []byte("\n"))
	var e wire.Event
	if err := json.Unmarshal(lines[len(lines)-1], &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// checkEnding checks what the caller of a command is told of the end of its session,
// and what the log says.
func checkEnding(t *testing.T, cause wire.Cause, code int, errs, log string) {
	t.Helper()
	ending := cause.Ending()
	if want := cause.Exit("").ExitCode(); code != want {
		t.Errorf("exit status %d, want %d", code, want)
	}
	if !strings.Contains(errs, "agentsh: the session has ended: "+ending.Sentence) || !strings.Contains(errs, "agentsh: hint: "+ending.Hint) {
		t.Errorf("the caller was told %q", errs)
	}
	last := lastEvent(t, log)
	if cause == wire.CauseSupervisor {
		if last.Phase == "end" && last.Type == wire.EventSession {
			t.Errorf("the log has an end: %+v", last)
		}
		return
	}
	if last.Type != wire.EventSession || last.Phase != "end" || last.Cause != cause || !strings.Contains(last.Message, ending.Sentence) {
		t.Errorf("the log ends with %+v", last)
	}
}

// anEnd is a way in which a session ends.
type anEnd struct {
	policy string
	flags  []string
	end    func(t *testing.T, dir string, one host.Running) // nil: by time
}

// A session in the background ends in every way that can be brought about from outside.
func TestTheCallersOfASessionLearnWhyItEnded(t *testing.T) {
	kill := func(pid func(host.Running) int) func(*testing.T, string, host.Running) {
		return func(t *testing.T, _ string, one host.Running) {
			if err := syscall.Kill(pid(one), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	destroy := func(t *testing.T, dir string, one host.Running) {
		if out, err := program(t, dir, "session", "destroy", one.Name).CombinedOutput(); err != nil {
			t.Errorf("%v %s", err, out)
		}
	}
	took := anEnd{end: destroy}.check(t, wire.CauseClosed)
	// The commands must have begun before the time is over, on a slow machine too.
	limit := strconv.Itoa(2+int(6*took.Seconds())) + "s"
	for cause, tt := range map[wire.Cause]anEnd{
		wire.CauseLifetime:       {flags: []string{"--timeout", limit}},
		wire.CauseSessionTimeout: {policy: "resource_limits: {session_timeout: " + limit + "}\n"},
		wire.CauseSupervisor:     {end: kill(func(one host.Running) int { return one.PID })},
		wire.CauseInit:           {end: kill(func(one host.Running) int { return one.Parts[0] })},
		wire.CauseFileServer:     {end: kill(func(one host.Running) int { return one.Parts[1] })},
	} {
		t.Run(string(cause), func(t *testing.T) {
			t.Parallel()
			tt.check(t, cause)
		})
	}
}

// check ends a session with commands in it. It returns how long these took to begin.
func (tt anEnd) check(t *testing.T, cause wire.Cause) (took time.Duration) {
	t.Helper()
	dir := workDir(t)
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(entryPolicy+tt.policy), 0o644); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	one := session(t, dir, "one", tt.flags...)
	processes, err := pidfds([]int{one.PID})
	if err != nil {
		t.Fatal(err)
	}
	idle := program(t, dir, "exec", "-s", "one", "--", "sh", "-c", "echo ready; exec sleep 1000")
	// a command that ends by itself when its files are gone, with a status of its own
	reading := program(t, dir, "exec", "-s", "one", "--", "sh", "-c", "echo x >f; echo ready; while cat f >/dev/null; do sleep 0.1; done; exit 7")
	said := []*bytes.Buffer{startReady(t, idle), startReady(t, reading)}
	took = time.Since(begin)
	if tt.end != nil {
		tt.end(t, dir, one)
	}
	codes := []int{exitCode(idle.Wait()), exitCode(reading.Wait())}
	endsPidfd(t, processes[0])
	for i, code := range codes {
		checkEnding(t, cause, code, said[i].String(), one.Audit)
	}
	checkKilled(t, dir, one, cause == wire.CauseSupervisor)
	return took
}

// checkKilled checks whether readers of the log say that the supervisor was killed.
func checkKilled(t *testing.T, dir string, one host.Running, want bool) {
	t.Helper()
	said := "session " + one.Session + ": the session has ended: " + wire.CauseSupervisor.Ending().Sentence
	for _, args := range [][]string{{"audit", "verify", one.Audit}, {"events", one.Audit}, {"report", one.Audit}} {
		out, err := program(t, dir, args...).CombinedOutput()
		if err != nil || args[0] != "report" && strings.Contains(string(out), said) != want {
			t.Errorf("%q: %v %s", args, err, out)
		}
		if args[0] == "report" && strings.Contains(string(out), wire.CauseSupervisor.Ending().Sentence) != want {
			t.Errorf("the report: %s", out)
		}
	}
}

// The caller of a session of its own is its supervisor.
func TestACommandsOwnSessionSaysWhyItEnded(t *testing.T) {
	for cause, name := range map[wire.Cause]string{wire.CauseInit: "agentsh-init", wire.CauseFileServer: "agentsh-fuse"} {
		for _, as := range []string{"text", "json"} {
			t.Run(string(cause)+"/"+as, func(t *testing.T) {
				dir := workDir(t)
				log := filepath.Join(dir, "log.jsonl")
				args := []string{"exec", "-p", "policy.yaml", "-w", "work", "--audit", log, "--"}
				if as == "json" {
					args = append([]string{"exec", "--json"}, args[1:]...)
				}
				cmd := program(t, dir, append(args, "sh", "-c", "echo ready >f; while cat f; do :; done; exit 7")...)
				if as == "json" {
					checkJSONEnding(t, cmd, filepath.Join(dir, "work", "f"), cause, name)
					return
				}
				errs := startReady(t, cmd)
				killChild(t, cmd.Process.Pid, name)
				checkEnding(t, cause, exitCode(cmd.Wait()), errs.String(), log)
			})
		}
	}
}

// checkJSONEnding ends a session once its command has made a file, and reads the object
// that its client prints.
func checkJSONEnding(t *testing.T, cmd *exec.Cmd, ready string, cause wire.Cause, name string) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for text := ""; text != "ready\n"; <-time.After(time.Millisecond) {
		data, err := os.ReadFile(ready)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		text = string(data)
	}
	killChild(t, cmd.Process.Pid, name)
	code := exitCode(cmd.Wait())
	var got struct {
		ExitCode int       `json:"exit_code"`
		Exit     wire.Exit `json:"exit"`
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if code != 125 || got.ExitCode != 125 || got.Exit.Cause != cause || got.Exit.Hint == "" {
		t.Errorf("%d, %+v", code, got)
	}
}

// killChild kills the child of a process that has a name.
func killChild(t *testing.T, parent int, name string) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(parent) + "/task/*/children")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		children, _ := os.ReadFile(task) // the thread may have ended
		for _, child := range strings.Fields(string(children)) {
			line, _ := os.ReadFile("/proc/" + child + "/cmdline")
			pid, err := strconv.Atoi(child)
			if err == nil && string(bytes.SplitN(line, []byte{0}, 2)[0]) == name {
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
				return
			}
		}
	}
	t.Fatalf("process %d has no child %s", parent, name)
}

// TestTheTableOfEndsIsComplete compares doc/faults.md with the table in the code.
func TestTheTableOfEndsIsComplete(t *testing.T) {
	doc, err := os.ReadFile("../../doc/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range wire.Endings() {
		row := "| `" + string(e.Cause) + "` | " + e.Sentence + " | " + strconv.Itoa(e.Cause.Exit("").ExitCode()) + " | "
		if !strings.Contains(string(doc), row) {
			t.Errorf("doc/faults.md has no row %q", row)
		}
	}
}

// stoppedSession stops a supervisor for a time while commands in its session start
// programs, write files and print, then has it go on. Nothing may be lost.
func stoppedSession(t *testing.T, pause time.Duration) {
	dir := workDir(t)
	one := session(t, dir, "one")
	const lines = 200
	script := "i=0; echo ready; while [ $i -lt " + strconv.Itoa(lines) + " ]; do echo line $i >>f$0; /bin/echo line $i; i=$((i+1)); done; exit 7"
	var clients []*exec.Cmd
	outs, errs := make([]bytes.Buffer, 4), make([]bytes.Buffer, 4)
	for i := range outs {
		cmd := program(t, dir, "exec", "-s", "one", "--", "sh", "-c", script, strconv.Itoa(i))
		cmd.Stdout, cmd.Stderr = &outs[i], &errs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, cmd)
	}
	waitForLine(t, filepath.Join(dir, "work", "f3"))
	if err := syscall.Kill(one.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	late := program(t, dir, "exec", "-s", "one", "--", "echo", "late")
	var lateOut bytes.Buffer
	late.Stdout, late.Stderr = &lateOut, &lateOut
	if err := late.Start(); err != nil {
		t.Fatal(err)
	}
	<-time.After(pause) // the fault itself: time in which nobody answers
	if err := syscall.Kill(one.PID, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i := range lines {
		want.WriteString("line " + strconv.Itoa(i) + "\n")
	}
	for i, cmd := range clients {
		code := exitCode(cmd.Wait())
		file, err := os.ReadFile(filepath.Join(dir, "work", "f"+strconv.Itoa(i)))
		if code != 7 || outs[i].String() != "ready\n"+want.String() || string(file) != want.String() || err != nil {
			t.Errorf("command %d: exit %d, %d bytes printed, %d written, %v: %s", i, code, outs[i].Len(), len(file), err, &errs[i])
		}
	}
	if code := exitCode(late.Wait()); code != 0 || lateOut.String() != "late\n" {
		t.Errorf("a command meanwhile: exit %d, %s", code, &lateOut)
	}
	if out, err := program(t, dir, "audit", "verify", one.Audit).CombinedOutput(); err != nil {
		t.Errorf("%v %s", err, out)
	}
}

// waitForLine waits until a file of a command has a line.
func waitForLine(t *testing.T, name string) {
	t.Helper()
	for end := time.Now().Add(hang); ; <-time.After(time.Millisecond) {
		data, err := os.ReadFile(name)
		if err == nil && bytes.Contains(data, []byte("\n")) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %q %v", name, data, err)
		}
	}
}

// AGENTSH_PAUSE makes the pause longer, as in "30s".
func TestAStoppedSupervisorLosesNothing(t *testing.T) {
	pause := time.Second
	if text := os.Getenv("AGENTSH_PAUSE"); text != "" {
		var err error
		if pause, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	stoppedSession(t, pause)
}

// A supervisor without descriptors refuses what needs one. Commands that run go on, and
// so does the session.
func TestWithoutDescriptorsOneCommandIsRefused(t *testing.T) {
	dir := workDir(t)
	one := session(t, dir, "one")
	first := program(t, dir, "exec", "-s", "one", "--", "sh", "-c", "echo ready; read line; echo $line >f; /bin/cat f >g; exit 7")
	feed, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	firstErrs := startReady(t, first)
	held, err := os.ReadDir("/proc/" + strconv.Itoa(one.PID) + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	limit := uint64(len(held)) + 24
	if err := unix.Prlimit(one.PID, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}, nil); err != nil {
		t.Fatal(err)
	}
	var others []*exec.Cmd
	errs := make([]bytes.Buffer, 16)
	for i := range errs {
		cmd := program(t, dir, "exec", "-s", "one", "--", "sleep", "2")
		cmd.Stderr = &errs[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		others = append(others, cmd)
	}
	refused := 0
	for i, cmd := range others {
		switch code := exitCode(cmd.Wait()); {
		case code == 125 && errs[i].Len() > 0:
			refused++
		case code != 0:
			t.Errorf("exit %d: %s", code, &errs[i])
		}
	}
	if refused == 0 || refused == len(others) {
		t.Errorf("%d of %d commands were refused: %s", refused, len(others), &errs[0])
	}
	if _, err := feed.Write([]byte("on\n")); err != nil {
		t.Error(err)
	}
	if code := exitCode(first.Wait()); code != 7 {
		t.Errorf("the first command: exit %d: %s", code, firstErrs)
	}
	if data, err := os.ReadFile(filepath.Join(dir, "work", "g")); err != nil || string(data) != "on\n" {
		t.Errorf("the first command wrote %q, %v", data, err)
	}
	if text, err := program(t, dir, "exec", "-s", "one", "--", "echo", "after").CombinedOutput(); err != nil || string(text) != "after\n" {
		t.Errorf("a command afterwards: %v %s", err, text)
	}
	log, err := os.ReadFile(one.Audit)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(log, []byte("too many open files")) {
		t.Error("the log does not say what was missing")
	}
	if last := lastEvent(t, one.Audit); last.Cause != "" {
		t.Errorf("the session ended: %+v", last)
	}
}

// The processes of a session and its supervisor use up the control group of their
// container. Commands are refused or, if the supervisor needs a thread and gets none, the
// session ends and says so. The supervisor does not die.
func TestWithoutProcessesTheSupervisorLives(t *testing.T) {
	testenv.Need(t, testenv.Root)
	container, unheld := cgroup.New("agentsh-test-processes", []cgroup.Kind{cgroup.Pids})
	testenv.Need(t, testenv.That("a pids control group", func() error { return unheld[cgroup.Pids] }))
	group, err := container.Command("all", cgroup.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	dir := workDir(t)
	one := session(t, dir, "one")
	for _, pid := range append([]int{one.PID}, one.Parts...) {
		if err := group.Add(pid); err != nil {
			t.Fatal(err)
		}
	}
	execs := program(t, dir, "exec", "-s", "one", "--", "bash", "-c", // they need no process for their execve
		"for i in {1..100}; do while read -r line <go; do exec /bin/true; done & done; echo ready; wait; exit 7")
	if err := unix.Mkfifo(filepath.Join(dir, "work", "go"), 0o666); err != nil {
		t.Fatal(err)
	}
	said := startReady(t, execs)
	if err := container.Limit(cgroup.Limits{Pids: 1})[cgroup.Pids]; err != nil { // those that there are stay
		t.Fatal(err)
	}
	var others []*exec.Cmd
	for range 40 {
		cmd := program(t, dir, "exec", "-s", "one", "--", "true")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		others = append(others, cmd)
	}
	feed, err := os.OpenFile(filepath.Join(dir, "work", "go"), os.O_RDWR, 0)
	if err == nil {
		_, err = feed.WriteString(strings.Repeat("on\n", 100))
	}
	if err != nil {
		t.Error(err)
	}
	for _, cmd := range others {
		if code := exitCode(cmd.Wait()); code != 125 {
			t.Errorf("a command without processes: exit %d", code)
		}
	}
	last := lastEvent(t, one.Audit)
	if last.Type == wire.EventSession && last.Phase == "end" {
		checkEnding(t, wire.CauseThreads, exitCode(execs.Wait()), said.String(), one.Audit)
	} else if err := container.Limit(cgroup.Limits{Pids: 1000})[cgroup.Pids]; err != nil {
		t.Error(err)
	} else {
		text, err := program(t, dir, "exec", "-s", "one", "--", "echo", "after").CombinedOutput()
		if err != nil || string(text) != "after\n" {
			t.Errorf("a command afterwards: %v %s", err, text)
		}
	}
	_ = feed.Close()
	if out, err := program(t, dir, "session", "destroy", "one").CombinedOutput(); err != nil && last.Phase != "end" {
		t.Errorf("%v %s", err, out)
	}
	checkKilled(t, dir, one, false)
	container.Release(group)
	if err := container.Close(); err != nil {
		t.Error(err)
	}
}

// A caller whose supervisor dies before it answers learns the same as one whose command ran.
func TestASupervisorThatDiesBeforeItAnswersIsNamed(t *testing.T) {
	dir := workDir(t)
	one := session(t, dir, "one")
	processes, err := pidfds([]int{one.PID})
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(one.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	cmd, errs := program(t, dir, "exec", "-s", "one", "--", "true"), &bytes.Buffer{}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { // the two listeners, and the caller that is not accepted yet; see proc_pid_net(5)
		data, err := os.ReadFile("/proc/net/unix")
		return err != nil || strings.Count(string(data), filepath.Join(dir, "run", "agentsh", "one")+"/") > 2
	})
	if err := syscall.Kill(one.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	checkEnding(t, wire.CauseSupervisor, exitCode(cmd.Wait()), errs.String(), one.Audit)
	endsPidfd(t, processes[0])
}

// The Go runtime ends a program that gets no memory from the kernel. The caller is told,
// and nothing of the session goes on.
func TestASupervisorWithoutMemoryEndsItsSession(t *testing.T) {
	dir := workDir(t)
	one := session(t, dir, "one")
	processes, err := pidfds([]int{one.PID})
	if err != nil {
		t.Fatal(err)
	}
	waits := program(t, dir, "exec", "-s", "one", "--", "sh", "-c", "echo ready; exec sleep 1000")
	errs := startReady(t, waits)
	if err := unix.Prlimit(one.PID, unix.RLIMIT_AS, &unix.Rlimit{Cur: 1, Max: 1}, nil); err != nil {
		t.Fatal(err)
	}
	var wants []*exec.Cmd
	for range 40 { // each needs memory
		cmd := program(t, dir, "exec", "-s", "one", "--", "true", strings.Repeat("x", 100<<10))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wants = append(wants, cmd)
	}
	code := exitCode(waits.Wait())
	for _, cmd := range wants {
		if code := exitCode(cmd.Wait()); code != 0 && code != 125 {
			t.Errorf("a command without memory: exit %d", code)
		}
	}
	endsPidfd(t, processes[0])
	checkEnding(t, wire.CauseSupervisor, code, errs.String(), one.Audit)
	checkKilled(t, dir, one, true)
}
