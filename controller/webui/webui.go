// Package webui serves the page of agentctl ui: batches, runs, the timeline of a run with its
// denials, and what waits for an answer. Names and texts of agents are data for a script that shows them
// as text. They never become markup.
package webui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"agentsh/internal/listen"
)

// Source has what the page shows. Its methods are called by several goroutines.
type Source interface {
	Overview(ctx context.Context) Overview
	Run(ctx context.Context, id string) (Run, error)
	Answer(ctx context.Context, a Answer) error
}

// Overview is what goes on.
type Overview struct {
	Batches   []Batch    `json:"batches"`
	Runs      []Brief    `json:"runs"`
	Questions []Question `json:"questions"`
	Troubles  []string   `json:"troubles"` // what could not be read
}

// Batch is a batch on one line.
type Batch struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Status  string    `json:"status"`
	Started time.Time `json:"started"`
	All     int       `json:"all"`
	Done    int       `json:"done"`
	Failed  int       `json:"failed"`
	Running int       `json:"running"`
	Waiting int       `json:"waiting"`
}

// Brief is a run on one line.
type Brief struct {
	ID      string     `json:"id"`
	Name    string     `json:"name"` // of the agent, or of the run in its batch
	Batch   string     `json:"batch,omitempty"`
	Status  string     `json:"status"`
	Step    string     `json:"step,omitempty"` // of a run that goes on
	Live    bool       `json:"live"`
	Backend string     `json:"backend"`
	Repo    string     `json:"repo"`
	Started time.Time  `json:"started"`
	Ended   *time.Time `json:"ended,omitempty"`
}

// Run is a run with its timeline.
type Run struct {
	Brief
	Error    string   `json:"error,omitempty"`
	Moments  []Moment `json:"moments"`
	Left     int      `json:"left,omitempty"` // moments that are not shown
	Troubles []string `json:"troubles"`
}

// Kinds of a [Moment].
const (
	KindStep     = "step"
	KindDenied   = "denied"
	KindApproval = "approval"
)

// Moment is something that happened in a run.
type Moment struct {
	Time  time.Time  `json:"time"`
	Kind  string     `json:"kind"`
	What  string     `json:"what"`
	Rule  string     `json:"rule,omitempty"`
	Hint  string     `json:"hint,omitempty"`
	Ended *time.Time `json:"ended,omitempty"` // step
	Error string     `json:"error,omitempty"` // step
	Count int        `json:"count,omitempty"` // denied
}

// Question is something that waits for an answer.
type Question struct {
	ID   string    `json:"id"` // RUN/NUMBER
	Run  string    `json:"run"`
	Kind string    `json:"kind"`
	What string    `json:"what"`
	Why  string    `json:"why,omitempty"` // of the author of the rule
	Rule string    `json:"rule,omitempty"`
	Ends time.Time `json:"ends"`
}

// Answer answers a question.
type Answer struct {
	Question string `json:"question"`
	Allow    bool   `json:"allow"`
	Reason   string `json:"reason,omitempty"` // of a denial
}

//go:embed page.html page.js page.css
var assets embed.FS

// policy is the content security policy of the page. The last directives refuse markup that is made of
// text, even if the script tried.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Bounds of a request.
const (
	maxBody     = 16 << 10
	requestTime = 30 * time.Second
	freshTime   = time.Second // an overview is given again for that time: pages of many windows cost no more than one
)

// Server is the server of the page.
type Server struct {
	source Source
	token  string
	hosts  []string // that a browser may name
	listen net.Listener

	mu   sync.Mutex
	last Overview
	made time.Time // of last; zero: it does not hold any longer
}

// Listen listens at an address of this machine alone. The caller calls [Server.Serve].
func Listen(ctx context.Context, address string, source Source) (*Server, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, fmt.Errorf("address %q: it is no address of this machine alone: write 127.0.0.1:PORT", address)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", at.String())
	if err != nil {
		return nil, fmt.Errorf("listen for browsers: %w", err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &Server{
		source: source, token: rand.Text() + rand.Text(), listen: l, hosts: []string{l.Addr().String(), "localhost:" + port},
	}, nil
}

// URL is the address of the page with its token, which is in the fragment: browsers send it to nobody.
func (s *Server) URL() string { return "http://" + s.listen.Addr().String() + "/#" + s.token }

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	server := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: requestTime, ReadTimeout: requestTime, WriteTimeout: 2 * requestTime, IdleTimeout: time.Minute,
		MaxHeaderBytes: 32 << 10, BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(&listen.Sparing{Listener: s.listen}); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]string{"GET /{$}": "page.html", "GET /page.js": "page.js", "GET /page.css": "page.css"} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, assets, file) })
	}
	mux.HandleFunc("GET /favicon.ico", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }) // browsers ask
	mux.Handle("GET /api/overview", s.guarded(func(r *http.Request) (any, error) { return s.overview(r.Context()), nil }))
	mux.Handle("GET /api/runs/{id}", s.guarded(func(r *http.Request) (any, error) { return s.source.Run(r.Context(), r.PathValue("id")) }))
	mux.Handle("POST /api/answer", s.guarded(func(r *http.Request) (any, error) {
		a, err := readAnswer(r)
		if err != nil {
			return nil, err
		}
		defer s.changed()
		return struct{}{}, s.source.Answer(r.Context(), a)
	}))
	return s.checked(mux)
}

// overview is what goes on. Those who ask together get the same.
func (s *Server) overview(ctx context.Context) Overview {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.made.IsZero() || time.Since(s.made) >= freshTime {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime) // it is for others, too
		defer cancel()
		s.last = s.source.Overview(ctx)
		s.made = time.Now()
	}
	return s.last
}

// changed has the next overview made anew.
func (s *Server) changed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made = time.Time{}
}

// readAnswer reads one answer, strictly.
func readAnswer(r *http.Request) (Answer, error) {
	var a Answer
	if r.Header.Get("Content-Type") != "application/json" {
		return a, errors.New("an answer is application/json")
	}
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&a); err != nil {
		return a, fmt.Errorf("read the answer: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return a, errors.New("read the answer: something follows it")
	}
	return a, nil
}

// checked refuses requests that a page of another site, or of a name that leads here, has made.
func (s *Server) checked(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		origin, site := r.Header.Values("Origin"), r.Header.Get("Sec-Fetch-Site")
		switch {
		case !slices.Contains(s.hosts, r.Host):
			http.Error(w, "this page has another name", http.StatusMisdirectedRequest)
		case len(origin) > 1 || len(origin) == 1 && origin[0] != "http://"+r.Host,
			r.Method == http.MethodPost && len(origin) == 0,
			site != "" && site != "same-origin" && site != "none":
			http.Error(w, "requests of other pages are refused", http.StatusForbidden)
		default:
			r.Body = http.MaxBytesReader(w, r.Body, maxBody)
			next.ServeHTTP(w, r)
		}
	})
}

// guarded answers those who have the token.
func (s *Server) guarded(do func(*http.Request) (any, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+s.token)) != 1 {
			http.Error(w, "open the address that agentctl ui has printed", http.StatusUnauthorized)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), requestTime)
		defer cancel()
		w.Header().Set("Content-Type", "application/json")
		value, err := do(r.WithContext(ctx))
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			value = struct {
				Error string `json:"error"`
			}{err.Error()}
		}
		_ = json.NewEncoder(w).Encode(value) // the browser may have gone
	})
}
