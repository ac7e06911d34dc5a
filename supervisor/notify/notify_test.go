package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/listener"
	"agentsh/supervisor/notify/tracer"
)

// AGENTSH_ENGINE=trace runs the tests with the other engine.
var traced = os.Getenv("AGENTSH_ENGINE") == "trace"

// session is a program under a loop.
type session struct {
	t      testing.TB
	loop   *Loop
	prog   *testenv.Filtered
	traced bool
	tracer *tracer.Engine // nil: a listener
	out    bytes.Buffer
	done   chan error
	mu     sync.Mutex
	events []wire.Event
	ctx    context.Context // of the loop; nil: it has no end of its own
	before func(pid int)   // called before the command's first exec
}

// denying is a policy that denies the named programs, by path or as they are
// called, and every argument "denied".
func denying(names ...string) func(policy.Request) (policy.Decision, policy.Diagnostic) {
	return func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		q := r.(*policy.CommandRequest)
		programs := append([]policy.Program{q.Program}, q.Chain...)
		for _, p := range programs {
			if slices.Contains(names, path.Base(p.Path)) || slices.Contains(names, path.Base(p.Called)) || len(p.Same) > 0 {
				return policy.Decision{
						Effect: policy.Deny,
					}, policy.Diagnostic{
						Rule:    "no-" + path.Base(p.Path),
						Pos:     policy.Position{File: "p.yaml", Line: 3, Column: 5},
						Message: "not here",
						Hint:    "ask",
					}
			}
		}
		if slices.Contains(q.Argv, "denied") {
			return policy.Decision{Effect: policy.Deny}, policy.Diagnostic{Rule: "argument"}
		}
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{Rule: "rest"}
	}
}

// denying2 denies a program and an argument.
func denying2(name, arg string) func(policy.Request) (policy.Decision, policy.Diagnostic) {
	return func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		q := r.(*policy.CommandRequest)
		if path.Base(q.Path) == name || slices.Contains(q.Argv, arg) {
			return policy.Decision{}, policy.Diagnostic{Rule: "denied"}
		}
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}
}

// run runs a command under a loop to its end.
func run(t testing.TB, cfg Config, argv ...string) *session {
	t.Helper()
	s := begin(t, cfg, CommandInfo{ID: "c1"}, argv...)
	s.end()
	return s
}

// begin starts a command under a loop; end must follow.
func begin(t testing.TB, cfg Config, info CommandInfo, argv ...string) *session {
	t.Helper()
	testenv.Need(t, testenv.UserNotif)
	s := &session{t: t, done: make(chan error, 1), traced: traced}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &s.out, &s.out
	s.start(cfg, info, cmd)
	return s
}

func (s *session) start(cfg Config, info CommandInfo, cmd *exec.Cmd, numbers ...int) {
	s.t.Helper()
	numbers = append(numbers, unix.SYS_EXECVE, unix.SYS_EXECVEAT)
	ended := make(chan struct{})
	if s.traced {
		s.prog = testenv.StartTraced(s.t, cmd, numbers...)
		s.tracer = tracer.New(tracer.Config{As: cfg.TraceAs, Ended: ended, Log: cfg.Log})
		cfg.Engine, s.prog.Reaped = s.tracer, s.tracer.Wait
	} else {
		s.prog = testenv.StartFiltered(s.t, cmd, numbers...)
		stopped, err := seccomp.NewListener(s.prog.Listener)
		if err != nil {
			s.t.Fatal(err)
		}
		cfg.Engine = listener.New(stopped)
	}
	if cfg.Evaluate == nil {
		cfg.Evaluate = denying()
	}
	if cfg.Emit == nil {
		cfg.Emit = s.emit
	}
	s.loop = New(cfg)
	ctx := s.ctx
	if ctx == nil {
		ctx = context.Background()
	}
	go func() { s.done <- s.loop.Run(ctx) }()
	if info.ID != "" {
		if err := s.loop.Register(s.prog.Cmd.Process.Pid, info); err != nil {
			s.t.Fatal(err)
		}
	}
	if s.traced {
		if info.ID == "" { // Register did not begin
			if err := s.tracer.Begin(s.prog.Cmd.Process.Pid); err != nil {
				s.t.Fatal(err)
			}
		}
		go func() { // a listener ends when no process uses the filter
			s.tracer.Wait()
			close(ended)
		}()
	}
	if s.before != nil {
		s.before(s.prog.Cmd.Process.Pid)
	}
	if err := s.prog.Begin(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *session) emit(e wire.Event) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, e)
	return nil
}

