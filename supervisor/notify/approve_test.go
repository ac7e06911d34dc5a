package notify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/testenv"
	"agentsh/internal/wire"
	"agentsh/policy"
)

// asking approves programs of a name, and signals where signals is set.
func asking(name string) Rules {
	rule := &policy.Rule{Name: "ask", ApproveTimeout: time.Hour}
	return Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if q, ok := r.(*policy.CommandRequest); ok && path.Base(q.Path) != name {
			return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{Rule: "rest"}
		}
		return policy.Decision{
				Effect: policy.Approve,
				Rule:   rule,
			}, policy.Diagnostic{
				Rule:    "ask",
				Pos:     policy.Position{File: "p.yaml", Line: 2, Column: 5},
				Message: "mind it.",
			}
	}}
}

func TestAPersonDecidesAnExec(t *testing.T) {
	var mu sync.Mutex
	var questions []wire.Question
	s := run(t, Config{Rules: asking("echo"), Approve: func(_ context.Context, q wire.Question) wire.Answer {
		mu.Lock()
		defer mu.Unlock()
		questions = append(questions, q)
		return wire.Answer{Allow: q.Argv[1] == "yes", By: "ann"}
	}}, "/bin/sh", "-c", "cd /; /bin/echo yes now; /bin/echo no 2>/dev/null || echo refused")
	s.printed("yes now\nrefused\n")
	if len(questions) != 2 {
		t.Fatalf("asked %+v", questions)
	}
	q := questions[0]
	if q.Command != "c1" || q.Kind != wire.AskExec || q.Subject != "/usr/bin/echo" || strings.Join(q.Argv,
		" ") != "/bin/echo yes now" || q.Cwd != "/" ||
		q.Rule.Name != "ask" || q.Rule.Position() != "p.yaml:2:5" || q.Message != "mind it." || q.TimeoutMS != time.Hour.Milliseconds() ||
		q.Process.PID == 0 {
		t.Errorf("asked %+v", q)
	}
	if e := s.event(func(e wire.Event) bool { return e.Decision == "approve" }); e == nil || e.By != "ann" || e.Path != "/usr/bin/echo" {
		t.Errorf("approved: %+v", e)
	}
	if e := s.event(func(e wire.Event) bool { return e.Decision == "deny" }); e == nil || e.By != "ann" ||
		e.Message != "mind it (ann did not approve)" || !strings.HasPrefix(e.Hint, "the answer was no: ") {
		t.Errorf("refused: %+v", e)
	}
}

// More questions wait than the loop has workers, and another program runs.
func TestAWaitingApprovalDelaysNoOtherCall(t *testing.T) {
	const questions = 12
	dir, release := t.TempDir(), make(chan struct{})
	ask := asking("echo").Evaluate
	rules := Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
		if path.Base(r.(*policy.CommandRequest).Path) == "true" {
			close(release)
		}
		return ask(r)
	}}
	script := fmt.Sprintf("for ((i = 0; i < %d; i++)); do /bin/echo $i & while [ ! -e $0/$i ]; do :; done; done; /bin/true; wait", questions)
	bounds := Bounds{Workers: 8, Deadline: time.Minute}
	s := run(t, Config{Rules: rules, Bounds: bounds, Approve: func(ctx context.Context, q wire.Question) wire.Answer {
		if err := os.WriteFile(filepath.Join(dir, q.Argv[1]), nil, 0o600); err != nil {
			t.Error(err)
		}
		select {
		case <-release:
		case <-ctx.Done():
		}
		return wire.Answer{Allow: true, By: "ann"}
	}}, "/bin/bash", "-c", script, dir)
	if n := strings.Count(s.out.String(), "\n"); n != questions {
		t.Errorf("%d ran: %q, %+v", n, s.out.String(), s.events)
	}
}

