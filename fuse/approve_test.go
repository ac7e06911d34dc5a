package fuse

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

const askPolicy = `
file_rules:
  - {name: ask, paths: ["WS/ask/**"], operations: [write, create, delete, rename, mkdir, chmod, symlink, link], decision: approve, timeout: 30s, message: mind this}
  - {name: secret, paths: ["WS/secret/**"], operations: [read, stat], decision: approve}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`

// person answers the questions of a session.
type person struct {
	mu    sync.Mutex
	asked []wire.Question
	allow func(wire.Question) bool
}

func (p *person) ask(_ context.Context, q wire.Question) wire.Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, q)
	return wire.Answer{Allow: p.allow(q), By: "test"}
}

func (p *person) subjects() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, q := range p.asked {
		out = append(out, string(q.Subject))
	}
	return out
}

func startAsked(t *testing.T, p *person) *session {
	s := start(t, options{policy: askPolicy, ask: p.ask})
	s.seed(map[string]string{"ask/a": "a", "ask/b": "b", "secret/k": "key", "plain": "p"})
	return s
}

func TestEveryOperationIsAskedForAndDoneWhenAllowed(t *testing.T) {
	tests := []struct {
		name, subject string
		do            func(s *session) error
	}{
		{"write", "write", func(s *session) error { return os.WriteFile(s.path("ask/a"), []byte("x"), 0o644) }},
		{"create", "create", func(s *session) error { return os.WriteFile(s.path("ask/n"), []byte("x"), 0o644) }},
		{"truncate", "write", func(s *session) error { return os.Truncate(s.path("ask/a"), 0) }},
		{"delete", "delete", func(s *session) error { return os.Remove(s.path("ask/a")) }},
		{"rename", "rename", func(s *session) error { return os.Rename(s.path("ask/a"), s.path("ask/b")) }},
		{"mkdir", "mkdir", func(s *session) error { return os.Mkdir(s.path("ask/d"), 0o755) }},
		{"chmod", "chmod", func(s *session) error { return os.Chmod(s.path("ask/a"), 0o600) }},
		{"symlink", "symlink", func(s *session) error { return os.Symlink("a", s.path("ask/l")) }},
		{"link", "link", func(s *session) error { return os.Link(s.path("ask/a"), s.path("ask/h")) }},
		{"read", "stat", func(s *session) error { _, err := os.ReadFile(s.path("secret/k")); return err }},
	}
	for _, test := range tests {
		for _, allow := range []bool{true, false} {
			t.Run(test.name, func(t *testing.T) {
				p := &person{allow: func(wire.Question) bool { return allow }}
				s := startAsked(t, p)
				err := test.do(s)
				if allow && err != nil || !allow && !errors.Is(err, unix.EACCES) {
					t.Errorf("allowed %v: %v", allow, err)
				}
				asked := p.subjects()
				if len(asked) == 0 || asked[0][:len(test.subject)] != test.subject {
					t.Fatalf("asked %q", asked)
				}
				q := p.asked[0]
				if q.Kind != wire.EventFile || q.Rule == nil || q.Process == nil || q.Process.PID != os.Getpid() {
					t.Errorf("question %+v", q)
				}
				want := "deny"
				if allow {
					want = "approve"
				}
				if e := s.waitEvent(func(e wire.Event) bool { return e.Decision == want }); e.Rule == nil {
					t.Errorf("event %+v", e)
				}
			})
		}
	}
}

// TestOthersGoOnWhileOneWaits: also renames, which hold the tree alone.
func TestOthersGoOnWhileOneWaits(t *testing.T) {
	asked, answer := make(chan wire.Question), make(chan bool)
	s := start(t, options{policy: askPolicy, ask: func(_ context.Context, q wire.Question) wire.Answer {
		asked <- q
		return wire.Answer{Allow: <-answer, By: "test"}
	}})
	s.seed(map[string]string{"ask/a": "a", "plain": "p"})
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(s.path("ask/a"), []byte("x"), 0o644) }()
	if q := <-asked; q.TimeoutMS != 30_000 || q.Message != "mind this" {
		t.Errorf("question %+v", q)
	}
	must(t, os.WriteFile(s.path("other"), []byte("x"), 0o644))
	must(t, os.Rename(s.path("other"), s.path("plain")))
	if _, err := os.ReadDir(s.dir); err != nil {
		t.Error(err)
	}
	if got, _ := os.ReadFile(s.back("ask/a")); string(got) != "a" {
		t.Errorf("written before the answer: %q", got)
	}
	answer <- true
	must(t, <-done)
	if got, _ := os.ReadFile(s.back("ask/a")); string(got) != "x" {
		t.Errorf("the file holds %q", got)
	}
}

// TestTheAnswerIsForThePathThatWasShown: what was moved meanwhile is judged
// where it is now.
func TestTheAnswerIsForThePathThatWasShown(t *testing.T) {
	asked, answer := make(chan wire.Question, 4), make(chan bool, 4)
	s := start(t, options{policy: `
file_rules:
  - {name: ask, paths: ["WS/d/one"], operations: [write], decision: approve}
  - {name: no, paths: ["WS/e/one"], operations: [write], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`, ask: func(_ context.Context, q wire.Question) wire.Answer {
		asked <- q
		return wire.Answer{Allow: <-answer, By: "test"}
	}})
	s.seed(map[string]string{"d/one": "a", "x/y": ""})
	done := make(chan error, 1)
	go func() { done <- os.WriteFile(s.path("d/one"), []byte("x"), 0o644) }()
	<-asked
	must(t, os.Rename(s.path("d"), s.path("e")))
	answer <- true
	if err := <-done; !errors.Is(err, unix.EACCES) {
		t.Errorf("got %v, want EACCES", err)
	}
	if got, _ := os.ReadFile(s.back("e/one")); string(got) != "a" {
		t.Errorf("the file holds %q", got)
	}
}

func TestAKilledProcessIsNotWaitedFor(t *testing.T) {
	asked, gone := make(chan wire.Question, 1), make(chan struct{})
	s := start(t, options{policy: askPolicy, ask: func(ctx context.Context, q wire.Question) wire.Answer {
		asked <- q
		<-ctx.Done()
		close(gone)
		return wire.Answer{}
	}})
	s.seed(map[string]string{"ask/a": "a"})
	cmd := exec.Command("rm", s.path("ask/a"))
	must(t, cmd.Start())
	<-asked
	must(t, cmd.Process.Kill())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	for _, end := range []<-chan struct{}{gone, closed(done)} {
		select {
		case <-end:
		case <-time.After(30 * time.Second):
			t.Fatal("the process still waits")
		}
	}
	if _, err := os.Lstat(s.back("ask/a")); err != nil {
		t.Error(err)
	}
}

func closed(c <-chan error) <-chan struct{} {
	out := make(chan struct{})
	go func() { <-c; close(out) }()
	return out
}
