package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/supervisor"
	"agentsh/supervisor/host"
)

// session starts a session for a test and returns its record.
func session(t testing.TB, dir, name string, flags ...string) host.Running {
	t.Helper()
	args := append([]string{"session", "create", "-p", "policy.yaml", "-w", "work", "--audit", name + ".jsonl", "--name", name}, flags...)
	if out, err := program(t, dir, args...).CombinedOutput(); err != nil {
		t.Fatalf("create: %v %s", err, out)
	}
	t.Cleanup(func() { _ = program(t, dir, "session", "destroy", name).Run() }) // it may have ended
	for _, one := range sessions(t, dir) {
		if one.Name == name {
			return one
		}
	}
	t.Fatalf("%s is not listed", name)
	return host.Running{}
}

func sessions(t testing.TB, dir string) []host.Running {
	t.Helper()
	out, err := program(t, dir, "session", "list", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []host.Running
	if err := json.Unmarshal(out, &list); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return list
}

func runs(pid int) bool {
	_, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid))
	return err == nil
}

// TestEveryEntryPointIsGoverned runs the same in every way that a command can be
// started: what the policy says about programs and the environment holds in
// each, and each is in the audit log.
func TestEveryEntryPointIsGoverned(t *testing.T) {
	dir := workDir(t)
	const script = "env; kill -9 1; echo status $?"
	environment := []string{"PASSED=1", "SECRET=2", "BASH_ENV=/tmp/mine", "INJECTED=no"}
	flags := []string{"-p", "policy.yaml", "-w", "work", "--audit", "log.jsonl"}
	for _, e := range environment {
		flags = append(flags, "-e", e)
	}
	one := session(t, dir, "one")
	command := func(args ...string) string {
		out, err := program(t, dir, args...).CombinedOutput()
		if err != nil {
			t.Errorf("%q: %v", args, err)
		}
		return string(out)
	}
	sitting := func(want string, args ...string) string {
		s := newSeat(t)
		cmd := s.sit(t, dir, args...)
		if want != "" {
			s.typeIn(t, want+"\r")
		}
		s.see(t, "agentsh: denied")
		_ = cmd.Wait() // the status is judged by what was printed
		return s.text()
	}
	log := func(path string) func() []byte {
		return func() []byte {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Error(err)
			}
			return data
		}
	}
	own := log(filepath.Join(dir, "log.jsonl"))
	tests := []struct {
		name string
		run  func() string
		log  func() []byte
	}{
		{"Session.Exec", func() string { return direct(t, dir, nil, environment, script) }, log(filepath.Join(dir, "direct.jsonl"))},
		{
			"Session.Exec with a terminal",
			func() string { return direct(t, dir, &wire.TTY{Term: "vt100"}, environment, script) },
			log(filepath.Join(dir, "direct.jsonl")),
		},
		{"channel", func() string { return overChannel(t, dir, environment, script) }, log(one.Audit)},
		{"exec", func() string {
			return command(append(append([]string{"exec"}, flags...), "--", "bash", "-c", script)...)
		}, own},
		{"exec --json", func() string {
			return strings.ReplaceAll(command(append(append([]string{"exec", "--json"}, flags...), "--", "bash", "-c", script)...), `\n`, "\n")
		}, own},
		{"exec --tty", func() string {
			return sitting("", append(append([]string{"exec", "-t"}, flags...), "--", "bash", "-c", script)...)
		}, own},
		{"exec --session", func() string {
			return command(
				"exec",
				"-s",
				"one",
				"-e",
				"PASSED=1",
				"-e",
				"SECRET=2",
				"-e",
				"BASH_ENV=/tmp/mine",
				"-e",
				"INJECTED=no",
				"--",
				"bash",
				"-c",
				script,
			)
		}, log(one.Audit)},
		{"exec --session --tty", func() string {
			return sitting(
				"",
				"exec",
				"-s",
				"one",
				"-t",
				"-e",
				"PASSED=1",
				"-e",
				"SECRET=2",
				"-e",
				"BASH_ENV=/tmp/mine",
				"-e",
				"INJECTED=no",
				"--",
				"bash",
				"-c",
				script,
			)
		}, log(one.Audit)},
		{"shell", func() string { return sitting(script+"; exit", append([]string{"shell"}, flags...)...) }, own},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out := tt.run()
			lines := strings.Split(strings.ReplaceAll(out, "\r", ""), "\n")
			for _, want := range []string{"PASSED=1", "BASH_ENV=/usr/lib/agentsh/bash_startup.sh", "INJECTED=yes", "status 126"} {
				if !slices.ContainsFunc(lines, func(l string) bool { return strings.HasSuffix(l, want) }) {
					t.Errorf("%s is missing in %q", want, out)
				}
			}
			if strings.Contains(out, "SECRET=2\n") || strings.Contains(out, "/tmp/mine\n") {
				t.Errorf("not filtered: %q", out)
			}
			checkLog(t, tt.log())
		})
	}
}

