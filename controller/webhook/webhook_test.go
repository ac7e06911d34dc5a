package webhook

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"agentsh/internal/wire"
)

// key is that of the published example of Standard Webhooks.
const key = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func keyFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(name, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, mode); err != nil {
		t.Fatal(err)
	}
	return name
}

// receiver is a server with the key. answer makes its answer to a request with a body.
type receiver struct {
	t      *testing.T
	sender *Sender
	asked  []request
	ids    []string
}

// serve starts a server, and a sender for it.
func serve(t *testing.T, answer func(r *receiver, w http.ResponseWriter, id string)) *receiver {
	t.Helper()
	r := &receiver{t: t}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) {
		body, _ := io.ReadAll(h.Body)
		id := h.Header.Get(headerID)
		if err := r.sender.verify(id, h.Header, body); err != nil || h.Method != http.MethodPost || h.URL.Path != "/ask" {
			t.Errorf("%s %s: %v", h.Method, h.URL, err)
		}
		var q request
		if err := json.Unmarshal(body, &q); err != nil || q.Type != typeRequest {
			t.Errorf("%s: %v", body, err)
		}
		r.asked, r.ids = append(r.asked, q), append(r.ids, id)
		answer(r, w, id)
	}))
	t.Cleanup(s.Close)
	var err error
	if r.sender, err = New(s.URL+"/ask", keyFile(t, key+"\n", 0o600)); err != nil {
		t.Fatal(err)
	}
	r.sender.after = func(time.Duration) <-chan time.Time {
		now := make(chan time.Time, 1)
		now <- time.Now()
		return now
	}
	return r
}

// signed writes an answer that is signed for an id at a time.
func (r *receiver) signed(w http.ResponseWriter, id string, at time.Time, body string) {
	seconds := strconv.FormatInt(at.Unix(), 10)
	w.Header().Set(headerID, id)
	w.Header().Set(headerTime, seconds)
	w.Header().Set(headerSignature, "v1a,x v1,"+r.sender.sign(id, seconds, []byte(body)))
	_, _ = io.WriteString(w, body)
}

const allowed = `{"type": "approval.answer", "decision": "allow", "by": "ada"}`

func pending() wire.Pending {
	now := time.Now()
	return wire.Pending{
		ID:       "7",
		Asked:    now,
		Ends:     now.Add(time.Minute),
		Question: wire.Question{Kind: wire.AskExec, Subject: "/bin/rm", Argv: wire.Names{"rm", "\xff"}},
	}
}

