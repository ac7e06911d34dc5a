package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/statedir"
	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/probe"
)

func TestMain(m *testing.M) {
	Reexec()
	testenv.DefaultSignals()
	os.Exit(m.Run())
}

// testPolicy lets ordinary commands work and refuses a few things.
const testPolicy = `version: 1
name: test
command_rules:
  - {name: no-kill, commands: [kill, /usr/bin/kill], decision: deny, message: no signals, }
  - {name: swapped, commands: [hostid], decision: redirect, redirect_to: {command: sh, args: [-c, "echo instead $MARK"], environment: {MARK: set}}}
  - {name: short, commands: [sleep], decision: allow, timeout: 10m}
  - {name: rest, commands: ['*'], decision: allow}
file_rules:
  - {name: guarded, paths: ['${WORKSPACE}/guarded', '${WORKSPACE}/guarded/**'], operations: [write, create, delete, rename, mkdir, link, symlink, mknod], decision: deny}
  - {name: secret, paths: [/etc/shadow], operations: ['*'], decision: deny, message: not yours}
  - {name: workspace, paths: ['${WORKSPACE}', '${WORKSPACE}/**', /tmp, '/tmp/**'], operations: ['*'], decision: allow}
  - {name: system, paths: ['/usr/**', '/bin/**', '/lib/**', '/lib64/**', '/etc', '/etc/**'], operations: [read, list, stat, execute], decision: allow}
env_policy: {allow: [PASSED, PATH, HOME, SHLVL, LANG]}
env_inject: {BASH_ENV: /usr/lib/agentsh/bash_startup.sh, BOTH: policy}
`

// box is a session for a test with its audit log.
type box struct {
	*Session
	workspace string
	log       string
	audit     *audit.Log
}

// AGENTSH_ENGINE=trace runs the tests without the listener.
var traced = os.Getenv("AGENTSH_ENGINE") == "trace"

// procRule matches rules that decide on reading files below /proc, which the trace engine cannot hold.
var procRule = regexp.MustCompile(`(?m)^ *- \{.*paths: \['/proc/.*operations: \[read(, write)?\].*\n`)

// testConfig is a session of the engine that the tests run with, and of those rules of a policy that it can hold.
func testConfig(t testing.TB, text string) (Config, string) {
	t.Helper()
	if !traced {
		return wholeConfig(t, text)
	}
	cfg, log := wholeConfig(t, procRule.ReplaceAllString(text, ""))
	cfg.Forbidden = []probe.Setting{{Name: "listener", At: "AGENTSH_ENGINE"}}
	return cfg, log
}

