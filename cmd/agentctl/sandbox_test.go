package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
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

	"agentsh/cmd/agentctl/sandboxcmd"
	"agentsh/controller"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
)

// waiting is an agent that works until the file go exists.
const waiting = `
mkdir -p d; echo inner > d/f.txt; ln -s f.txt d/in; ln -s /etc/passwd d/out; mkfifo d/pipe; chmod 755 d/f.txt
ln -s /etc/passwd lone
echo agent at work
until [ -e /sandbox/workspace/go ]; do sleep 0.05; done
echo agent stops
`

// going is a run whose agent is at work.
type going struct {
	*fixture
	cmd  *exec.Cmd
	errs messages
}

// messages are what a program prints. They may be read while it prints more.
type messages struct {
	mu    sync.Mutex
	all   bytes.Buffer
	wrote chan struct{} // closed by the next write; nil: nobody waits
}

func (m *messages) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.wrote != nil {
		close(m.wrote)
		m.wrote = nil
	}
	return m.all.Write(p)
}

// find waits until something that matches is printed, and returns it.
func (m *messages) find(t testing.TB, what *regexp.Regexp) string {
	t.Helper()
	limit := time.After(time.Minute)
	for {
		m.mu.Lock()
		found := what.FindString(m.all.String())
		if m.wrote == nil {
			m.wrote = make(chan struct{})
		}
		wrote := m.wrote
		m.mu.Unlock()
		if found != "" {
			return found
		}
		select {
		case <-wrote:
		case <-limit:
			t.Fatalf("it did not print %s:\n%s", what, m)
		}
	}
}

func (m *messages) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all.String()
}

// start starts a run and returns when its agent has printed text.
func (p *fixture) start(text string, more ...string) *going {
	p.t.Helper()
	return p.startAs(text, p.runArgs(more...))
}

// startAs is like start, with all arguments.
func (p *fixture) startAs(text string, args []string) *going {
	p.t.Helper()
	g := &going{fixture: p, cmd: p.command(args...)}
	g.cmd.Stderr = &g.errs
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := g.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if g.cmd.ProcessState == nil {
			_ = g.cmd.Process.Signal(syscall.SIGTERM)
			_ = g.cmd.Wait()
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), text) {
	}
	if lines.Err() != nil || !strings.Contains(lines.Text(), text) {
		_ = g.cmd.Wait()
		p.t.Fatalf("the agent never came to %q: %v\n%s", text, lines.Err(), g.errs.String())
	}
	go func() { _, _ = io.Copy(io.Discard, out) }()
	return g
}

// wait waits for the run's end.
func (g *going) wait() int {
	g.t.Helper()
	_ = g.cmd.Wait()
	g.t.Logf("%s", g.errs.String())
	return g.cmd.ProcessState.ExitCode()
}

// try runs agentctl and returns its output and exit code.
func (p *fixture) try(stdin string, args ...string) (out, errs string, code int) {
	p.t.Helper()
	cmd := p.command(args...)
	var o, e bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &o, &e
	if err := cmd.Run(); cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return o.String(), e.String(), cmd.ProcessState.ExitCode()
}