// end waits for the command and for the loop, which ends with its last process.
func (s *session) end() {
	s.t.Helper()
	_ = s.prog.Wait()
	select {
	case err := <-s.done:
		if err != nil {
			s.t.Error(err)
		}
	case <-time.After(time.Minute):
		s.t.Fatal("the loop did not end with its last process")
	}
}

// event returns the first event for which ok is true.
func (s *session) event(ok func(wire.Event) bool) *wire.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.events {
		if ok(s.events[i]) {
			return &s.events[i]
		}
	}
	return nil
}

func (s *session) fault(text string) {
	s.t.Helper()
	if s.event(func(e wire.Event) bool { return e.Type == wire.EventFault && strings.Contains(e.Message, text) }) == nil {
		s.t.Errorf("no fault event with %q in %+v", text, s.events)
	}
}

func (s *session) printed(want string) {
	s.t.Helper()
	if got := s.out.String(); got != want {
		s.t.Errorf("printed %q, want %q; events %+v", got, want, s.events)
	}
}

func TestAllowedProgramsRunAndAreRecorded(t *testing.T) {
	s := run(t, Config{Session: "s1"}, "/bin/sh", "-c", "/bin/echo one; cd /; ls -d /bin/sh >/dev/null && env echo two")
	s.printed("one\ntwo\n")
	e := s.event(func(e wire.Event) bool { return len(e.Argv) == 2 && e.Argv[1] == "two" && e.Argv[0] == "echo" })
	if e == nil {
		t.Fatalf("no event of the nested echo in %+v", s.events)
	}
	if e.Session != "s1" || e.Command != "c1" || e.Decision != "allow" || e.Rule.Name != "rest" || e.Path != "/usr/bin/echo" ||
		e.Process.Exe != "/usr/bin/env" || e.Process.Cwd != "/" || e.Process.StartTime == 0 {
		t.Errorf("the event is %+v of %+v", e, e.Process)
	}
}

func TestADeniedProgramFailsAndSaysWhy(t *testing.T) {
	s := run(t, Config{Rules: Rules{Evaluate: denying("kill")}}, "/bin/sh", "-c", "/bin/kill -0 $$ 2>/dev/null || echo $?")
	s.printed("126\n")
	e := s.event(func(e wire.Event) bool { return e.Decision == "deny" })
	if e == nil {
		t.Fatalf("no denial in %+v", s.events)
	}
	if e.Type != wire.EventExec || e.Rule.Name != "no-kill" || e.Rule.Position() != "p.yaml:3:5" || e.Message != "not here" ||
		e.Hint != "ask" ||
		len(e.Argv) != 3 || e.Argv[1] != "-0" || e.Process.PID == 0 {
		t.Errorf("the event is %+v", e)
	}
}