// wholeConfig is a session of any engine, with a policy as it is.
func wholeConfig(t testing.TB, text string) (Config, string) {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	workspace := filepath.Join(dir, "work")
	if err := os.Mkdir(workspace, 0o755); err != nil {
		t.Fatal(err)
	}
	p, err := syntax.Load(policy.Source{Name: "test.yaml", Data: []byte(text)},
		syntax.Options{Vars: map[string]string{"WORKSPACE": workspace, "PROJECT_ROOT": workspace, "HOME": "/home/sandbox", "TMPDIR": "/tmp"}})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "audit.jsonl")
	log, err := audit.Open(path, audit.Options{KeyFile: filepath.Join(dir, "key")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	cfg := SessionConfig(
		OperatorConfig{Path: DefaultOperator.Path, User: "sandbox", EnvInject: map[string]string{"BOTH": "config", "FROM_CONFIG": "yes"}},
		Request{
			Boot:   wire.Bootstrap{Governed: []wire.Governed{{Backing: workspace, Path: workspace}}, Home: "/home/sandbox"},
			Policy: p, Audit: log,
		},
	)
	cfg.Log = slog.New(slog.DiscardHandler)
	if os.Getenv("AGENTSH_ENGINE_LOG") != "" {
		cfg.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	}
	return cfg, path
}

func openBox(t testing.TB, text string) *box {
	t.Helper()
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, log := testConfig(t, text)
	return openConfig(t, cfg, log)
}

func openConfig(t testing.TB, cfg Config, log string) *box {
	t.Helper()
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &box{Session: s, workspace: cfg.Cwd, log: log, audit: cfg.Audit}
}

// run runs a command and returns how it ended and what it printed, standard
// output first.
func (b *box) run(t testing.TB, argv ...string) (wire.Exit, string) {
	t.Helper()
	return b.request(t, wire.ExecRequest{ID: t.Name(), Argv: argv})
}

func (b *box) request(t testing.TB, req wire.ExecRequest) (wire.Exit, string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	exit, _, err := b.Exec(context.Background(), req, wire.Streams{Stdout: &stdout, Stderr: &stderr})
	if err != nil {
		t.Fatalf("%q: %v", req.Argv, err)
	}
	return exit, stdout.String() + stderr.String()
}

// events are the events of the log that want describes.
func (b *box) events(t testing.TB, want func(wire.Event) bool) []wire.Event {
	t.Helper()
	if err := b.files.Drain(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(b.log)
	if err != nil {
		t.Fatal(err)
	}
	var out []wire.Event
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		var e wire.Event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		if want(e) {
			out = append(out, e)
		}
	}
}

func TestCommandsEndAsTheyWould(t *testing.T) {
	b := openBox(t, testPolicy)
	if err := os.WriteFile(filepath.Join(b.workspace, "bad"), []byte("#! \n"), 0o755); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		argv []string
		kind string
		code int
		out  string
	}{
		{"success", []string{"echo", "hi"}, wire.ExitExited, 0, "hi\n"},
		{"a failure keeps its status", []string{"sh", "-c", "exit 7"}, wire.ExitExited, 7, ""},
		{"a signal is told", []string{"python3", "-c", "import os; os.abort()"}, wire.ExitSignaled, 134, ""},
		{"a program that is not there", []string{"no-such-program"}, wire.ExitSpawnFailed, 127, ""},
		{"a directory is no program", []string{"/usr"}, wire.ExitSpawnFailed, 126, ""},
		{"a script without an interpreter", []string{"./bad"}, wire.ExitSpawnFailed, 126, ""},
		{"a denied program", []string{"kill", "-0", "1"}, wire.ExitDenied, 126, ""},
		{"a denied program by its path", []string{"/bin/kill", "-0", "1"}, wire.ExitDenied, 126, ""},
		{"a redirected program, with the variables of its rule", []string{"hostid", "x"}, wire.ExitExited, 0, "instead set\n"},
		{"streams by their names", []string{"sh", "-c", "echo a >/dev/stdout; echo b >/dev/stderr"}, wire.ExitExited, 0, "a\nb\n"},
		{"both streams", []string{"sh", "-c", "echo a; echo b >&2"}, wire.ExitExited, 0, "a\nb\n"},
		{"the working directory", []string{"pwd"}, wire.ExitExited, 0, b.workspace + "\n"},
		{"not root of the machine", []string{"id", "-u"}, wire.ExitExited, 0, fmt.Sprintf("%d\n", b.confined.user.UID)},
		{"no command", nil, wire.ExitSpawnFailed, 125, ""},
	}
	t.Run("a directory that is not there", func(t *testing.T) {
		exit, _ := b.request(t, wire.ExecRequest{ID: "lost", Argv: []string{"echo"}, Cwd: "nowhere"})
		if exit.Kind != wire.ExitSpawnFailed || exit.Code != 126 || !strings.HasPrefix(exit.Message, "start in "+b.workspace+"/nowhere:") {
			t.Errorf("exit %+v", exit)
		}
	})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			exit, out := b.run(t, tt.argv...)
			if exit.Kind != tt.kind || exit.ExitCode() != tt.code {
				t.Errorf("exit %+v, want %s %d", exit, tt.kind, tt.code)
			}
			if out != tt.out {
				t.Errorf("printed %q, want %q", out, tt.out)
			}
		})
	}
}

func TestARefusalNamesItsRule(t *testing.T) {
	b := openBox(t, testPolicy)
	exit, _ := b.run(t, "kill", "1")
	if exit.Rule == nil || exit.Rule.Name != "no-kill" || exit.Rule.Position() != "test.yaml:4:5" || exit.Message != "no signals" {
		t.Errorf("exit %+v, rule %+v", exit, exit.Rule)
	}
	b.run(t, "sh", "-c", "/usr/bin/kill 1; mkdir guarded; cat /etc/shadow; exit 0")
	for _, want := range []struct{ kind, path, rule string }{
		{wire.EventExec, "/usr/bin/kill", "no-kill"},
		{wire.EventFile, b.workspace + "/guarded", "guarded"},
		{wire.EventFile, "/etc/shadow", "secret"},
	} {
		found := b.events(t, func(e wire.Event) bool {
			return e.Type == want.kind && e.Path == want.path && e.Decision == "deny" && e.Rule != nil && e.Rule.Name == want.rule &&
				strings.HasPrefix(e.Rule.Position(), "test.yaml:")
		})
		if len(found) == 0 {
			t.Errorf("no event of type %s about %s", want.kind, want.path)
		}
	}
}