func TestAnOperatorWorksInTheSandboxOfARun(t *testing.T) {
	t.Parallel()
	p := newFixture(t, waiting, "")
	g := p.start("agent at work")
	var list []sandboxcmd.SandboxJSON
	out, _, _ := p.try("", "sandbox", "list", "--json")
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list) != 1 || list[0].Step != "iterations" || list[0].Agent != "tester" {
		t.Fatalf("list: %s", out)
	}
	id := list[0].Sandbox
	repo := "/sandbox/workspace/repo"

	tests := []struct {
		name, stdin string
		args        []string
		code        int
		out, errs   string // errs: a part
	}{
		{"a command", "", []string{"exec", id, "--", "sh", "-c", "pwd; echo oops >&2; exit 7"}, 7, repo + "\n", "oops\n"},
		{"a directory in the repository", "", []string{"exec", "--cwd", "d", id, "--", "pwd"}, 0, repo + "/d\n", ""},
		{"a directory of the sandbox", "", []string{"exec", "--cwd", "/sandbox", id, "--", "pwd"}, 0, "/sandbox\n", ""},
		{"its input", "some\ninput", []string{"exec", "latest", "--", "cat"}, 0, "some\ninput", ""},
		{
			"a directory, and a variable that env_policy drops",
			"",
			[]string{"exec", "--cwd", repo, "-e", "X=1", id, "sh", "-c", "echo $X; cat a.txt"},
			0,
			"\none\n",
			"agentctl: --env X was dropped: ",
		},
		{
			"the policy holds",
			"",
			[]string{"exec", id, "--", "kill", "-0", "1"},
			126,
			"",
			"denied: kill: processes are not signalled from here (rule block-kill policy.yaml:8:5)",
		},
		{"the policy holds for files", "", []string{"exec", id, "--", "cat", "/etc/shadow"}, 1, "", "Permission denied"},
		{"a timeout", "", []string{"exec", "--timeout", "100ms", id, "--", "sleep", "1000"}, 124, "", "ended by its timeout"},
		{"no such program", "", []string{"exec", id, "--", "nonesuch"}, 127, "", "nonesuch"},
		{"no such sandbox", "", []string{"exec", "x", "--", "true"}, 125, "", `no such sandbox: "x"`},
		{"a terminal is needed", "", []string{"shell", id}, 125, "", "standard input is not a terminal"},
		{"the log", "", []string{"logs", id}, 0, "agent at work\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, errs, code := p.try(tt.stdin, append([]string{"sandbox"}, tt.args...)...)
			if code != tt.code || out != tt.out || !strings.Contains(errs, tt.errs) {
				t.Errorf("exit code %d, out %q, errors %q", code, out, errs)
			}
		})
	}

	for args, want := range map[string]string{"sandbox exec": id + "\ttester running\n", "sandbox shell": id, "sandbox cp": id + ":\t",
		"runs report": id} {
		out, _, _ := p.try("", append(append([]string{"__complete"}, strings.Fields(args)...), "")...)
		if !strings.Contains(out, want) {
			t.Errorf("completion of %s: %q", args, out)
		}
	}
	t.Run("copies", func(t *testing.T) { p.copies(t, id, repo) })
	t.Run("terminal", func(t *testing.T) { p.terminal(t, id) })
	t.Run("a terminal of a command that does not end", func(t *testing.T) { p.leftTerminal(t, id) })
	t.Run("outputs that go nowhere", func(t *testing.T) { p.undelivered(t, id) })
	t.Run("another pid namespace", func(t *testing.T) {
		cmd := p.command()
		cmd.Path, cmd.Args = "/usr/bin/unshare", append(
			[]string{"unshare", "--pid", "--fork", "--mount-proc", p.bin + "/agentctl"},
			"sandbox",
			"exec",
			id,
			"--",
			"true",
		)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "channel handshake") {
			t.Errorf("it was not refused by the handshake: %v %s", err, out)
		}
	})

	follow := p.command("sandbox", "logs", id, "--follow")
	following := make(chan struct{}, 2)
	began := func() { following <- struct{}{} }
	followed := &watcher{want: []byte("agent at work"), found: began}
	follow.Stdout = followed
	if err := follow.Start(); err != nil {
		t.Fatal(err)
	}
	if out, errs, code := p.try("", "sandbox", "logs", id, "--events"); code != 0 || !strings.Contains(out, `"argv":["agent"`) && !strings.Contains(out, `"seq":1,`) {
		t.Errorf("the events so far: exit code %d, %q %s", code, out, errs)
	}
	events := p.command("sandbox", "logs", id, "--events", "-f")
	seen := &watcher{want: []byte(`"seq":1,`), found: began}
	var eventErrors strings.Builder
	events.Stdout, events.Stderr = seen, &eventErrors
	if err := events.Start(); err != nil {
		t.Fatal(err)
	}
	for range cap(following) { // the run must not end before they see it
		select {
		case <-following:
		case <-time.After(time.Minute):
			t.Fatal("a command that follows the logs of the run printed nothing for a minute")
		}
	}
	if _, errs, code := p.try("", "sandbox", "exec", id, "--", "touch", "/sandbox/workspace/go"); code != 0 {
		t.Fatalf("touch: %s", errs)
	}
	if code := g.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for name, cmd := range map[string]*exec.Cmd{"logs --follow": follow, "logs --events -f": events} {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v %s", name, err, &eventErrors)
		}
	}
	if got := followed.all.String(); got != "agent at work\nagent stops\n" {
		t.Errorf("followed: %q", got)
	}
	p.recorded(t, id, seen.all.Bytes())
}

