package boxes

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"agentsh/controller"
	"agentsh/internal/rpcid"
)

// Protocol is the version of the protocol.
const Protocol = 1

// Bounds of a client.
const (
	maxLine  = 96 << 20  // bytes of one message: a file of 64 MiB in base64
	maxHeld  = 256 << 20 // bytes of the messages of all calls that run
	maxCalls = 256       // that run at a time, and whose answers the client has not read
	maxDepth = 64        // of nested objects and lists in a message
)

// Config configures a [Server].
type Config struct {
	Version string // of the program
	// Options are the options of a run for a specification. done is called when the sandbox has ended.
	Options func(Spec) (o controller.Options, done func(), err error)
}

// Server serves sandboxes to one client, by JSON-RPC 2.0 with one message a line. All sandboxes end with
// the stream.
type Server struct {
	cfg      Config
	out      *client
	rooms    *rooms        // of answers
	slots    chan struct{} // has an element for each call that runs or whose answer is not sent
	encoding chan struct{} // has an element while an answer is encoded and sent

	state sync.Mutex
	ended bool // no call begins any more
	boxes map[string]*Box
	calls map[string]*call // by the id of the request
	held  int              // bytes of the messages of these
	wg    sync.WaitGroup   // calls
	ends  sync.WaitGroup   // of sandboxes
}

// call is a request that runs.
type call struct {
	cancel context.CancelCauseFunc
	window *window // of its output; nil: none
}

// message is one message of a client.
type message struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"` // absent: a notification
	Method  string          `json:"method"`
	Params  json.RawMessage `json:"params"`
}