// checkLog expects the last command of a log with its beginning and end, and the
// refusal between.
func checkLog(t *testing.T, data []byte) {
	t.Helper()
	var seen []string
	d := json.NewDecoder(bytes.NewReader(data))
	for d.More() {
		var e wire.Event
		if err := d.Decode(&e); err != nil {
			t.Fatal(err)
		}
		switch {
		case e.Type == wire.EventCommand && e.Phase == "begin":
			seen = []string{"begin"}
		case e.Type == wire.EventExec && e.Decision == "deny" && e.Rule != nil && e.Rule.Name == "no-kill" && e.Command != "":
			seen = append(seen, "refused")
		case e.Type == wire.EventCommand && e.Phase == "end":
			seen = append(seen, "end")
		}
	}
	if !slices.Equal(seen, []string{"begin", "refused", "end"}) {
		t.Errorf("the log has %q of the last command", seen)
	}
}

// direct runs a script by Session.Exec.
func direct(t *testing.T, dir string, tty *wire.TTY, environment []string, script string) string {
	t.Helper()
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "state"))
	o := execOptions{
		policy:    filepath.Join(dir, "policy.yaml"),
		workspace: filepath.Join(dir, "work"),
		audit:     filepath.Join(dir, "direct.jsonl"),
	}
	p, err := o.openOneShot()
	if err != nil {
		t.Fatal(err)
	}
	s, err := supervisor.Open(t.Context(), p.config)
	if err != nil {
		t.Fatal(err)
	}
	var out capture
	request := wire.ExecRequest{ID: "direct", Argv: []string{"bash", "-c", script}, Env: environment, TTY: tty}
	if _, _, err := s.Exec(t.Context(), request, wire.Streams{Stdout: &out, Stderr: &out}); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := p.close(); err != nil {
		t.Error(err)
	}
	return out.stream().Text
}

// overChannel runs a script through a client of session one.
func overChannel(t *testing.T, dir string, environment []string, script string) string {
	t.Helper()
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "run"))
	registry, err := host.OpenRegistry()
	if err != nil {
		t.Fatal(err)
	}
	client, _, err := registry.Attach(t.Context(), "one", "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var out capture
	if _, err := client.Run(context.Background(), wire.ExecRequest{Argv: []string{"bash", "-c", script}, Env: environment},
		wire.Streams{Stdout: &out, Stderr: &out}); err != nil {
		t.Error(err)
	}
	return out.stream().Text
}

// reach looks for a way to a session's supervisor and prints each that it finds.
const reach = `
import glob, os, socket, subprocess, sys
run, agentsh = sys.argv[1:]
paths = []
for d, below, files in os.walk("/"):
    below[:] = [b for b in below if d != "/" or b not in ("usr", "proc", "sys")]
    paths += [os.path.join(d, f) for f in files if f in ("socket", "keys.json", "session.json")]
for path in paths + glob.glob(run + "/agentsh/*/*") + [run + "/agentsh/one/socket", run + "/agentsh/one/keys.json"]:
    try:
        os.stat(path)
        print("FOUND", path)
    except OSError:
        pass
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("CONNECTED", path)
    except OSError:
        pass
names = [l.split()[-1] for l in open("/proc/net/unix") if l.split()[-1][:1] in "@/"]
for name in names + ["@" + run + "/agentsh/one/socket", "@agentsh"]:
    try:
        socket.socket(socket.AF_UNIX).connect("\0" + name[1:] if name[0] == "@" else name)
        print("CONNECTED", name)
    except OSError:
        pass
for fd in glob.glob("/proc/[0-9]*/fd/*"):
    try:
        if os.readlink(fd).startswith("socket:"):
            print("SOCKET", fd)
        socket.socket(socket.AF_UNIX).connect(fd)
        print("CONNECTED", fd)
    except OSError:
        pass
for line in (["session", "list"], ["exec", "--session", "one", "--", "true"], ["session", "destroy", "one"]):
    p = subprocess.run([agentsh] + line, env={"XDG_RUNTIME_DIR": run}, capture_output=True, text=True)
    if p.returncode == 0 and (p.stdout or line[0] != "session"):
        print("ANSWERED", line, p.stdout)
print("LOOKED")
`