// copies copies files out of a sandbox and into it.
func (p *fixture) copies(t *testing.T, id, repo string) {
	p.write("here/keep.txt", "old\n", 0o644)
	p.write("here/b\xff", "bytes\n", 0o644)
	p.write("here/dir/sub/x.txt", "brought\n", 0o755)
	p.write("here/dir/.git/hooks/post-commit", "no\n", 0o755)
	tests := []struct {
		name     string
		from, to string
		code     int
		errs     string
		file     string // that exists afterwards
		text     string
	}{
		{"a file into a directory", id + ":" + repo + "/a.txt", "here", 0, "", "here/a.txt", "one\n"},
		{"a file under another name", id + ":" + repo + "/a.txt", "here/b.txt", 0, "", "here/b.txt", "one\n"},
		{"a file over a file", id + ":" + repo + "/a.txt", "here/keep.txt", 0, "", "here/keep.txt", "one\n"},
		{"a directory, without what cannot travel", id + ":" + repo + "/d", "here", 4, `left out: "out"`, "here/d/f.txt", "inner\n"},
		{"a directory is not merged", id + ":" + repo + "/d", "here", 4, "exists", "", ""},
		{"a link that leads out", id + ":" + repo + "/lone", "here/passwd", 4, `left out: "lone"`, "", ""},
		{"a fifo", id + ":" + repo + "/d/pipe", "here/pipe", 4, `left out: "pipe"`, "", ""},
		{"the agent's git", id + ":" + repo + "/.git/config", "here", 4, "--git copies it", "", ""},
		{"what is not there", id + ":" + repo + "/none", "here", 4, "no such file", "", ""},
		{"out of what is served", id + ":/etc/passwd", "here", 4, "not beneath a served directory", "", ""},
		{"a way out by dots", id + ":/sandbox/../etc/passwd", "here", 4, "not beneath a served directory", "", ""},
		{"into nowhere", id + ":" + repo + "/a.txt", "nowhere/x", 4, "no such file", "", ""},
		{"two sandboxes", id + ":/a", id + ":/b", 2, "one of the two", "", ""},
		{"no sandbox", "here", "there", 2, "one of the two", "", ""},
		{"in", "here/dir", id + ":/sandbox/workspace", 0, "", "", ""},
		{"in, a file", "here/keep.txt", id + ":/sandbox/workspace/dir/new.txt", 0, "", "", ""},
		{"in, a name that is not UTF-8", "here/b\xff", id + ":/sandbox/workspace/", 0, "", "", ""},
		{"out, a name that is not UTF-8", id + ":/sandbox/workspace/b\xff", "here/c\xfe", 0, "", "here/c\xfe", "bytes\n"},
		{"in, to a directory that is not there", "here/keep.txt", id + ":/sandbox/workspace/none/", 4, "does not exist", "", ""},
		{"in, to the variables of commands", "here/keep.txt", id + ":/sandbox/workspace/.env.d/a.env", 4, "env.sandbox in the harness", "", ""},
		{"in, to a place of the machine", "here/keep.txt", id + ":/etc/motd", 4, "files are copied below /sandbox only", "", ""},
		{"in, from the repository on", "here/keep.txt", id + ":relative.txt", 0, "", "", ""},
		{"out, from the repository on", id + ":relative.txt", "here/relative.txt", 0, "", "here/relative.txt", "one\n"},
	}
	for _, tt := range tests {
		out, errs, code := p.try("", "sandbox", "cp", tt.from, tt.to)
		if code != tt.code || out != "" || !strings.Contains(errs, tt.errs) {
			t.Errorf("%s: exit code %d, %q %q", tt.name, code, out, errs)
		}
		if tt.file != "" && p.read(tt.file) != tt.text {
			t.Errorf("%s: %s is %q", tt.name, tt.file, p.read(tt.file))
		}
	}
	if info, err := os.Lstat(p.path("here/d/f.txt")); err != nil || info.Mode() != 0o755 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if to, err := os.Readlink(p.path("here/d/in")); err != nil || to != "f.txt" {
		t.Errorf("link %q, %v", to, err)
	}
	for _, name := range []string{"here/d/out", "here/d/pipe", "here/passwd", "here/pipe", "here/config", "nowhere"} {
		if _, err := os.Lstat(p.path(name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s came out: %v", name, err)
		}
	}
	if left, _ := filepath.Glob(p.path("here/.agentctl-*")); len(left) > 0 {
		t.Errorf("left behind: %s", left)
	}
	out, errs, _ := p.try(
		"",
		"sandbox",
		"exec",
		id,
		"--",
		"sh",
		"-c",
		"cd /sandbox/workspace/dir; cat sub/x.txt new.txt; ls -A; test -x sub/x.txt && echo runs",
	)
	if out != "brought\none\nnew.txt\nsub\nruns\n" {
		t.Errorf("brought in: %q %q", out, errs)
	}
}

// terminal runs a command on a terminal.
func (p *fixture) terminal(t *testing.T, id string) {
	master, slave := openTerminal(t)
	defer master.Close()
	size := func(rows, cols uint16) {
		if err := unix.IoctlSetWinsize(int(slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
			t.Fatal(err)
		}
	}
	size(31, 97)
	cmd := p.command(
		"sandbox",
		"exec",
		"-t",
		id,
		"--",
		"sh",
		"-c",
		`stty size; read word; echo "got $word"; until [ "$(stty size)" = "12 34" ]; do sleep 0.05; done; tty; exit 5`,
	)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill(); master.Close() })
	defer watchdog.Stop()
	var shown bytes.Buffer
	buf := make([]byte, 4096)
	see := func(text string) {
		for !strings.Contains(shown.String(), text) {
			n, err := master.Read(buf)
			shown.Write(buf[:n])
			if err != nil {
				t.Fatalf("%v, shown: %q", err, shown.String())
			}
		}
	}
	see("31 97")
	if _, err := master.Write([]byte("word\r")); err != nil {
		t.Fatal(err)
	}
	see("got word")
	size(12, 34)
	_ = cmd.Process.Signal(syscall.SIGWINCH)
	see("/dev/")
	_ = cmd.Wait()
	slave.Close()
	if code := cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("exit code %d, shown: %q", code, shown.String())
	}
}