func TestAQuestionEndsWithItsCaller(t *testing.T) {
	for _, by := range []unix.Signal{unix.SIGKILL, unix.SIGTERM} {
		for _, traced := range []bool{false, true} {
			asked, told := make(chan wire.Question, 1), make(chan error, 1)
			cfg := Config{Rules: asking("true"), Approve: func(ctx context.Context, q wire.Question) wire.Answer {
				asked <- q
				select {
				case <-ctx.Done():
				case <-time.After(2 * time.Minute):
					t.Errorf("traced %v: the question does not end with %v", traced, by)
				}
				told <- ctx.Err()
				return wire.Answer{Allow: true, By: "too late"}
			}}
			s := &session{t: t, done: make(chan error, 1), traced: traced}
			s.start(cfg, CommandInfo{ID: "c1"}, exec.Command("/bin/true"))
			q := <-asked
			for _, signal := range []unix.Signal{unix.SIGWINCH, by} {
				if err := unix.Kill(q.Process.PID, signal); err != nil {
					t.Fatal(err)
				}
			}
			<-told
			s.end()
			if e := s.event(func(e wire.Event) bool { return e.Type == wire.EventExec }); e != nil {
				t.Errorf("event %+v", e)
			}
		}
	}
}

// A signal that does not end the caller does not end its question.
func TestAQuestionStaysWhileItsCallerDoes(t *testing.T) {
	const script = "trap '' HUP; exec /bin/true"
	ended := make(chan error, 1)
	s := &session{t: t, done: make(chan error, 1), traced: true}
	s.start(Config{Rules: asking("true"), Approve: func(ctx context.Context, q wire.Question) wire.Answer {
		for _, signal := range []unix.Signal{unix.SIGWINCH, unix.SIGCHLD, unix.SIGHUP} {
			if err := unix.Kill(q.Process.PID, signal); err != nil {
				t.Error(err)
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(3 * validInterval):
		}
		ended <- ctx.Err()
		return wire.Answer{Allow: true, By: "ann"}
	}}, CommandInfo{ID: "c1"}, exec.Command("/bin/bash", "-c", script))
	s.end()
	if err := <-ended; err != nil {
		t.Errorf("the question ended: %v", err)
	}
}

// What is changed while a person looks at it is not what was approved.
func TestAnApprovalCoversTheContentThatWasThere(t *testing.T) {
	bin, _ := place(t)
	for _, kind := range []string{"program", "script", "payload", "script of env"} {
		t.Run(kind, func(t *testing.T) {
			file, line := filepath.Join(t.TempDir(), "tool"), ""
			text := []byte("#!/bin/sh\necho first\n")
			switch kind {
			case "program", "payload":
				var err error
				if text, err = os.ReadFile("/bin/echo"); err != nil {
					t.Fatal(err)
				}
			case "script of env":
				text = []byte("#!/usr/bin/env sh\necho first\n")
			}
			line = file + " ran; exit 0"
			rules := asking("tool")
			if kind == "payload" {
				line = loaderPath(t) + " " + line
				rules = asking(path.Base(realLoader(t)))
				rules.Identify = identified(t, filepath.Join(bin, "hello")).Identify
			}
			if err := os.WriteFile(file, text, 0o755); err != nil {
				t.Fatal(err)
			}
			for _, change := range []bool{false, true} {
				s := run(t, Config{Rules: rules, Approve: func(_ context.Context, q wire.Question) wire.Answer {
					if !slices.ContainsFunc(q.Files, func(f wire.QuestionFile) bool { return string(f.Path) == file && len(f.SHA256) == 64 }) {
						t.Errorf("the question has the files %+v", q.Files)
					}
					if change {
						if f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0); err != nil {
							t.Error(err)
						} else {
							_, _ = f.WriteString("echo second\n")
							f.Close()
						}
					}
					return wire.Answer{Allow: true, By: "ann"}
				}}, "/bin/sh", "-c", line)
				if ran := s.event(func(e wire.Event) bool { return e.Decision == "approve" }) != nil; ran == change {
					t.Errorf("change %v: %q, %+v", change, s.out.String(), s.events)
				}
				if change && s.event(func(e wire.Event) bool { return e.Op == "exec_switched" }) == nil {
					t.Errorf("no event of the change: %+v", s.events)
				}
			}
		})
	}
}

