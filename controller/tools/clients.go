package tools

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentsh/internal/rpcid"
)

// Limits of clients over HTTP. Each connection has at most one request, so a session without one is left to close.
const (
	maxConnections = 512  // of all clients, with the token or without
	maxSessions    = 1000 // that are open
)

// Times for the body of a request.
const (
	strangerWait    = 10 * time.Second // without the token
	defaultBodyWait = 5 * time.Minute  // with it
)

// bodyWait is a variable for tests.
var bodyWait = defaultBodyWait

// HTTPServer is a server for [Handler], and what stands before it. It limits the times of connections, and their number at l.
func HTTPServer(l net.Listener, h http.Handler) (*http.Server, net.Listener) {
	return httpServer(l, h, maxConnections)
}

func httpServer(l net.Listener, h http.Handler, most int) (*http.Server, *connections) {
	return &http.Server{
		Handler: timed(h), ReadHeaderTimeout: headerWait, IdleTimeout: idleWait, MaxHeaderBytes: maxHeader, ConnContext: withConnection,
	}, limitConnections(l, most)
}

// timed bounds the time for what the server itself reads of a request that is refused.
func timed(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != http.NoBody {
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(min(strangerWait, bodyWait))) // fails in tests only
		}
		next.ServeHTTP(w, r)
	})
}

// received reads the body of a request before it is answered. The time for it is limited, and the size of all bodies together;
// the time of the answer, which may be a stream, is not.
func received(next http.Handler, held *arguments) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body == http.NoBody {
			next.ServeHTTP(w, r)
			return
		}
		size := int(min(r.ContentLength, maxMessage))
		if r.ContentLength < 0 { // it is not announced
			size = maxMessage
		}
		if err := held.hold(size); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		defer func() { held.release(size) }()
		control := http.NewResponseController(w)
		_ = control.SetReadDeadline(time.Now().Add(bodyWait)) // as above
		data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxMessage))
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			http.Error(w, "the request is too large", http.StatusRequestEntityTooLarge)
			return
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.Header().Set("Connection", "close")
			http.Error(w, "the request does not come", http.StatusRequestTimeout)
			return
		case err != nil:
			http.Error(w, "the request cannot be read", http.StatusBadRequest)
			return
		}
		_ = control.SetReadDeadline(time.Time{}) // as above
		held.release(size - len(data))
		size = len(data)
		id := rpcid.Find(data)
		why := exactID(id)
		if begins := bytes.TrimLeft(data, " \t\r\n"); len(begins) > 0 && begins[0] == '[' {
			id, why = nil, errList
		}
		if why != nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = w.Write(refusal(id, why)) // to a client that may have gone
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(data))
		next.ServeHTTP(w, r)
	})
}

// errList refuses a list of messages. The ids of its messages are not looked at.
var errList = errors.New("lists of messages are refused: send each by itself")

// errSessionEnded is the cause of the end of calls when their session ends.
var errSessionEnded = errors.New("the session of this call has ended")

// endings end the calls of sessions: the SDK waits for them when a session ends. A call has an ending if its session has an id.
// They are safe for concurrent use.
type endings struct {
	mu    sync.Mutex
	calls map[string]map[*context.CancelCauseFunc]bool // by the id of the session
	over  map[string]int                               // sessions that end now
}

func newEndings() *endings {
	return &endings{calls: map[string]map[*context.CancelCauseFunc]bool{}, over: map[string]int{}}
}

// begin begins a call of a session. end ends it; cancel is called before if the session ends.
func (e *endings) begin(id string, cancel context.CancelCauseFunc) (end func()) {
	if id == "" {
		return func() {}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over[id] > 0 {
		cancel(errSessionEnded)
	}
	if e.calls[id] == nil {
		e.calls[id] = map[*context.CancelCauseFunc]bool{}
	}
	e.calls[id][&cancel] = true
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if delete(e.calls[id], &cancel); len(e.calls[id]) == 0 {
			delete(e.calls, id)
		}
	}
}

// session ends the calls of a session, and those that begin until done is called.
func (e *endings) session(id string) (done func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over[id]++
	for cancel := range e.calls[id] {
		(*cancel)(errSessionEnded)
	}
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.over[id]--; e.over[id] == 0 {
			delete(e.over, id)
		}
	}
}

// sessions bounds the sessions of a server. A client that does not end its own, as one that opens a session
// for each call, has the oldest closed.
type sessions struct {
	server *mcp.Server
	calls  *endings
	most   int

	mu   sync.Mutex
	used map[string]*use // by the id of the session
}

// use says how a session is used.
type use struct {
	requests int // that go on
	last     time.Time
	closed   bool
}

func newSessions(server *mcp.Server, calls *endings, most int) *sessions {
	return &sessions{server: server, calls: calls, most: most, used: map[string]*use{}}
}

// begin begins a request of a session. end ends it.
func (s *sessions) begin(id string) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.used) > 2*s.most { // ids of no session
		s.open()
	}
	u := s.used[id]
	if u == nil {
		u = &use{}
		s.used[id] = u
	}
	u.requests++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		u.requests--
		u.last = time.Now()
	}
}

// open are the open sessions by id. What is known of others is forgotten. The caller holds mu.
func (s *sessions) open() map[string]*mcp.ServerSession {
	open := map[string]*mcp.ServerSession{}
	for session := range s.server.Sessions() {
		id := session.ID()
		if id == "" { // of one request
			continue
		}
		open[id] = session
		if s.used[id] == nil {
			s.used[id] = &use{last: time.Now()}
		}
	}
	for id, u := range s.used {
		if open[id] == nil && u.requests == 0 {
			delete(s.used, id)
		}
	}
	return open
}

// room closes the session that nobody has used for the longest time, if there are too many for a new one.
func (s *sessions) room() {
	s.mu.Lock()
	defer s.mu.Unlock()
	open := s.open()
	var oldest string
	left := 0
	for id := range open {
		u := s.used[id]
		if u.closed {
			continue
		}
		left++
		if u.requests == 0 && (oldest == "" || u.last.Before(s.used[oldest].last)) {
			oldest = id
		}
	}
	if left < s.most || oldest == "" {
		return
	}
	s.used[oldest].closed = true
	go func() { // ends soon: so do its calls, whose client has gone
		defer s.calls.session(oldest)()
		_ = open[oldest].Close() // the error of the stream that ends
	}()
}