// undelivered runs commands whose output cannot be written or is not read.
func (p *fixture) undelivered(t *testing.T, id string) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	r, unread, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer unread.Close()
	gone, closed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	defer closed.Close()
	const told = "agentctl: standard output could not be written: no space left on device\n"
	for _, tt := range []struct {
		name, script string
		flags        []string
		out          *os.File
		code         int
		errs         string // a part
	}{
		{"a full device", "echo x; exec sleep 1000", nil, full, 125, told},
		{"a full device for a terminal", "echo x; exec sleep 1000", []string{"-t"}, full, 125, told},
		{"a reader that went", "exec yes", nil, closed, 128 + int(syscall.SIGPIPE), ""},
		{"nobody reads", "exec yes", nil, unread, 143, "agentctl: standard output could not be written: nobody read it"},
		{"nobody reads, until a timeout", "exec yes", []string{"--timeout", "1s"}, unread, 124, ""}, // the command may not have begun
	} {
		t.Run(tt.name, func(t *testing.T) {
			cmd := p.command(append(append([]string{"sandbox", "exec"}, tt.flags...), id, "--", "sh", "-c", tt.script)...)
			var errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = tt.out, &errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			watchdog := time.AfterFunc(2*time.Minute, func() { _ = cmd.Process.Kill() })
			defer watchdog.Stop()
			if tt.code == 128+int(syscall.SIGTERM) {
				testenv.WaitFull(t, unread)
				testenv.WaitWriting(t, cmd.Process.Pid, 1)
				_ = cmd.Process.Signal(syscall.SIGTERM)
			}
			_ = cmd.Wait() // the status is compared
			if code := cmd.ProcessState.ExitCode(); code != tt.code || !strings.Contains(errs.String(), tt.errs) {
				t.Errorf("exit code %d, errors %q", code, &errs)
			}
		})
	}
}