func TestCommandsCannotReachTheirSession(t *testing.T) {
	dir := workDir(t)
	run := filepath.Join(dir, "run")
	shown := strings.Replace(entryPolicy, "'/usr/**', ", fmt.Sprintf("'%s', '%s/**', '/usr/**', ", run, run), 1)
	shown = strings.Replace(shown, ", /tmp, '/tmp/**'", "", 1)
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(shown), 0o644); err != nil {
		t.Fatal(err)
	}
	inside := copyProgram(t, filepath.Join(dir, "work"))
	for _, tt := range []struct {
		name string
		as   func(*exec.Cmd) *exec.Cmd
	}{{"root", func(cmd *exec.Cmd) *exec.Cmd { return cmd }}, {"another user", asUser(t, dir)}} {
		t.Run(tt.name, func(t *testing.T) {
			as := tt.as
			program := func(args ...string) *exec.Cmd {
				cmd := program(t, dir, args...)
				cmd.Path = inside // where another user may run it
				return as(cmd)
			}
			if out, err := program("session", "create", "-p", "policy.yaml", "-w", "work", "--audit", filepath.Join(dir, "state",
				strings.ReplaceAll(tt.name, " ", "-")+".jsonl"), "--name", "one").CombinedOutput(); err != nil {
				t.Fatalf("%v %s", err, out)
			}
			// What agentsh tries in vain inside is told of on the other stream.
			out, err := program("exec", "-s", "one", "--", "python3", "-c", reach, run, inside).Output()
			if err != nil || !strings.HasSuffix(string(out), "LOOKED\n") || strings.Count(string(out), "\n") != 1 {
				t.Errorf("%v\n%s", err, out)
			}
			// The same outside finds all of it.
			outside := exec.Command("/usr/bin/python3", "-c", reach, run, inside)
			outside.Env = []string{"PATH=" + os.Getenv("PATH")}
			found, err := as(outside).CombinedOutput()
			for _, want := range []string{"FOUND " + run + "/agentsh/one/keys.json", "CONNECTED " + run + "/agentsh/one/socket",
				"ANSWERED ['session', 'list']"} {
				if !strings.Contains(string(found), want) {
					t.Errorf("outside nothing says %q: %v\n%s", want, err, found)
				}
			}
			if out, err := program("session", "list").CombinedOutput(); err != nil || len(out) != 0 {
				t.Errorf("it did not destroy the session: %v %s", err, out)
			}
		})
	}
}

// asUser makes commands those of another user that may serve FUSE, with the
// directory as its own.
func asUser(t testing.TB, dir string) func(*exec.Cmd) *exec.Cmd {
	t.Helper()
	device := filepath.Join(dir, "fuse")
	if err := unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(device, 0o666); err != nil {
		t.Fatal(err)
	}
	return func(cmd *exec.Cmd) *exec.Cmd {
		own := `mount --bind "$1" /dev/fuse && chown -R 1000:1000 "$2" && shift 2 && exec setpriv --reuid 1000 --regid 1000 --clear-groups "$@"`
		wrapped := exec.Command("/usr/bin/unshare", append([]string{"--mount", "sh", "-c", own, "sh", device, dir, cmd.Path}, cmd.Args[1:]...)...)
		wrapped.Dir, wrapped.Env = cmd.Dir, cmd.Env
		return wrapped
	}
}

func TestOneOfTwoCreatesGetsTheName(t *testing.T) {
	dir := workDir(t)
	var wg sync.WaitGroup
	results := make(chan string, 4)
	for i := range 4 {
		wg.Go(func() {
			out, err := program(
				t,
				dir,
				"session",
				"create",
				"-p",
				"policy.yaml",
				"-w",
				"work",
				"--audit",
				fmt.Sprintf("log%d", i),
				"--name",
				"same",
			).CombinedOutput()
			results <- fmt.Sprintf("%d %s", exitCode(err), out)
		})
	}
	wg.Wait()
	close(results)
	made := 0
	for r := range results {
		switch {
		case r == "0 same\n":
			made++
		case !strings.HasPrefix(r, "125 agentsh: session same: a session of this name runs, or is just being made\n"):
			t.Error(r)
		}
	}
	if made != 1 {
		t.Errorf("%d were made", made)
	}
	if out, err := program(t, dir, "session", "destroy", "same").CombinedOutput(); err != nil {
		t.Errorf("%v %s", err, out)
	}
}