// Otherwise the log could tell of the end of a command before its refusal, and
// a command that was refused at its own execve would not know why.
func TestADenialIsWrittenBeforeItsCallerGoesOn(t *testing.T) {
	p, err := syntax.Load(policy.Source{Name: "s.yaml", Data: []byte(signalPolicy)}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	programs := denying("kill")
	s := &session{t: t, done: make(chan error, 1), traced: traced}
	cmd := exec.Command("/bin/bash", "-c", "for i in {1..20}; do /bin/kill -0 1; kill -0 1; done 2>/dev/null; exit 0")
	seen := map[string]int{}
	s.start(Config{
		Rules: Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
			if _, ok := r.(*policy.SignalRequest); ok {
				return p.Evaluate(r)
			}
			return programs(r)
		}},
		Emit: func(e wire.Event) error {
			if e.Decision != "deny" {
				return nil
			}
			calls := map[string][]int{wire.EventExec: {unix.SYS_EXECVE}, wire.EventSignal: {unix.SYS_KILL}}[e.Type]
			name := fmt.Sprintf("/proc/%d/syscall", e.Process.PID)
			text, err := os.ReadFile(name)
			for limit := time.Now().Add(10 * time.Second); string(text) == "running\n" && time.Now().Before(limit); { // on its way to sleep
				text, err = os.ReadFile(name)
			}
			number, _, _ := strings.Cut(string(text), " ")
			if n, bad := strconv.Atoi(number); err != nil || bad != nil || !slices.Contains(calls, n) {
				t.Errorf("%s: the caller is in system call %q, %v", e.Type, text, err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			seen[e.Type]++
			return nil
		},
	}, CommandInfo{ID: "c"}, cmd, signalCalls...)
	s.end()
	if seen[wire.EventExec] != 20 || seen[wire.EventSignal] != 20 {
		t.Errorf("denials: %v", seen)
	}
}

func TestARedirectBelowTheCommandIsDeniedWithTheReplacement(t *testing.T) {
	rule := &policy.Rule{Redirect: &policy.RedirectTo{Command: "/usr/bin/fetch", Args: []string{"--safe"}}}
	s := run(t, Config{Rules: Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if q := r.(*policy.CommandRequest); path.Base(q.Path) == "true" {
			return policy.Decision{Effect: policy.Redirect, Rule: rule}, policy.Diagnostic{Rule: "fetch"}
		}
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}}}, "/bin/sh", "-c", "/bin/true || echo no")
	if e := s.event(func(e wire.Event) bool { return e.Decision == "deny" }); e == nil || !strings.Contains(e.Hint, "/usr/bin/fetch --safe") {
		t.Errorf("the event is %+v", e)
	}
	if !strings.Contains(s.out.String(), "no\n") {
		t.Errorf("printed %q", &s.out)
	}
}

func TestApproveWithoutAnApproverDenies(t *testing.T) {
	s := run(t, Config{Rules: Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if q := r.(*policy.CommandRequest); path.Base(q.Path) == "true" {
			return policy.Decision{Effect: policy.Approve}, policy.Diagnostic{}
		}
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}}}, "/bin/sh", "-c", "/bin/true 2>/dev/null || echo no")
	if !strings.Contains(s.out.String(), "no\n") {
		t.Errorf("printed %q", &s.out)
	}
}

func TestRequestsSayWhereTheyComeFrom(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh -e\nenv true \"$@\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	requests := map[string]policy.CommandRequest{}
	run(t, Config{Rules: Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		mu.Lock()
		defer mu.Unlock()
		q := *r.(*policy.CommandRequest)
		requests[path.Base(q.Path)] = q
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}}}, "/bin/bash", "-c", "cd "+dir+"; ./script x; exit")
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	s := requests["script"]
	if s.Depth != 1 || s.Called != "./script" || s.Path != script || len(s.Chain) != 1 || s.Chain[0].Path != sh || s.Cwd != dir ||
		!slices.Equal(s.Argv, []string{"./script", "x"}) || s.Parent != "/usr/bin/bash" {
		t.Errorf("the script: %+v", s)
	}
	e := requests["true"]
	if e.Depth != 3 || e.Parent != "/usr/bin/env" || !slices.Equal(e.Ancestors, []string{"/usr/bin/env", script, "/usr/bin/bash"}) {
		t.Errorf("true: %+v", e)
	}
	if b := requests["bash"]; b.Depth != 0 || b.Parent != "" || len(b.Ancestors) != 0 {
		t.Errorf("bash: %+v", b)
	}
}