// recorded checks the operator's actions in the record and the audit log.
func (p *fixture) recorded(t *testing.T, id string, seen []byte) {
	if !bytes.Contains(seen, []byte(`"by":"operator root"`)) {
		t.Error("the events do not name the operator")
	}
	marked, agents := 0, 0
	for line := range strings.Lines(p.read("out/audit.jsonl")) {
		var e wire.Event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatal(err)
		}
		if e.Type != wire.EventCommand || e.Phase != "begin" {
			continue
		}
		switch {
		case e.By == "operator root":
			marked++
		case e.By != "" || strings.HasPrefix(e.Command, "operator-"):
			t.Errorf("%s", line)
		default:
			agents++
		}
	}
	if marked < 8 || agents == 0 {
		t.Errorf("%d commands of the operator, %d of the run", marked, agents)
	}
	out, _, _ := p.try("", "runs", "show", id)
	for _, want := range []string{"done by operators:", "operator root: exec touch /sandbox/workspace/go", "operator root: copy_in /sandbox/workspace/dir", "operator root: copy_out " + "/sandbox/workspace/repo"} {
		if !strings.Contains(out, want) {
			t.Errorf("runs show does not say %q:\n%s", want, out)
		}
	}
	page, _, _ := p.try("", "runs", "report", id)
	if !strings.Contains(page, "asked for by operator root") || !strings.Contains(page, `<section id="operator">`) {
		t.Error("the page does not tell of the operator")
	}
	if out, _, _ := p.try("", "sandbox", "list"); out != "" {
		t.Errorf("still listed: %s", out)
	}
}

func TestDeletingASandboxEndsItsRun(t *testing.T) {
	for _, force := range []bool{false, true} {
		t.Run(map[bool]string{false: "its work is taken out", true: "by force"}[force], func(t *testing.T) {
			p := newFixture(t, "echo half > a.txt; git commit -q -a -m half"+waiting, "")
			adopt(t)
			g := p.start("agent at work")
			args := []string{"sandbox", "delete", "latest"}
			if force {
				args = append(args, "--force")
			}
			if out, errs, code := p.try("", args...); code != 0 || out != "" {
				t.Errorf("exit code %d, %q %q", code, out, errs)
			}
			if left, _ := filepath.Glob(p.path("state/agentsh/sandboxes/*")); len(left) > 0 {
				t.Errorf("it is there: %s", left)
			}
			if code := g.wait(); code != 143 || !strings.Contains(g.errs.String(), "ended by operator root") {
				t.Errorf("exit code %d", code)
			}
			waitOrphans(t)
			out, _, _ := p.try("", "runs", "show", "latest")
			if !strings.Contains(out, "ended by operator root") || !strings.Contains(out, "cancelled") {
				t.Errorf("runs show:\n%s", out)
			}
			if _, err := os.Stat(p.path("out/result.json")); !force && err != nil {
				t.Error(err)
			}
		})
	}
}

