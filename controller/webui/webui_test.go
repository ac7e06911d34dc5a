package webui

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fake is a double of what the page shows.
type fake struct {
	overview Overview
	run      Run

	mu      sync.Mutex
	answers []Answer
	looks   int // calls of Overview
}

func (f *fake) Overview(context.Context) Overview {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	return f.overview
}

func (f *fake) Run(_ context.Context, id string) (Run, error) {
	if id != f.run.ID {
		return Run{}, errors.New("no such run")
	}
	return f.run, nil
}

func (f *fake) Answer(_ context.Context, a Answer) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers = append(f.answers, a)
	return nil
}

func (f *fake) given() []Answer {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answers
}

// serve serves a page until the test ends.
func serve(t *testing.T, source Source) *Server {
	t.Helper()
	s, err := Listen(t.Context(), "127.0.0.1:0", source)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestOnlyThePageItselfIsAnswered(t *testing.T) {
	f := &fake{run: Run{Brief: Brief{ID: "r1"}}}
	s := serve(t, f)
	host := s.listen.Addr().String()
	const body = `{"question": "r1/1", "allow": true}`
	ask := func(change func(*http.Request)) (int, http.Header) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+host+"/api/answer", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+s.token)
		r.Header.Set("Origin", "http://"+host)
		r.Header.Set("Content-Type", "application/json")
		change(r)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		return answer.StatusCode, answer.Header
	}
	for name, c := range map[string]struct {
		want   int
		change func(*http.Request)
	}{
		"no token":                    {401, func(r *http.Request) { r.Header.Del("Authorization") }},
		"another token":               {401, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+s.token+"x") }},
		"a name that leads here":      {421, func(r *http.Request) { r.Host = "evil.example:80" }},
		"the right address, no port":  {421, func(r *http.Request) { r.Host = "127.0.0.1" }},
		"another page":                {403, func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") }},
		"another port":                {403, func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") }},
		"a page without an origin":    {403, func(r *http.Request) { r.Header.Set("Origin", "null") }},
		"no origin":                   {403, func(r *http.Request) { r.Header.Del("Origin") }},
		"two origins":                 {403, func(r *http.Request) { r.Header.Add("Origin", "http://"+host) }},
		"the browser says cross-site": {403, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }},
		"a form":                      {400, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }},
		"a further field":             {400, func(r *http.Request) { r.Body = text(`{"question": "r1/1", "allow": true, "always": true}`, r) }},
		"something after it":          {400, func(r *http.Request) { r.Body = text(body+"{}", r) }},
		"a long body":                 {400, func(r *http.Request) { r.Body = text(`{"question": "`+strings.Repeat("x", 2*maxBody)+`"}`, r) }},
		"another verb":                {405, func(r *http.Request) { r.Method = http.MethodPut }},
	} {
		if got, header := ask(c.change); got != c.want || header.Get("Content-Security-Policy") != policy {
			t.Errorf("%s: status %d, want %d", name, got, c.want)
		}
	}
	if n := len(f.given()); n != 0 {
		t.Fatalf("%d answers were taken", n)
	}
	if got, _ := ask(func(*http.Request) {}); got != 200 || len(f.given()) != 1 || f.given()[0] != (Answer{Question: "r1/1", Allow: true}) {
		t.Errorf("the page itself: status %d, answers %v", got, f.given())
	}
}

func text(s string, r *http.Request) io.ReadCloser {
	r.ContentLength = int64(len(s))
	return io.NopCloser(strings.NewReader(s))
}

// Each look reads all records: pages in many windows must not cost a processor each.
func TestManyPagesCostNoMoreThanOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		s := &Server{source: f}
		const seconds, pages = 10, 50
		for range seconds {
			var all sync.WaitGroup
			for range pages {
				all.Go(func() { s.overview(t.Context()) })
			}
			all.Wait()
			<-time.After(freshTime) // fake time
		}
		if f.looks != seconds {
			t.Errorf("%d pages looked %d times in %d seconds", pages, f.looks, seconds)
		}
		s.overview(t.Context())
		s.changed() // an answer was given
		if s.overview(t.Context()); f.looks != seconds+2 {
			t.Errorf("%d looks: the page shows a question after its answer", f.looks)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		<-time.After(freshTime) // fake time
		s.source = looker(func(ctx context.Context) {
			if ctx.Err() != nil {
				t.Error("a page that has gone ends the look of the others")
			}
		})
		s.overview(gone)
	})
}

// looker is a source of overviews alone.
type looker func(context.Context)

func (l looker) Overview(ctx context.Context) Overview { l(ctx); return Overview{} }

func (looker) Run(context.Context, string) (Run, error) { return Run{}, nil }

func (looker) Answer(context.Context, Answer) error { return nil }

func TestThePageIsOfThisMachineAlone(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", "[::]:0", "10.0.0.1:80", "localhost:0", ":8080", ""} {
		if s, err := Listen(t.Context(), address, &fake{}); err == nil || !strings.Contains(err.Error(), "write 127.0.0.1:PORT") {
			t.Errorf("%q: %v, %v", address, s, err)
		}
	}
}

func TestTheServerEndsAtOnce(t *testing.T) {
	s, err := Listen(t.Context(), "127.0.0.1:0", &fake{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Serve(ctx); err != nil {
		t.Error(err)
	}
}