func TestDestroyLeavesNothing(t *testing.T) {
	dir := workDir(t)
	one := session(t, dir, "one")
	s := newSeat(t)
	cmd := s.sit(
		t,
		dir,
		"exec",
		"-s",
		"one",
		"-t",
		"--",
		"bash",
		"-c",
		"trap '' TERM HUP; setsid sleep 1000 & echo ready; while :; do sleep 1; done",
	)
	s.see(t, "ready")
	if out, err := program(t, dir, "session", "destroy", "one").CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	for _, pid := range append([]int{one.PID}, one.Parts...) {
		if runs(pid) {
			t.Errorf("process %d is left", pid)
		}
	}
	if code := exitCode(cmd.Wait()); code == 0 {
		t.Errorf("the command's caller was not told: %s", s.text())
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "run", "agentsh")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}

func TestAVanishedCallerEndsItsCommand(t *testing.T) {
	dir := workDir(t)
	session(t, dir, "one")
	for _, flags := range [][]string{{"-t"}, {}} {
		s := newSeat(t)
		cmd := s.sit(
			t,
			dir,
			append(append([]string{"exec", "-s", "one"}, flags...), "--", "bash", "-c", "echo $$ >pid; echo ready; exec sleep 1000")...)
		s.see(t, "ready")
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		out, err := program(
			t,
			dir,
			"exec",
			"-s",
			"one",
			"--timeout",
			"20s",
			"--",
			"sh",
			"-c",
			"while [ -e /proc/$(cat pid) ]; do :; done; echo gone",
		).CombinedOutput()
		if string(out) != "gone\n" {
			t.Errorf("%q: %v %s", flags, err, out)
		}
	}
}

func TestAnInterruptEndsTheCommandOfARunningSession(t *testing.T) {
	dir := workDir(t)
	session(t, dir, "one")
	s := newSeat(t)
	cmd := s.sit(t, dir, "exec", "-s", "one", "--", "bash", "-c", "echo ready; exec sleep 1000")
	s.see(t, "ready")
	s.typeIn(t, "\x03")
	if code := exitCode(cmd.Wait()); code != 128+int(syscall.SIGINT) {
		t.Errorf("exit %d: %s", code, s.text())
	}
}

func TestACutCharacterIsLeftOut(t *testing.T) {
	for _, tt := range []struct {
		name, written string
		text          string
		base64        bool
	}{
		{"text is kept whole", "añb", "añb", false},
		{"a character cut by the bound", strings.Repeat("x", maxCaptured-1) + "ñ", strings.Repeat("x", maxCaptured-1), false},
		{"one that just fits", strings.Repeat("x", maxCaptured-2) + "ñ", strings.Repeat("x", maxCaptured-2) + "ñ", false},
		{"half a character that was all", "a\xc3", "", true},
		{"bytes", "\xff\xfe", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c capture
			for part := range slices.Chunk([]byte(tt.written), 1000) {
				if n, err := c.Write(part); n != len(part) || err != nil {
					t.Fatal(n, err)
				}
			}
			s := c.stream()
			if s.Text != tt.text || (s.Base64 != nil) != tt.base64 || s.Bytes != int64(len(tt.written)) ||
				s.Truncated != (len(tt.written) > maxCaptured) {
				t.Errorf("%d bytes of text, %d others, %d in all, truncated %t", len(s.Text), len(s.Base64), s.Bytes, s.Truncated)
			}
		})
	}
}

func TestAKilledSupervisorIsForgotten(t *testing.T) {
	dir := workDir(t)
	one := session(t, dir, "one")
	parts, err := pidfds(append([]int{one.PID}, one.Parts...))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(one.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, fd := range parts {
		endsPidfd(t, fd)
	}
	if list := sessions(t, dir); len(list) != 0 {
		t.Errorf("listed: %+v", list)
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "run", "agentsh")); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	session(t, dir, "one")
}

// endsPidfd waits for the end of a process.
func endsPidfd(t *testing.T, fd int) {
	t.Helper()
	n, err := 0, error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(hang.Milliseconds()))
	}
	if n != 1 {
		t.Errorf("a process does not end: %v", err)
	}
	_ = unix.Close(fd)
}

func pidfds(pids []int) ([]int, error) {
	var out []int
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			return nil, err
		}
		out = append(out, fd)
	}
	return out, nil
}