// realLoader is the file of the dynamic loader.
func realLoader(t *testing.T) string {
	file, err := filepath.EvalSymlinks(loaderPath(t))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestAPersonDecidesASignal(t *testing.T) {
	s := &session{t: t, traced: traced}
	s.done = make(chan error, 1)
	cmd := exec.Command("/bin/bash", "-c", "trap 'echo got' USR1; kill -USR1 $$; kill -USR2 $$ 2>/dev/null || echo kept; exit 0")
	cmd.Stdout = &s.out
	s.start(Config{Rules: asking("none"), Approve: func(_ context.Context, q wire.Question) wire.Answer {
		return wire.Answer{Allow: strings.HasPrefix(string(q.Subject), "SIGUSR1 to self"), By: "ann"}
	}}, CommandInfo{ID: "c"}, cmd, signalCalls...)
	s.end()
	s.printed("got\nkept\n")
	for _, decision := range []string{"approve", "deny"} {
		if e := s.event(func(e wire.Event) bool { return e.Type == wire.EventSignal && e.Decision == decision }); e == nil || e.By != "ann" {
			t.Errorf("%s: %+v", decision, e)
		}
	}
}

// A call has the rules of one moment: those of the reload or those before.
func TestAReloadIsSeenAsAWhole(t *testing.T) {
	entered, reloaded := make(chan struct{}), make(chan struct{})
	rules := func(effect policy.Effect, enter bool) Rules {
		return Rules{Evaluate: func(r policy.Request) (policy.Decision, policy.Diagnostic) {
			if path.Base(r.(*policy.CommandRequest).Path) != "echo" {
				return policy.Decision{Effect: policy.Allow}, policy.Diagnostic{}
			}
			if enter {
				close(entered)
				<-reloaded
			}
			return policy.Decision{Effect: effect}, policy.Diagnostic{}
		}}
	}
	s := begin(
		t,
		Config{Rules: rules(policy.Allow, true)},
		CommandInfo{ID: "c"},
		"/bin/sh",
		"-c",
		"/bin/echo old; /bin/echo new 2>/dev/null || echo refused",
	)
	<-entered
	if err := s.loop.Reload(rules(policy.Deny, false), func() error { return os.ErrInvalid }); err == nil {
		t.Error("a commit that fails is no error")
	}
	if err := s.loop.Reload(rules(policy.Deny, false), func() error { return nil }); err != nil {
		t.Error(err)
	}
	close(reloaded)
	s.end()
	if got := s.out.String(); got != "old\nrefused\n" {
		t.Errorf("printed %q", got)
	}
}

// The thread of an engine can answer a call before Run has begun. The question waits for the
// person like any other.
func TestACallBeforeTheLoopRunsIsAsked(t *testing.T) {
	testenv.Need(t, testenv.UserNotif)
	known := func() *exec.Cmd { return exec.Command("/bin/echo", "asked") }
	for range 2 { // then its program is known, and the thread of an engine evaluates it
		s := &session{t: t, done: make(chan error, 1), traced: true}
		s.start(Config{Rules: Rules{Evaluate: denying(), Prompt: true}}, CommandInfo{ID: "c1"}, known())
		s.end()
	}
	s := &session{t: t, done: make(chan error, 1), traced: true}
	cmd := known()
	cmd.Stdout = &s.out
	ended := s.trace(cmd, unix.SYS_EXECVE, unix.SYS_EXECVEAT)
	asked, answer := make(chan struct{}), make(chan struct{})
	rules := asking("echo")
	rules.Prompt = true
	s.loop = New(Config{Engine: s.tracer, Emit: s.emit, Rules: rules, Approve: func(ctx context.Context, _ wire.Question) wire.Answer {
		close(asked)
		<-answer
		return wire.Answer{Allow: ctx.Err() == nil, By: "x"}
	}})
	if err := errors.Join(s.loop.Register(s.prog.Cmd.Process.Pid, CommandInfo{ID: "c1"}), s.prog.Begin()); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		s.tracer.Wait()
		close(ended)
		close(gone)
	}()
	select {
	case <-asked:
	case <-gone:
		t.Fatalf("the command ended unasked: %+v", s.events)
	}
	go func() { s.done <- s.loop.Run(t.Context()) }()
	close(answer)
	s.end()
	s.printed("asked\n")
}