func TestNobodyIsDeniedWhenTheCallerIsDead(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	s := begin(t, Config{Rules: Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if path.Base(r.(*policy.CommandRequest).Path) == "true" {
			close(entered)
			<-release
			panic("no process")
		}
		return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
	}}}, CommandInfo{ID: "c"}, "/bin/sh", "-c", "exec /bin/true")
	<-entered
	if err := s.prog.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.prog.Wait()
	close(release)
	s.end()
	if e := s.event(func(e wire.Event) bool { return e.Type == wire.EventFault }); e != nil {
		t.Errorf("%+v", e)
	}
}

func TestEveryBranchWithoutADecisionDenies(t *testing.T) {
	tries := []string{"/bin/sh", "-c", "/bin/true 2>/dev/null && echo ran; exit 0"}
	onTrue := func(f func()) Config {
		return Config{Rules: Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
			if path.Base(r.(*policy.CommandRequest).Path) == "true" {
				f()
			}
			return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
		}}}
	}
	t.Run("a panic", func(t *testing.T) {
		s := run(t, onTrue(func() { panic("broken") }), tries...)
		s.printed("")
		s.fault("panic: broken")
	})
	t.Run("a decision that comes late", func(t *testing.T) {
		release := make(chan struct{})
		cfg := onTrue(func() { <-release })
		cfg.Bounds.Deadline = 50 * time.Millisecond
		s := begin(t, cfg, CommandInfo{ID: "c"}, tries...)
		_ = s.prog.Wait()
		close(release)
		s.end()
		s.printed("")
		s.fault("no decision within 50ms")
	})
	t.Run("a queue that is full", func(t *testing.T) {
		entered, release := make(chan struct{}, 8), make(chan struct{})
		cfg := onTrue(func() { entered <- struct{}{}; <-release })
		cfg.Bounds.Workers, cfg.Bounds.Queue, cfg.Bounds.Deadline = 2, 1, time.Minute
		s, full := crowd(t, cfg, "/bin/true & read go; for i in 1 2; do (/bin/echo ran 2>/dev/null || { echo refused; echo >&4; }) & done; wait")
		<-entered
		s.stdin.Write([]byte("go\n"))
		full.Read(make([]byte, 8))
		close(release)
		s.end()
		s.printed("refused\nran\n")
		s.fault("all 2 workers are busy and 1 calls wait")
	})
	t.Run("a process of no command", func(t *testing.T) {
		s := begin(t, Config{}, CommandInfo{}, tries...)
		s.end()
		s.fault("belongs to no command")
	})
	t.Run("an audit log that takes nothing", func(t *testing.T) {
		s := &session{t: t, done: make(chan error, 1), traced: traced}
		cmd := exec.Command(tries[0], tries[1:]...)
		cmd.Stdout = &s.out
		s.start(Config{Emit: func(e wire.Event) error {
			if e.Path == "/usr/bin/true" && e.Type == wire.EventExec {
				return errors.New("disk full")
			}
			return s.emit(e)
		}}, CommandInfo{ID: "c"}, cmd)
		s.end()
		s.printed("")
		s.fault("audit: disk full")
	})
	t.Run("a call without a handler", func(t *testing.T) {
		s := &session{t: t, done: make(chan error, 1), traced: traced}
		cmd := exec.Command("/bin/sh", "-c", "cd / 2>/dev/null || echo no")
		cmd.Stdout = &s.out
		s.start(Config{}, CommandInfo{ID: "c"}, cmd, unix.SYS_CHDIR)
		s.end()
		s.printed("no\n")
		s.fault("has no handler")
	})
	t.Run("an identity that cannot be determined", func(t *testing.T) {
		s := run(t, Config{Rules: Rules{Identify: func(h *target.Handle) (FileIdentity, error) {
			if path.Base(h.Path) == "true" {
				return FileIdentity{}, errors.New("digest: unreadable")
			}
			return FileIdentity{}, nil
		}}}, tries...)
		s.printed("")
		s.fault("digest: unreadable")
	})
}