// A redirect applies to what the operator asks for; a program that a command starts is told
// about the replacement in one sentence.
func TestANestedRedirectNamesItsReplacement(t *testing.T) {
	b := openBox(t, testPolicy)
	b.run(t, "sh", "-c", "hostid; exit 0")
	denied := b.events(t, func(e wire.Event) bool { return e.Type == wire.EventExec && e.Path == "/usr/bin/hostid" })
	if len(denied) == 0 {
		t.Fatal("no event")
	}
	for _, e := range denied {
		if e.Hint != "run instead: sh -c echo instead $MARK" {
			t.Errorf("hint %q", e.Hint)
		}
	}
}

// What a command's own execve would be denied for, it is denied before anything
// of it is started.
func TestACommandIsDecidedLikeItsExecve(t *testing.T) {
	testenv.Need(t, testenv.Program("python3"), testenv.Program("busybox"))
	b := openBox(t, strings.ReplaceAll(testPolicy, "commands: [kill, /usr/bin/kill]", "commands: [kill, /usr/bin/kill, busybox, id.sh]"))
	for name, text := range map[string]string{
		"id.sh": "#!/bin/sh\nid", "ok.sh": "#!/bin/sh\necho $0 $1", "killer": "#! /usr/bin/kill -l\n", "nested": "#!./killer\n",
		"box": "#!/bin/busybox sh\n",
	} {
		if err := os.WriteFile(filepath.Join(b.workspace, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	kill, err := os.ReadFile("/usr/bin/kill")
	if err == nil {
		err = errors.Join(os.WriteFile(filepath.Join(b.workspace, "copy"), kill, 0o755), os.Symlink("copy", filepath.Join(b.workspace, "link")))
	}
	if err != nil {
		t.Fatal(err)
	}
	loader, err := filepath.Glob("/lib64/ld-linux*")
	if err != nil || len(loader) == 0 {
		loader = []string{"/lib/ld-linux-aarch64.so.1"}
	}
	for _, c := range []struct {
		name string
		argv []string
		out  string // empty: denied
	}{
		{"a denied script", []string{"./id.sh"}, ""},
		{"a script of a denied interpreter", []string{"./killer"}, ""},
		{"a script of such a script", []string{"./nested"}, ""},
		{"a script of a denied multi-call program", []string{"./box"}, ""},
		{"a copy", []string{"./copy", "1"}, ""},
		{"a link to a copy", []string{"../work/link", "1"}, ""},
		{"a denied program run by the loader", []string{loader[0], "--argv0", "x", "./copy", "1"}, ""},
		{"an applet", []string{"busybox", "kill", "1"}, ""},
		{"a script", []string{"./ok.sh", "x"}, "./ok.sh x\n"},
		{"a program run by the loader", []string{loader[0], "/bin/echo", "x"}, "x\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			exit, out := b.run(t, c.argv...)
			if c.out != "" {
				if exit.Kind != wire.ExitExited || exit.Code != 0 || out != c.out {
					t.Errorf("%+v %q", exit, out)
				}
				return
			}
			if exit.Kind != wire.ExitDenied || out != "" {
				t.Errorf("%+v %q", exit, out)
			}
			events := b.events(t, func(e wire.Event) bool { return e.Command == t.Name() })
			for _, e := range events {
				if e.Type != wire.EventCommand || e.Phase == "begin" && e.Decision != "deny" {
					t.Errorf("event %+v", e)
				}
			}
		})
	}
}

func TestPathsThatNoRuleAllowsAreAbsent(t *testing.T) {
	b := openBox(t, testPolicy)
	for _, name := range []string{"/root", "/home", "/var", "/sys", "/work", b.log} {
		if exit, out := b.run(t, "stat", name); exit.Code == 0 {
			t.Errorf("%s is visible: %s", name, out)
		}
	}
	if _, out := b.run(t, "sh", "-c", "echo x 2>&1 >/usr/bin/new; echo x 2>&1 >/new; echo x >/etc/passwd"); strings.Contains(out, "x\n") {
		t.Errorf("wrote: %s", out)
	}
}

// Java, Erlang and many daemons look up their own name when they start.
func TestTheNameOfTheSandboxHasAnAddress(t *testing.T) {
	b := openBox(t, testPolicy)
	exit, out := b.run(t, "sh", "-c", `getent hosts "$(cat /proc/sys/kernel/hostname)" && grep localhost /etc/hosts`)
	if exit.Code != 0 || !strings.HasPrefix(out, "127.0.0.1 ") {
		t.Errorf("exit %d: %s", exit.Code, out)
	}
}

func TestEveryCommandHasTheEnvironmentOfThePolicy(t *testing.T) {
	b := openBox(t, testPolicy)
	want := []string{"BASH_ENV=/usr/lib/agentsh/bash_startup.sh", "BOTH=policy", "FROM_CONFIG=yes", "PASSED=1"}
	_, out := b.request(
		t,
		wire.ExecRequest{ID: "env", Argv: []string{"env"}, Env: []string{"PASSED=1", "SECRET=2", "BASH_ENV=/tmp/mine", "LD_PRELOAD=/x"}},
	)
	lines := strings.Split(out, "\n")
	for _, w := range want {
		if !slices.Contains(lines, w) {
			t.Errorf("%s is missing in %q", w, lines)
		}
	}
	if strings.Contains(out, "SECRET") || strings.Contains(out, "LD_PRELOAD") || strings.Contains(out, "/tmp/mine") {
		t.Errorf("not filtered: %q", lines)
	}
	if _, out := b.run(t, "bash", "-c", "kill -0 $$ && echo alive"); strings.Contains(out, "alive") {
		t.Errorf("bash's own kill acts: %s", out)
	}
}

func TestADeadlineEndsTheWholeTree(t *testing.T) {
	b := openBox(t, testPolicy)
	exit, _ := b.request(t, wire.ExecRequest{ID: "deadline", DeadlineMS: 300,
		Argv: []string{"sh", "-c", "(setsid sleep 1000 &) ; trap '' TERM; while :; do sleep 0.05; done"}})
	if exit.Kind != wire.ExitDeadline || exit.ExitCode() != 124 {
		t.Errorf("exit %+v", exit)
	}
	if _, out := b.run(t, "ps", "ax", "-o", "comm"); strings.Contains(out, "sleep") {
		t.Errorf("left over: %s", out)
	}
	b = openBox(t, strings.Replace(testPolicy, "timeout: 10m", "timeout: 300ms", 1))
	if exit, _ := b.run(t, "sleep", "1000"); exit.Kind != wire.ExitDeadline {
		t.Errorf("the time of a rule: exit %+v", exit)
	}
}

func TestCancellingEndsACommand(t *testing.T) {
	b := openBox(t, testPolicy)
	ctx, cancel := context.WithCancel(context.Background())
	started := make(chan struct{})
	go func() { <-started; cancel() }()
	exit, _, err := b.Exec(ctx, wire.ExecRequest{ID: "cancel", Argv: []string{"sleep", "1000"}},
		wire.Streams{Started: func(wire.Started) { close(started) }})
	if err != nil || exit.Kind != wire.ExitSignaled {
		t.Errorf("exit %+v, %v", exit, err)
	}
}

func TestBackgroundProcessesGoOnUnderTheSamePolicy(t *testing.T) {
	b := openBox(t, testPolicy)
	var out bytes.Buffer
	exit, left, err := b.Exec(context.Background(), wire.ExecRequest{ID: "bg", Argv: []string{"sh", "-c",
		"(while [ ! -e go ]; do sleep 0.02; done; /usr/bin/kill 1 || echo refused >done) & echo started"}}, wire.Streams{Stdout: &out})
	if err != nil || exit.Code != 0 || out.String() != "started\n" || len(left.Leftover) == 0 {
		t.Fatalf("exit %+v, left %v, out %q, %v", exit, left, out.String(), err)
	}
	if exit, out := b.run(t, "sh", "-c", "touch go; while [ ! -s done ]; do sleep 0.02; done; cat done"); out != "refused\n" {
		t.Errorf("exit %+v, out %q", exit, out)
	}
}

func TestCommandsRunInParallel(t *testing.T) {
	b := openBox(t, testPolicy)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			var out bytes.Buffer
			word := fmt.Sprintf("n%d", i)
			exit, _, err := b.Exec(context.Background(), wire.ExecRequest{ID: word, Argv: []string{"sh", "-c", "cat; echo " + word}},
				wire.Streams{Stdin: strings.NewReader("in "), Stdout: &out})
			if err != nil || exit.Code != 0 || out.String() != "in "+word+"\n" {
				t.Errorf("%s: exit %+v, %q, %v", word, exit, out.String(), err)
			}
		})
	}
	wg.Wait()
}

