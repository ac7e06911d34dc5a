package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/supervisor/host"
)

// askingDir is a directory whose policy has a person decide about uname.
func askingDir(t *testing.T, via string) string {
	t.Helper()
	dir := workDir(t)
	text := strings.Replace(
		entryPolicy,
		"command_rules:\n",
		"approvals: {via: "+via+", timeout: 10m}\ncommand_rules:\n  - {name: ask, commands: [uname], decision: approve}\n",
		1,
	)
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// waiting returns what waits in a session as soon as something does.
func waiting(t *testing.T, dir, name string) []wire.Pending {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "run"))
	registry, err := host.OpenRegistry()
	if err != nil {
		t.Fatal(err)
	}
	client, _, err := registry.Attach(t.Context(), name, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	found := errors.New("found")
	var list []wire.Pending
	err = client.FollowApprovals(t.Context(), "", func(now []wire.Pending) error {
		if list = now; len(list) > 0 {
			return found
		}
		return nil
	})
	if !errors.Is(err, found) {
		t.Fatal(err)
	}
	return list
}

func TestApprovalsAreListedAndAnswered(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "channel")
	session(t, dir, "one")
	for _, word := range []string{"allow", "deny"} {
		cmd := program(t, dir, "exec", "--session", "one", "--", "uname", "-s")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		id := waiting(t, dir, "one")[0].ID
		listed, err := program(t, dir, "approvals", "list", "--json").Output()
		var list []wire.Pending
		if err != nil || json.Unmarshal(listed, &list) != nil || len(list) != 1 || list[0].ID != id ||
			strings.Join(list[0].Argv, " ") != "uname -s" {
			t.Errorf("list: %v %s", err, listed)
		}
		table, err := program(t, dir, "approvals", "list").Output()
		if err != nil || !strings.Contains(string(table), "/usr/bin/uname: uname -s (in ") ||
			!strings.Contains(string(table), "ask (policy.yaml:") {
			t.Errorf("table: %v %s", err, table)
		}
		if text, err := program(t, dir, "approvals", word, id).CombinedOutput(); err != nil || len(text) > 0 {
			t.Errorf("%s: %v %s", word, err, text)
		}
		err = cmd.Wait()
		if (err == nil) != (word == "allow") || (out.String() == "Linux\n") != (word == "allow") {
			t.Errorf("%s: %v %s", word, err, &out)
		}
		if text, err := program(t, dir, "approvals", word, id).CombinedOutput(); err == nil || !strings.Contains(string(text), "no question") {
			t.Errorf("again: %v %s", err, text)
		}
	}
}

// answerAt answers the question that a terminal shows.
func (s *seat) answerAt(t *testing.T, allow bool) {
	t.Helper()
	word := "n"
	if allow {
		word = "y"
	}
	s.reply(t, 1, word)
}

func TestApproveAsksOnATerminal(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	session(t, dir, "one")
	if out, err := program(t, dir, "exec", "--session", "one", "--", "uname").CombinedOutput(); err == nil ||
		!strings.Contains(string(out), "no approver is there") {
		t.Errorf("without anybody: %v %s", err, out)
	}
	for _, allow := range []bool{true, false} {
		s := newSeat(t)
		asking := program(t, dir, "approve", "one")
		asking.Stdin, asking.Stdout, asking.Stderr = s.slave, s.slave, s.slave
		if err := asking.Start(); err != nil {
			t.Fatal(err)
		}
		s.see(t, "waiting for questions")
		cmd := program(t, dir, "exec", "--session", "one", "--", "uname", "-s", "\x1b[2J\u202e")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		s.see(t, `uname -s "\x1b[2J\u202e"`)
		s.answerAt(t, allow)
		_ = cmd.Wait()
		if denied := cmd.ProcessState.ExitCode() == 126; denied == allow {
			t.Errorf("allow %v: %v", allow, cmd.ProcessState)
		}
		_ = asking.Process.Signal(syscall.SIGINT)
		if err := asking.Wait(); err != nil {
			t.Errorf("approve: %v", err)
		}
	}
}

// What the command writes waits while a question is on the terminal.
func TestExecAsksOnATerminalThatTheCommandDoesNotRead(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	dir := askingDir(t, "tty")
	start := func(t *testing.T, s *seat) *exec.Cmd {
		cmd := program(
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
			"(i=0; while [ $i -lt 20 ]; do echo noise; i=$((i+1)); done) & /usr/bin/uname -s; x=$?; wait; exit $x",
		)
		cmd.Stdout = s.slave
		cmd.ExtraFiles = []*os.File{s.slave}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return cmd
	}
	for _, allow := range []bool{true, false} {
		s := newSeat(t)
		cmd := start(t, s)
		s.answerAt(t, allow)
		_ = cmd.Wait()
		if ok := cmd.ProcessState.ExitCode() == 0; ok != allow {
			t.Errorf("allow %v: %v", allow, cmd.ProcessState)
		}
	}
}
