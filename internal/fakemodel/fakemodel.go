// Package fakemodel is a model server for tests. It implements the wire formats of
// model APIs and answers with turns that a test wrote. The agents that talk to
// it are the real programs.
package fakemodel

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync"
)

// Turn is one answer of the model: text, then tool calls. A turn without calls
// ends the agent's work.
type Turn struct {
	Say    string
	Calls  []Call
	Status int           // an HTTP error instead of an answer; 0: none
	Hold   chan struct{} // not nil: the answer waits until it is closed or the client is gone
}

// Call is one call of a tool.
type Call struct {
	Tool  string
	Input map[string]any
}

// Request is a request of an agent, equal for every wire format.
type Request struct {
	Format  string // name of the wire format
	Path    string
	Header  http.Header
	Key     string // credential, without "Bearer "
	Model   string
	System  string   // instructions
	Texts   []string // of the conversation, of all roles, without tool results
	Results []Result // of all tool calls so far, in order
	Tools   []string // names offered
	Body    []byte
}

// Result is the result of a tool call.
type Result struct {
	ID     string
	Text   string
	Failed bool
}

// Script returns the model's next answer. One goroutine at a time calls it.
type Script func(Request) Turn

// Turns returns the turns one after another, by the number of tool results in
// the request, and then the last one. Every turn but the last has one call.
func Turns(turns ...Turn) Script {
	return func(r Request) Turn { return turns[min(len(r.Results), len(turns)-1)] }
}

// format is one wire format.
type format interface {
	name() string
	// matches reports whether a request is for this format to answer.
	matches(r *http.Request) bool
	// read fills in a request from its body.
	read(r *http.Request, body []byte, into *Request) error
	// write streams a turn.
	write(w io.Writer, r Request, t Turn) error
}

// formats are the wire formats, in the order in which they are tried.
var formats []format

// Server answers requests. It is safe for concurrent use.
type Server struct {
	script Script

	mu       sync.Mutex // also held while the script decides
	requests []Request
	unknown  []string
}

// New makes a server; serve it with net/http.
func New(script Script) *Server { return &Server{script: script} }

// Requests are those that asked the model, in order.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Request(nil), s.requests...)
}

// Unknown are the requests that no format knows, method and path.
func (s *Server) Unknown() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.unknown...)
}

// maxBody bounds a request, in bytes.
const maxBody = 32 << 20

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for _, f := range formats {
		if f.matches(r) {
			s.answer(w, r, f)
			return
		}
	}
	s.mu.Lock()
	s.unknown = append(s.unknown, r.Method+" "+r.URL.Path)
	s.mu.Unlock()
	http.NotFound(w, r)
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request, f format) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	req := Request{Format: f.name(), Path: r.URL.Path, Header: r.Header.Clone(), Key: key(r.Header), Body: body}
	if err := f.read(r, body, &req); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.requests = append(s.requests, req)
	turn := s.script(req)
	s.mu.Unlock()
	if turn.Hold != nil {
		select {
		case <-turn.Hold:
		case <-r.Context().Done():
			return
		}
	}
	if turn.Status != 0 {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(turn.Status)
		_, _ = io.WriteString(w, `{"type":"error","error":{"type":"api_error","message":"the model is not well"}}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	_ = f.write(w, req, turn) // the client is gone otherwise
}

// key is the credential of a request, wherever it stands.
func key(h http.Header) string {
	for _, name := range []string{"X-Api-Key", "X-Goog-Api-Key"} {
		if v := h.Get(name); v != "" {
			return v
		}
	}
	return strings.TrimPrefix(h.Get("Authorization"), "Bearer ")
}

// event writes one server-sent event; without a name it is data only.
func event(w io.Writer, name string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	text := "data: " + string(b) + "\n\n"
	if name != "" {
		text = "event: " + name + "\n" + text
	}
	_, err = io.WriteString(w, text)
	return err
}