func TestTheChangeRecordNamesWhatCommandsChanged(t *testing.T) {
	b := openBox(t, testPolicy)
	if err := os.WriteFile(filepath.Join(b.workspace, "old"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	b.run(t, "sh", "-c", "echo 2 >>old; echo 3 >new; echo 4 >gone; rm gone")
	changes, err := b.Changes(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range changes {
		got = append(got, string(c.Kind)+" "+string(c.Path))
	}
	if want := []string{"created new", "modified old"}; !slices.Equal(got, want) {
		t.Errorf("changes %q, want %q", got, want)
	}
}

func TestAPolicyThatCannotBeEnforcedIsRefused(t *testing.T) {
	cfg, _ := testConfig(t, testPolicy+"resource_limits: {disk_write_mb: 64}\n")
	_, err := Open(context.Background(), cfg)
	if err == nil ||
		!strings.Contains(err.Error(), "test.yaml:15:19: resource_limits.disk_write_mb cannot be enforced here: sessions do not support it") {
		t.Errorf("error %v", err)
	}
}

func TestASessionTimeoutEndsEverything(t *testing.T) {
	b := openBox(t, testPolicy+"resource_limits: {session_timeout: 1s}\n")
	_, _, err := b.Exec(context.Background(), wire.ExecRequest{ID: "x", Argv: []string{"sleep", "1000"}}, wire.Streams{})
	if !errors.Is(err, ErrEnded) && err == nil {
		t.Errorf("error %v", err)
	}
	if _, _, err := b.Exec(context.Background(), wire.ExecRequest{ID: "y", Argv: []string{"true"}}, wire.Streams{}); !errors.Is(
		err,
		ErrEnded,
	) {
		t.Errorf("after the end: %v", err)
	}
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	testenv.Need(t, testenv.Root, testenv.UserNotif, testenv.FUSE)
	cfg, _ := testConfig(t, testPolicy)
	s, err := Open(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		_, _, err := s.Exec(context.Background(), wire.ExecRequest{ID: "x", Argv: []string{"sleep", "1000"}},
			wire.Streams{Started: func(wire.Started) { close(started) }})
		ended <- err
	}()
	<-started
	server := s.files.PID()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("a command outlives its session")
	}
	for _, pid := range []int{s.init.PID(), server} {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err == nil {
			t.Errorf("process %d is left", pid)
		}
	}
	if _, err := os.Stat(s.state.dir); err == nil {
		t.Errorf("%s is left", s.state.dir)
	}
}

func TestSessionsThatStartTogetherDoNotRemoveTheirState(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				s, err := newState(os.TempDir())
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(filepath.Join(s.dir, statedir.LockName)); err != nil {
					t.Error(err)
				}
				if err := s.remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

func TestStateOfAKilledSupervisorIsRemovedByTheNext(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	killed, err := newState(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	living, err := newState(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	killed.lock.Close() // as the kernel does with the descriptors of a killed process
	next, err := newState(os.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(killed.dir); err == nil {
		t.Errorf("%s is left", killed.dir)
	}
	for _, s := range []*state{living, next} {
		if _, err := os.Stat(s.dir); err != nil {
			t.Errorf("a living session lost its state: %v", err)
		}
		if err := s.remove(); err != nil {
			t.Error(err)
		}
	}
}

// TestADeniedProgramWrittenThroughAMappingIsStillDenied: a program that was run
// once becomes a copy of a denied one by stores to mapped memory, which change
// no time of the file before they are written back.
func TestADeniedProgramWrittenThroughAMappingIsStillDenied(t *testing.T) {
	b := openBox(t, testPolicy)
	const script = `
import mmap, os, shutil, subprocess, time
kill = open("/usr/bin/kill", "rb").read()
shutil.copy("/usr/bin/true", "x")
os.truncate("x", len(kill))
while time.time() - os.stat("x").st_ctime < 1.2: time.sleep(0.1) # until its times say that it rests
print(subprocess.run(["./x"]).returncode)
with open("x", "r+b") as f, mmap.mmap(f.fileno(), len(kill)) as m: m[:] = kill
try: print(subprocess.run(["./x", "-l"], stdout=subprocess.DEVNULL).returncode)
except PermissionError: print("refused")
`
	if _, out := b.run(t, "python3", "-c", script); !strings.HasSuffix(out, "refused\n") {
		t.Errorf("printed %q", out)
	}
}