func TestSignaturesAreThoseOfStandardWebhooks(t *testing.T) {
	s, err := New("https://x.test/", keyFile(t, key, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	if got := s.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`)); got != "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=" {
		t.Error(got)
	}
}

func TestASignedAnswerIsTaken(t *testing.T) {
	for body, want := range map[string]wire.ApprovalAnswer{
		allowed: {ID: "7", Allow: true, By: "ada"},
		`{"type": "approval.answer", "decision": "allow", "by": "ada", "always": true}`:     {ID: "7", Allow: true, Always: true, By: "ada"},
		`{"type": "approval.answer", "decision": "deny", "by": "ada", "reason": "not now"}`: {ID: "7", By: "ada", Reason: "not now"},
	} {
		r := serve(t, func(r *receiver, w http.ResponseWriter, id string) { r.signed(w, id, time.Now(), body) })
		got, err := r.sender.Ask(t.Context(), Run{RunID: "r", Labels: map[string]string{"a": "b"}}, pending())
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", body, got, err)
		}
		if q := r.asked[0]; q.Run.RunID != "r" || q.Question.Argv[1] != "\xff" || q.Version != 1 || q.Ends.Before(q.Asked) {
			t.Errorf("asked %+v", q)
		}
	}
}

func TestWhatIsNoFreshSignedAnswerAllowsNothing(t *testing.T) {
	other, err := New("https://x.test/", keyFile(t, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", 0o600))
	if err != nil {
		t.Fatal(err)
	}
	answer := func(body string) func(*receiver, http.ResponseWriter, string) {
		return func(r *receiver, w http.ResponseWriter, id string) { r.signed(w, id, time.Now(), body) }
	}
	for name, tt := range map[string]struct {
		answer func(r *receiver, w http.ResponseWriter, id string)
		says   string
	}{
		"no signature": {func(_ *receiver, w http.ResponseWriter, id string) {
			w.Header().Set(headerID, id)
			w.Header().Set(headerTime, strconv.FormatInt(time.Now().Unix(), 10))
			_, _ = io.WriteString(w, allowed)
		}, "not signed"},
		"another key": {func(_ *receiver, w http.ResponseWriter, id string) {
			(&receiver{sender: other}).signed(w, id, time.Now(), allowed)
		}, "not signed"},
		"the answer to another question": {func(r *receiver, w http.ResponseWriter, _ string) {
			r.signed(w, "msg_other", time.Now(), allowed)
		}, "another question"},
		"an old answer": {func(r *receiver, w http.ResponseWriter, id string) {
			r.signed(w, id, time.Now().Add(-time.Hour), allowed)
		}, "another time"},
		"one of the future": {func(r *receiver, w http.ResponseWriter, id string) {
			r.signed(w, id, time.Now().Add(time.Hour), allowed)
		}, "another time"},
		"no time": {func(_ *receiver, w http.ResponseWriter, id string) { w.Header().Set(headerID, id); w.WriteHeader(200) }, "has no time"},
		"a changed body": {func(r *receiver, w http.ResponseWriter, id string) {
			r.signed(w, id, time.Now(), allowed)
			_, _ = io.WriteString(w, " ")
		}, "not signed"},
		"a redirect": {func(_ *receiver, w http.ResponseWriter, _ string) {
			w.Header().Set("Location", "/x")
			w.WriteHeader(307)
		}, "status 307"},
		"not found":             {func(_ *receiver, w http.ResponseWriter, _ string) { w.WriteHeader(404) }, "status 404"},
		"no content":            {func(_ *receiver, w http.ResponseWriter, _ string) { w.WriteHeader(204) }, "status 204"},
		"no JSON":               {answer("allow"), "not one JSON object"},
		"an object and a brace": {answer(allowed + "}"), "not one JSON object"},
		"a list":                {answer("[" + allowed + "]"), "not one JSON object"},
		"a key twice":           {answer(`{"type": "approval.answer", "decision": "deny", "decision": "allow", "by": "ada"}`), "not one JSON object"},
		"a key in capitals":     {answer(`{"type": "approval.answer", "Decision": "allow", "by": "ada"}`), "not one JSON object"},
		"a number for a name":   {answer(`{"type": "approval.answer", "decision": "allow", "by": 1}`), "not one JSON object"},
		"compressed": {func(r *receiver, w http.ResponseWriter, id string) {
			var packed bytes.Buffer
			z := gzip.NewWriter(&packed)
			_, _ = io.WriteString(z, allowed)
			_ = z.Close()
			w.Header().Set("Content-Encoding", "gzip")
			r.signed(w, id, time.Now(), packed.String())
		}, "not one JSON object"},
		"two objects":         {answer(allowed + allowed), "not one JSON object"},
		"an unknown key":      {answer(`{"type": "approval.answer", "decision": "allow", "by": "ada", "for": "1h"}`), "not one JSON object"},
		"another type":        {answer(`{"type": "approval.request", "decision": "allow", "by": "ada"}`), "has not the type"},
		"no decision":         {answer(`{"type": "approval.answer", "by": "ada"}`), "no decision"},
		"another decision":    {answer(`{"type": "approval.answer", "decision": "Allow", "by": "ada"}`), "no decision"},
		"nobody":              {answer(`{"type": "approval.answer", "decision": "allow"}`), "does not say who"},
		"a hostile name":      {answer(`{"type": "approval.answer", "decision": "allow", "by": "a\u001b[2J"}`), "does not say who"},
		"a long reason":       {answer(`{"type": "approval.answer", "decision": "deny", "by": "a", "reason": "` + strings.Repeat("x", 500) + `"}`), "too long"},
		"always denied":       {answer(`{"type": "approval.answer", "decision": "deny", "by": "a", "always": true}`), "denies always"},
		"more than an answer": {answer(allowed + strings.Repeat(" ", maxAnswer)), "too long"},
	} {
		r := serve(t, tt.answer)
		got, err := r.sender.Ask(t.Context(), Run{}, pending())
		var refused *Refusal
		if got.Allow || !errors.As(err, &refused) || !strings.Contains(err.Error(), tt.says) || len(r.asked) != 1 {
			t.Errorf("%s: %+v, %v, asked %d times", name, got, err, len(r.asked))
		}
	}
}

// What was signed once opens nothing else: the answer to a question is sent again as that to the next one.
func TestAnAnswerIsGoodForOneQuestion(t *testing.T) {
	var stored http.Header
	r := serve(t, func(r *receiver, w http.ResponseWriter, id string) {
		if stored == nil {
			r.signed(w, id, time.Now(), allowed)
			stored = w.Header().Clone()
			return
		}
		for name, v := range stored {
			w.Header()[name] = v
		}
		_, _ = io.WriteString(w, allowed)
	})
	if got, err := r.sender.Ask(t.Context(), Run{}, pending()); err != nil || !got.Allow {
		t.Fatalf("%+v, %v", got, err)
	}
	if got, err := r.sender.Ask(t.Context(), Run{}, pending()); err == nil || got.Allow {
		t.Errorf("replayed: %+v", got)
	}
}

func TestAServerThatHasNotDecidedIsAskedAgainWithTheSameID(t *testing.T) {
	r := serve(t, func(r *receiver, w http.ResponseWriter, id string) {
		switch len(r.asked) {
		case 1:
			w.WriteHeader(http.StatusAccepted)
		case 2:
			w.WriteHeader(http.StatusBadGateway)
		case 3:
			w.WriteHeader(http.StatusTooManyRequests)
		default:
			r.signed(w, id, time.Now(), allowed)
		}
	})
	got, err := r.sender.Ask(t.Context(), Run{}, pending())
	if err != nil || !got.Allow || len(r.ids) != 4 || r.ids[0] != r.ids[3] {
		t.Errorf("%+v, %v, %q", got, err, r.ids)
	}
	if d := retryAfter("900"); d != time.Minute {
		t.Errorf("Retry-After 900: %s", d)
	}
	if d := retryAfter("-1"); d != time.Second {
		t.Errorf("Retry-After -1: %s", d)
	}
}

func TestAServerThatIsAwayIsAskedUntilTheTimeIsOver(t *testing.T) {
	r := serve(t, nil)
	s := r.sender
	s.url = "http://127.0.0.1:1/secret-path"
	n := 0
	ctx, cancel := context.WithCancelCause(t.Context())
	s.after = func(time.Duration) <-chan time.Time {
		now := make(chan time.Time, 1)
		if n++; n == 5 {
			cancel(errors.New("the time is over"))
		} else {
			now <- time.Now()
		}
		return now
	}
	_, err := s.Ask(ctx, Run{}, pending())
	if err == nil || !strings.Contains(err.Error(), "the time is over") || !strings.Contains(err.Error(), "connection refused") ||
		strings.Contains(err.Error(), "secret-path") {
		t.Error(err)
	}
}

// A request that hangs does not use up the time of the question.
func TestAServerThatTakesItsTimeIsAskedAgain(t *testing.T) {
	for name, hang := range map[string]func(w http.ResponseWriter, r *http.Request){
		"it says nothing": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"its body does not end": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, "{")
				w.(http.Flusher).Flush()
				select {
				case <-time.After(time.Millisecond):
				case <-r.Context().Done():
				}
			}
		},
		"its headers are endless": func(w http.ResponseWriter, _ *http.Request) {
			for i := range 200 {
				w.Header().Set("X-"+strconv.Itoa(i), strings.Repeat("x", 1000))
			}
			w.WriteHeader(http.StatusOK)
		},
	} {
		var s *Sender
		var n atomic.Int32 // a server answers each connection for itself
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, h *http.Request) {
			_, _ = io.ReadAll(h.Body) // else its end is not seen
			if n.Add(1) == 1 {
				hang(w, h)
				return
			}
			(&receiver{sender: s}).signed(w, h.Header.Get(headerID), time.Now(), allowed)
		}))
		var err error
		if s, err = New(server.URL, keyFile(t, key, 0o600)); err != nil {
			t.Fatal(err)
		}
		s.most = 300 * time.Millisecond
		s.after = func(time.Duration) <-chan time.Time {
			s.most = time.Minute
			return time.After(0)
		}
		if got, err := s.Ask(t.Context(), Run{}, pending()); err != nil || !got.Allow || n.Load() != 2 {
			t.Errorf("%s: %+v, %v, asked %d times", name, got, err, n.Load())
		}
		server.Close()
	}
}

func TestAServerMustProveItsName(t *testing.T) {
	asked := 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	defer server.Close()
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	s, err := New(server.URL, keyFile(t, key, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.after = func(time.Duration) <-chan time.Time { cancel(); return nil }
	if _, err := s.Ask(ctx, Run{}, pending()); err == nil || !strings.Contains(err.Error(), "certificate") || asked > 0 {
		t.Errorf("asked %d times: %v", asked, err)
	}
}

func TestTheNameOfThisMachineLeadsNowhereElse(t *testing.T) {
	for address, want := range map[string]bool{
		"127.0.0.1:80": true, "127.9.9.9:80": true, "[::1]:80": true, "10.0.0.1:80": false, "198.51.100.1:80": false, "[2001:db8::1]:80": false,
	} {
		if err := onlyLocal("tcp", address, nil); (err == nil) != want {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestURLsAndKeysThatAreNotSafeAreRefused(t *testing.T) {
	good := keyFile(t, key, 0o600)
	for address, says := range map[string]string{
		"https://approvals.example.com/x?y=z": "", "http://localhost:8080/": "", "http://127.0.0.1/": "", "http://[::1]:9/": "",
		"http://approvals.example.com/": "is not encrypted", "http://10.0.0.1/": "is not encrypted",
		"http://localhost.example.com/": "is not encrypted",
		"ftp://localhost/":              "is not encrypted", "https://user:word@example.com/": "has a user",
		"https://example.com/#x": "has a user or a fragment",
		"":                       "is no URL", "example.com": "is no URL", "https://": "is no URL", "%": "is no URL",
	} {
		if _, err := New(address, good); (err == nil) != (says == "") || err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", address, err)
		}
	}
	for name, tt := range map[string]struct {
		text string
		mode os.FileMode
		ok   bool
	}{
		"for its owner": {key, 0o600, true}, "for its group": {key, 0o440, true}, "for all": {key, 0o644, false}, "writable": {key, 0o620, false},
		"without its prefix": {strings.TrimPrefix(key, "whsec_"), 0o600, false}, "short": {"whsec_AAAA", 0o600, false}, "empty": {"",
			0o600, false},
		"no base64": {"whsec_" + strings.Repeat("!", 40), 0o600, false}, "long": {"whsec_" + strings.Repeat("AAAA", 30), 0o600, false},
	} {
		_, err := New("https://x.test/", keyFile(t, tt.text, tt.mode))
		if (err == nil) != tt.ok {
			t.Errorf("a key %s: %v", name, err)
		}
		if err != nil && tt.text != "" && strings.Contains(err.Error(), strings.TrimPrefix(tt.text, "whsec_")) {
			t.Errorf("a key %s: the error has it: %v", name, err)
		}
	}
	if _, err := New("https://x.test/", t.TempDir()); err == nil {
		t.Error("a directory is a key")
	}
}

func FuzzNoBodyAllowsWithoutTheWord(f *testing.F) {
	f.Add(allowed)
	f.Add(`{"type": "approval.answer", "decision": "deny", "by": "x"}`)
	f.Fuzz(func(t *testing.T, body string) {
		a, err := readAnswer([]byte(body))
		if err == nil && a.Decision == "allow" && !strings.Contains(body, "allow") && !strings.Contains(body, `\u`) {
			t.Fatalf("%q: %+v", body, a)
		}
		if err == nil && (a.By == "" || a.Type != typeAnswer) {
			t.Fatalf("%q: %+v", body, a)
		}
	})
}