// sandboxes are the sandboxes that sandbox list prints.
func (p *fixture) sandboxes() []sandboxcmd.SandboxJSON {
	p.t.Helper()
	out, errs, _ := p.try("", "sandbox", "list", "--json")
	var list []sandboxcmd.SandboxJSON
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		p.t.Fatalf("list: %v\n%s%s", err, out, errs)
	}
	return list
}

// lookInto works in a kept sandbox with each command.
func (p *fixture) lookInto(id string) {
	p.t.Helper()
	for _, c := range []struct {
		args      []string
		code      int
		out, errs string
	}{
		{[]string{"exec", id, "--", "cat", "a.txt"}, 0, "found\n", ""},
		{[]string{"exec", "latest", "--", "sh", "-c", "echo more > b.txt; pwd; exit 7"}, 7, "/sandbox/workspace/repo\n", ""},
		{[]string{"exec", id, "--", "kill", "-0", "1"}, 126, "", "rule block-kill"},
		{[]string{"cp", id + ":/sandbox/workspace/repo/b.txt", "copy.txt"}, 0, "", ""},
		{[]string{"cp", "copy.txt", id + ":/sandbox/workspace/c.txt"}, 0, "", ""},
		{[]string{"exec", id, "--", "cat", "/sandbox/workspace/c.txt"}, 0, "more\n", ""},
		{[]string{"logs", id}, 0, "agent at work\n", ""},
	} {
		out, errs, code := p.try("", append([]string{"sandbox"}, c.args...)...)
		if code != c.code || out != c.out || !strings.Contains(errs, c.errs) {
			said, _ := os.ReadFile(p.path("state/agentsh/sandboxes/" + id + "/supervisor.log")) // a sandbox that ended has none
			p.t.Errorf("%q: exit code %d, %q %q\nsupervisor: %s", c.args, code, out, errs, said)
		}
	}
	if out, _, _ := p.try("", "runs", "show", id); !strings.Contains(out, ": exec cat a.txt") {
		p.t.Errorf("the operator's actions are not recorded:\n%s", out)
	}
	if out, errs, code := p.try("", "gc"); code != 0 || strings.Contains(out, "sandbox") {
		p.t.Errorf("gc before the end of the lease: %q %q", out, errs)
	}
}

