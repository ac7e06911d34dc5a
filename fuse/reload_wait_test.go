package fuse

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// waiting is a session in which the write to a name that needs a person waits.
type waiting struct {
	*session
	answer chan bool
	done   chan error
}

// startWaiting has do wait for a person.
func startWaiting(t *testing.T, do func(s *session) error) *waiting {
	asked, answer := make(chan struct{}), make(chan bool)
	s := start(t, options{policy: askPolicy, ask: func(ctx context.Context, _ wire.Question) wire.Answer {
		asked <- struct{}{}
		select {
		case allow := <-answer:
			return wire.Answer{Allow: allow, By: "test"}
		case <-ctx.Done():
			return wire.Answer{}
		}
	}})
	s.seed(map[string]string{"ask/a": "a", "secret/k": "key", "plain": "p", "d/f": "f"})
	for _, known := range []string{"ask", "plain", "d/f"} { // the kernel has names to forget
		_, err := os.Stat(s.path(known))
		must(t, err)
	}
	w := &waiting{s, answer, make(chan error, 1)}
	go func() { w.done <- do(s) }()
	<-asked
	return w
}

// TestRulesAreExchangedWhileAPersonIsAsked: whatever the request is that waits,
// it is refused, and the new rules hold.
func TestRulesAreExchangedWhileAPersonIsAsked(t *testing.T) {
	for name, do := range map[string]func(s *session) error{
		"write":  func(s *session) error { return os.WriteFile(s.path("ask/a"), []byte("x"), 0) },
		"create": func(s *session) error { return os.WriteFile(s.path("ask/new"), []byte("x"), 0o644) },
		"mkdir":  func(s *session) error { return os.Mkdir(s.path("ask/dir"), 0o755) },
		"delete": func(s *session) error { return os.Remove(s.path("ask/a")) },
		"rename": func(s *session) error { return os.Rename(s.path("ask/a"), s.path("d/a")) },
		"lookup": func(s *session) error { _, err := os.ReadFile(s.path("secret/k")); return err },
	} {
		t.Run(name, func(t *testing.T) {
			w := startWaiting(t, do)
			w.reload(t, `
file_rules:
  - {name: no, paths: ["WS/plain"], operations: [write], decision: deny}
  - {name: rest, paths: ["WS", "WS/**"], operations: ["*"], decision: allow}
`)
			if err := os.WriteFile(w.path("plain"), []byte("x"), 0); err == nil {
				t.Error("the old rules hold")
			}
			must(t, os.WriteFile(w.path("other"), []byte("x"), 0o644))
			must(t, w.control.Ping(t.Context()))
			if err := <-w.done; !errors.Is(err, unix.EACCES) {
				t.Errorf("what waited by the old rules: %v, want EACCES", err)
			}
		})
	}
}

// TestWhatIsForgottenWaitsForThePersonAlone: the kernel drops no name beside one
// that is being removed. The answer of the person is taken nevertheless.
func TestWhatIsForgottenWaitsForThePersonAlone(t *testing.T) {
	w := startWaiting(t, func(s *session) error { return os.Remove(s.path("ask/a")) })
	forgot := make(chan error, 1)
	go func() { forgot <- w.control.Invalidate(t.Context(), w.path("ask")) }()
	must(t, os.WriteFile(w.path("plain"), []byte("x"), 0o644))
	must(t, w.control.Ping(t.Context()))
	w.answer <- true
	must(t, <-w.done)
	must(t, <-forgot)
}

// reload has other rules hold.
func (s *session) reload(t *testing.T, policy string) {
	t.Helper()
	text := "version: 1\nname: test\n" + strings.ReplaceAll(policy, "WS", s.dir)
	must(t, s.control.Prepare(t.Context(), Config{Policy: []wire.PolicySource{{Name: "test.yaml", Data: []byte(text)}}}))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	must(t, s.control.Commit(ctx))
}