// answer is one message of the server.
type answer struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Params  any             `json:"params,omitempty"`
	Result  any             `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int        `json:"code"`
	Message string     `json:"message"`
	Data    *errorData `json:"data,omitempty"`
}

type errorData struct {
	Hint string `json:"hint,omitempty"`
	Exit int    `json:"exit_code,omitempty"` // that agentctl has for it
}

// Codes of errors, as JSON-RPC has them.
const (
	codeParse    = -32700
	codeRequest  = -32600
	codeMethod   = -32601
	codeParams   = -32602
	codeFailed   = -32000
	codeCanceled = -32800 // as in the Language Server Protocol
)

// errCanceled is the cause of the end of a call that the client cancels.
var errCanceled = errors.New("cancelled by the client")

// errEnded is the cause of the end of calls when the stream ends.
var errEnded = errors.New("the stream of the client has ended")

// Serve serves a client until in ends or ctx does, and deletes its sandboxes. The error is that of the
// stream, or of a sandbox that could not be deleted.
func Serve(ctx context.Context, cfg Config, in io.Reader, out io.Writer) error {
	return newServer(cfg).serve(ctx, in, out)
}

func (s *Server) serve(ctx context.Context, in io.Reader, out io.Writer) error {
	s.out = newClient(out)
	calls, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	read := make(chan error, 1)
	go func() { read <- s.read(calls, in) }() // ends with in, or with the process
	var err error
	select {
	case err = <-read:
	case <-ctx.Done():
	}
	s.state.Lock()
	s.ended = true
	s.state.Unlock()
	s.out.end()
	cancel(errEnded)
	s.wg.Wait()
	err = errors.Join(err, s.deleteAll(context.WithoutCancel(ctx)))
	s.ends.Wait()
	s.out.flush()
	return err
}

func newServer(cfg Config) *Server {
	return &Server{
		cfg: cfg, rooms: newRooms(), slots: make(chan struct{}, 2*maxCalls), encoding: make(chan struct{}, 1),
		boxes: map[string]*Box{}, calls: map[string]*call{},
	}
}

// read reads messages until the stream ends.
func (s *Server) read(ctx context.Context, in io.Reader) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	for {
		line, id, err := readLine(lines)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, errLong) {
			s.fail(id, codeRequest, err)
			continue
		}
		if err != nil {
			return err
		}
		s.take(ctx, line)
	}
}

var errLong = fmt.Errorf("a message has more than %d bytes", maxLine)

// readLine reads a line without its end. A line that is too long is skipped: id is that of its request.
func readLine(r *bufio.Reader) (line []byte, id json.RawMessage, err error) {
	long := false
	var of rpcid.Finder
	for {
		part, err := r.ReadSlice('\n')
		if !long && len(line)+len(part) > maxLine {
			of.Add(line)
			long, line = true, nil
		}
		if long {
			of.Add(part)
		} else {
			line = append(line, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil && len(line) > 0 && errors.Is(err, io.EOF): // without a line end
			return line, nil, nil
		case err != nil:
			return nil, nil, err
		case long:
			return nil, of.Request(), errLong
		default:
			return line[:len(line)-1], nil, nil
		}
	}
}

// take starts what a message asks for.
func (s *Server) take(ctx context.Context, line []byte) {
	var m message
	switch {
	case len(line) == 0:
		return
	case tooDeep(line):
		s.fail(rpcid.Find(line), codeRequest, fmt.Errorf("the message has more than %d levels", maxDepth))
		return
	}
	if err := json.Unmarshal(line, &m); err != nil {
		s.fail(rpcid.Find(line), codeParse, err)
		return
	}
	if m.Version != "2.0" || m.Method == "" || len(m.ID) > 200 {
		s.fail(m.ID, codeRequest, errors.New(`a request has "jsonrpc": "2.0", an id and a method`))
		return
	}
	if len(m.ID) == 0 {
		s.notified(m)
		return
	}
	key := string(m.ID)
	s.slots <- struct{}{} // a client that does not read its answers is not read either
	ctx, cancel := context.WithCancelCause(ctx)
	if err := s.begin(key, len(line), cancel); err != nil {
		cancel(nil)
		<-s.slots
		s.fail(m.ID, codeRequest, err)
		return
	}
	go func() { // Serve waits for it
		defer s.wg.Done()
		defer func() { <-s.slots }()
		holds := &room{of: s.rooms}
		defer holds.leave()
		reply := s.answer(ctx, m, holds)
		s.state.Lock()
		delete(s.calls, key) // the client may use the id again once it has the answer
		s.held -= len(line)
		s.state.Unlock()
		cancel(nil)
		s.reply(reply)
	}()
}

// begin registers a call with a message of a size, and counts it in wg.
func (s *Server) begin(key string, size int, cancel context.CancelCauseFunc) error {
	s.state.Lock()
	defer s.state.Unlock()
	_, used := s.calls[key]
	switch {
	case s.ended:
		return errEnded
	case used:
		return errors.New("a request with this id is running")
	case len(s.calls) >= maxCalls:
		return fmt.Errorf("at most %d requests run at a time", maxCalls)
	case s.held > 0 && s.held+size > maxHeld:
		return fmt.Errorf("the requests that run have more than %d MiB together: wait for an answer, and ask again", maxHeld>>20)
	}
	s.calls[key] = &call{cancel: cancel}
	s.held += size
	s.wg.Add(1)
	return nil
}

// tooDeep reports whether a message has too many levels, before it is decoded.
func tooDeep(line []byte) bool {
	depth, text, escaped := 0, false, false
	for _, c := range line {
		switch {
		case escaped:
			escaped = false
		case text && c == '\\':
			escaped = true
		case c == '"':
			text = !text
		case text:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// notified acts on a notification. An unknown one is ignored.
func (s *Server) notified(m message) {
	var p struct {
		ID    json.RawMessage `json:"id"`
		Bytes int64           `json:"bytes"`
	}
	if json.Unmarshal(m.Params, &p) != nil {
		return
	}
	s.state.Lock()
	defer s.state.Unlock()
	one := s.calls[string(p.ID)]
	switch {
	case one == nil: // it has ended
	case m.Method == "cancel":
		one.cancel(errCanceled)
	case m.Method == "taken" && one.window != nil:
		one.window.taken(p.Bytes)
	}
}

// window makes the window for the output of a call.
func (s *Server) window(id json.RawMessage, most int64) *window {
	w := &window{most: most}
	s.state.Lock()
	defer s.state.Unlock()
	if one := s.calls[string(id)]; one != nil {
		one.window = w
	}
	return w
}

// answer runs a method and returns its answer.
func (s *Server) answer(ctx context.Context, m message, holds *room) answer {
	call, known := methods[m.Method]
	if !known {
		return failed(m.ID, codeMethod, fmt.Errorf("there is no method %.60q", m.Method))
	}
	result, err := call(s, ctx, request{id: m.ID, params: m.Params, room: holds})
	switch {
	case err == nil:
		return answer{ID: m.ID, Result: result}
	case errors.Is(err, errCanceled):
		return failed(m.ID, codeCanceled, err)
	case errors.Is(err, errParams):
		return failed(m.ID, codeParams, err)
	}
	return failed(m.ID, codeFailed, err)
}

// fail sends an error.
func (s *Server) fail(id json.RawMessage, code int, err error) { s.send(failed(id, code, err)) }

// failed is an answer with an error.
func failed(id json.RawMessage, code int, err error) answer {
	e := &rpcError{Code: code, Message: err.Error()}
	var f *controller.Failure
	if errors.As(err, &f) {
		e.Data = &errorData{Hint: f.Hint, Exit: f.Code}
		for _, p := range f.Problems {
			e.Message += "\n" + p.String()
		}
	}
	if len(id) == 0 {
		id = json.RawMessage("null")
	}
	return answer{ID: id, Error: e}
}

// reply sends the answer of a call. One is encoded at a time: it may be large.
func (s *Server) reply(a answer) {
	s.encoding <- struct{}{}
	defer func() { <-s.encoding }()
	s.send(a)
}

// send sends a message. A client that has gone gets none; its stream ends the server.
func (s *Server) send(a answer) {
	a.Version = "2.0"
	data, err := encode(a)
	if err != nil {
		data, _ = encode(answer{Version: "2.0", ID: a.ID, Error: &rpcError{Code: codeFailed, Message: err.Error()}})
	}
	s.out.send(data)
}

// encode is a message as a line.
func encode(a answer) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // else each < has 6 bytes
	err := e.Encode(a)
	return b.Bytes(), err
}

// deleteAll deletes the sandboxes that are left.
func (s *Server) deleteAll(ctx context.Context) error {
	s.state.Lock()
	left := s.boxes
	s.boxes = map[string]*Box{}
	s.state.Unlock()
	errs := make(chan error, len(left))
	for _, b := range left {
		go func() { errs <- b.Close(ctx) }()
	}
	var err error
	for range left {
		err = errors.Join(err, <-errs)
	}
	return err
}