func TestASandboxIsKeptForALook(t *testing.T) {
	t.Run("until it is deleted", func(t *testing.T) {
		p := newFixture(t, "echo found > a.txt; echo agent at work; exit 3", "")
		adopt(t)
		r, code := p.run("--keep-sandbox")
		if code != controller.ExitAgentFailed || p.read("out/files/a.txt") != "found\n" {
			t.Fatalf("exit code %d: %+v", code, r)
		}
		list := p.sandboxes()
		if len(list) != 1 || list[0].Until == nil || time.Until(*list[0].Until) < 50*time.Minute || time.Until(*list[0].Until) > time.Hour {
			t.Fatalf("list: %+v", list)
		}
		p.lookInto(list[0].Sandbox)
		if out, errs, code := p.try("", "sandbox", "delete", "latest"); code != 0 || out != "" {
			t.Errorf("delete: %d %q %q", code, out, errs)
		}
		waitOrphans(t)
		if list := p.sandboxes(); len(list) != 0 {
			t.Errorf("it is listed: %+v", list)
		}
		if out, errs, code := p.try("", "runs", "show", "latest"); code != 0 || !strings.Contains(out, "agent failed") {
			t.Errorf("runs show: %s%s", out, errs)
		}
	})
	t.Run("after its agentctl was killed", func(t *testing.T) {
		p := newFixture(t, "echo found > a.txt; echo agent at work; exec sleep 1000", "")
		adopt(t)
		g := p.start("agent at work", "--keep-sandbox", "1h")
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
		var list []sandboxcmd.SandboxJSON
		for deadline := time.Now().Add(2 * time.Minute); len(list) == 0 && time.Now().Before(deadline); {
			list = p.sandboxes()
		}
		if len(list) != 1 || list[0].Until == nil {
			t.Fatalf("list: %+v", list)
		}
		p.lookInto(list[0].Sandbox)
		if out, _, code := p.try("", "sandbox", "exec", "latest", "--", "sh", "-c", "grep -lx sleep /proc/[0-9]*/comm"); code == 0 {
			t.Errorf("the agent goes on: %d %s", code, out)
		}
		if out, errs, code := p.try("", "sandbox", "delete", "latest"); code != 0 || out != "" {
			t.Errorf("delete: %d %q %q", code, out, errs)
		}
		waitOrphans(t)
	})
	t.Run("until its lease ends", func(t *testing.T) {
		p := newFixture(t, "echo found > a.txt; echo agent at work; exec sleep 1000", "")
		adopt(t)
		const lease = 2 * time.Second
		g := p.start("agent at work", "--keep-sandbox", lease.String())
		dirs, _ := filepath.Glob(p.path("state/agentsh/sandboxes/*"))
		if len(dirs) != 1 {
			t.Fatalf("sandboxes: %s", dirs)
		}
		killed := time.Now()
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
		waitOrphans(t)
		if kept := time.Since(killed); kept < lease {
			t.Errorf("it ended after %s", kept)
		}
		if _, errs, code := p.try("", "sandbox", "exec", "latest", "--", "true"); code != 125 || !strings.Contains(errs, "no such sandbox") {
			t.Errorf("after its lease: %d %s", code, errs)
		}
		if out, errs, code := p.try("", "gc"); code != 0 || !strings.Contains(out, "removed sandbox "+filepath.Base(dirs[0])) {
			t.Errorf("gc: %d %q %q", code, out, errs)
		}
	})
	t.Run("not after an interruption", func(t *testing.T) {
		p := newFixture(t, "echo agent at work; exec sleep 1000", "")
		adopt(t)
		g := p.start("agent at work", "--keep-sandbox", "1h")
		_ = g.cmd.Process.Signal(syscall.SIGINT)
		if code := g.wait(); code != 130 {
			t.Errorf("exit code %d", code)
		}
		waitOrphans(t)
	})
	t.Run("not after an agent that succeeded", func(t *testing.T) {
		p := newFixture(t, "true", "")
		if r, code := p.run("--keep-sandbox", "1h"); code != 0 {
			t.Errorf("exit code %d: %+v", code, r.Error)
		}
	})
	t.Run("not for ever", func(t *testing.T) {
		p := newFixture(t, "true", "")
		if _, errs, code := p.try("", p.runArgs("--keep-sandbox", "25h")...); code != 2 || !strings.Contains(errs, "at most 24h") {
			t.Errorf("exit code %d: %s", code, errs)
		}
	})
}

func TestAKilledControllerLetsNobodyIn(t *testing.T) {
	testenv.Need(t, testenv.Root)
	p := newFixture(t, waiting, "")
	adopt(t)
	g := p.start("agent at work")
	_ = g.cmd.Process.Kill()
	_ = g.cmd.Wait()
	waitOrphans(t)
	if _, errs, code := p.try("", "sandbox", "exec", "latest", "--", "true"); code != 125 || !strings.Contains(errs, "no such sandbox") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if out, _, _ := p.try("", "runs", "list"); !strings.Contains(out, "abandoned") {
		t.Errorf("runs list: %s", out)
	}
	before, _, _ := p.try("", "gc", "--dry-run")
	after, errs, code := p.try("", "gc")
	if code != 0 || strings.ReplaceAll(before, "would remove", "removed") != after || strings.Count(after, "\n") != 2 {
		t.Errorf("gc: exit code %d, %q, %q before: %s", code, after, before, errs)
	}
	page, errs, _ := p.try("", "runs", "report", "latest")
	if !strings.Contains(page, "agentctl was killed while the run went on") || !strings.Contains(page, "run.sh") {
		t.Errorf("the page does not tell of the killed run: %s", errs)
	}
}
