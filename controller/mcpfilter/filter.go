package mcpfilter

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"agentsh/internal/rpcid"
	"agentsh/internal/text"
)

// Bounds of a filter.
const (
	maxRunning  = 64   // requests of the agent at a time
	maxQueue    = 128  // messages that the server has not read
	maxUseless  = 1000 // messages of the server that answer nothing
	listTimeout = time.Minute
	tick        = 100 * time.Millisecond // between two reports of progress of one call
)

// errUseless ends a server.
var errUseless = errors.New("the server sends messages that answer nothing")

// Judge asks the policy for one call of a tool, and so records it in the audit log. An empty reason is
// a call that the filter would pass on. Any other reason says why it does not.
type Judge func(tool, reason string) error

// filter is one agent with one server.
type filter struct {
	server Server
	judge  Judge
	report func(d Definition, reason string) // of a definition that is refused
	out    *lockedWriter                     // to the agent
	queue  chan []byte                       // to the server
	ended  chan struct{}                     // closed when the server has ended
	known  listing

	mu      sync.Mutex
	next    int64
	pending map[int64]*request  // sent to the server, by the filter's own id
	running map[string]*request // of the agent, by its id
	useless int
	told    bool // the agent knows that the list has changed
}

// request is one request to the server.
type request struct {
	id        json.RawMessage // of the agent; nil: the filter's own
	own       int64           // of the filter; 0: not sent
	token     json.RawMessage // of the agent, for progress; nil: none
	progress  time.Time       // last report
	cancelled bool
	result    func(m message) // what is done with the response
}

// lockedWriter writes whole messages.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) write(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(line) // an agent that is gone ends its input too
}

// Run passes messages between an agent and a started server until one of them ends. The caller ends
// the server. report is called with every definition that is refused.
func Run(s Server, agent io.ReadWriter, server io.ReadWriter, judge Judge, report func(d Definition, reason string)) error {
	f := newFilter(s, agent, judge, report)
	read := make(chan error, 1)
	go f.feed(server) // ends with the server
	go func() {
		err := f.readServer(bufio.NewReader(server))
		close(f.ended)
		f.abandon()
		read <- err
	}()
	asked := make(chan error, 1)
	go func() { asked <- f.readAgent(bufio.NewReader(agent)) }() // a read of the agent has no other end
	select {
	case err := <-asked:
		return err
	case err := <-read:
		return fmt.Errorf("server %s: %w", s.Name, err)
	}
}

func newFilter(s Server, agent io.Writer, judge Judge, report func(d Definition, reason string)) *filter {
	f := &filter{
		server: s, judge: judge, report: report, out: &lockedWriter{w: agent}, queue: make(chan []byte, maxQueue), ended: make(chan struct{}),
		pending: map[int64]*request{}, running: map[string]*request{},
	}
	f.known.first, f.known.told = map[string]string{}, map[string]bool{}
	return f
}

// feed writes the queue to the server. One that does not read gets no more.
func (f *filter) feed(to io.Writer) {
	for {
		select {
		case line := <-f.queue:
			if _, err := to.Write(line); err != nil {
				return
			}
		case <-f.ended:
			return
		}
	}
}

// send queues a message for the server.
func (f *filter) send(m map[string]any) error {
	select {
	case f.queue <- encode(m):
		return nil
	case <-f.ended:
		return errors.New("the server has ended")
	default:
		return errors.New("the server does not read its messages")
	}
}

// ask sends a request to the server.
func (f *filter) ask(r *request, method string, params map[string]any) error {
	f.mu.Lock()
	if r.cancelled {
		f.mu.Unlock()
		return nil
	}
	f.next++
	r.own = f.next
	f.pending[r.own] = r
	f.mu.Unlock()
	if r.token != nil {
		params["_meta"] = map[string]any{"progressToken": r.own}
	}
	err := f.send(map[string]any{"id": r.own, "method": method, "params": params})
	if err != nil {
		f.mu.Lock()
		delete(f.pending, r.own)
		f.mu.Unlock()
	}
	return err
}

// begin registers a request of the agent. It answers one that cannot run.
func (f *filter) begin(m message) (*request, bool) {
	f.mu.Lock()
	r := &request{id: m.id}
	_, twice := f.running[string(m.id)]
	many := len(f.running) >= maxRunning
	if !twice && !many {
		f.running[string(m.id)] = r
	}
	f.mu.Unlock()
	switch {
	case twice:
		f.out.write(failure(m.id, codeRequest, "a request with this id is running"))
	case many:
		f.out.write(failure(m.id, codeOurs, "too many requests are running: wait for "+strconv.Itoa(maxRunning)+" of them"))
	}
	return r, !twice && !many
}

// end answers a request of the agent, once. The writer is held until the answer is written, so
// that a request is either running or answered for whoever holds it.
func (f *filter) end(r *request, answer []byte) {
	f.out.mu.Lock()
	defer f.out.mu.Unlock()
	f.mu.Lock()
	last := f.running[string(r.id)] == r
	if last {
		delete(f.running, string(r.id))
	}
	f.mu.Unlock()
	if last {
		_, _ = f.out.w.Write(answer) // as in write
	}
}

// abandon answers all requests of the agent after the end of the server. All answers that had begun
// are written when it returns.
func (f *filter) abandon() {
	f.out.mu.Lock()
	f.mu.Lock()
	var left []*request
	for _, r := range f.running {
		left = append(left, r)
	}
	f.mu.Unlock()
	f.out.mu.Unlock()
	for _, r := range left {
		f.end(r, failure(r.id, codeOurs, "the server has ended"))
	}
}

// readAgent reads the agent's messages until it closes its side.
func (f *filter) readAgent(from *bufio.Reader) error {
	var buffer []byte
	for {
		line, err := readLine(from, buffer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("the agent: %w", err)
		}
		if buffer = line; len(line) == 0 {
			continue
		}
		m, err := parseMessage(line)
		switch {
		case err != nil:
			f.out.write(failure(rpcid.Find(line), codeParse, err.Error()))
		case m.method == "": // a response, and the filter asks the agent nothing
		case m.id == nil:
			f.notified(m)
		default:
			f.asked(m)
		}
	}
}

// notified handles a notification of the agent.
func (f *filter) notified(m message) {
	switch m.method {
	case "notifications/initialized":
		_ = f.send(map[string]any{"method": m.method}) // a server that is gone ends the filter
	case "notifications/cancelled":
		var p object
		if json.Unmarshal(m.params, &p) != nil {
			return
		}
		f.mu.Lock()
		r := f.running[string(p["requestId"])]
		own := int64(0)
		if r != nil {
			r.cancelled, own = true, r.own
			delete(f.running, string(r.id)) // a cancelled request has no answer
			delete(f.pending, own)
		}
		f.mu.Unlock()
		if own > 0 {
			_ = f.send(map[string]any{"method": m.method, "params": map[string]any{"requestId": own}})
		}
	}
}

// asked handles a request of the agent.
func (f *filter) asked(m message) {
	if m.method == "ping" {
		f.out.write(success(m.id, struct{}{}))
		return
	}
	handle := map[string]func(*request, object){"initialize": f.initialize, "tools/list": f.list, "tools/call": f.call}[m.method]
	if handle == nil {
		f.out.write(failure(m.id, codeNoMethod, fmt.Sprintf("%.100q is not passed on: only the tools of the server are", m.method)))
		return
	}
	params := object{}
	if m.params != nil && json.Unmarshal(m.params, &params) != nil {
		f.out.write(failure(m.id, codeParams, "params is no object"))
		return
	}
	r, ok := f.begin(m)
	if !ok {
		return
	}
	if m.method == "initialize" { // in order before what follows
		handle(r, params)
		return
	}
	go handle(r, params) // ends by its answer, or by the end of the server
}

// initialize passes the first request on. The agent's capabilities stay here: a server that knew of them
// would ask the agent for texts of its model, or for its directories.
func (f *filter) initialize(r *request, params object) {
	version := newestVersion
	_ = json.Unmarshal(params["protocolVersion"], &version) // the default stays
	r.result = func(m message) { f.end(r, f.initialized(r, m)) }
	err := f.ask(r, "initialize", map[string]any{
		"protocolVersion": clip(version), "capabilities": struct{}{}, "clientInfo": map[string]any{"name": "agentsh", "version": "1"},
	})
	if err != nil {
		f.end(r, failure(r.id, codeOurs, err.Error()))
	}
}

// initialized is the answer to the first request. The server's instructions for the model stay out: no
// digest pins them.
func (f *filter) initialized(r *request, m message) []byte {
	var result struct {
		Version string `json:"protocolVersion"`
		Info    struct {
			Name    string `json:"name"`
			Version string `json:"version"`
		} `json:"serverInfo"`
	}
	if m.result == nil || json.Unmarshal(m.result, &result) != nil || result.Version == "" {
		return f.failed(r, m)
	}
	return success(r.id, map[string]any{
		"protocolVersion": clip(result.Version),
		"capabilities":    map[string]any{"tools": map[string]any{"listChanged": true}},
		"serverInfo":      map[string]any{"name": clip(result.Info.Name), "version": clip(result.Info.Version)},
	})
}

// failed is the answer to a request that the server did not answer with a result.
func (f *filter) failed(r *request, m message) []byte {
	var e struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}
	if m.error == nil || json.Unmarshal(m.error, &e) != nil {
		return failure(r.id, codeOurs, "the server's answer is none of the protocol")
	}
	return failure(r.id, e.Code, clip(e.Message))
}

// clip makes one line of a text of the other side.
func clip(s string) string { return text.Short(s, maxText) }

// refused is a result that the model reads.
func refused(id json.RawMessage, why string) []byte {
	return success(id, map[string]any{"isError": true, "content": []any{map[string]any{"type": "text", "text": "agentsh: " + why}}})
}

// call passes a call of a tool on, if the harness, the pins and the policy allow it.
func (f *filter) call(r *request, params object) {
	var tool string
	if err := json.Unmarshal(params["name"], &tool); err != nil || tool == "" {
		f.end(r, failure(r.id, codeParams, "name of the tool is no text"))
		return
	}
	reason, err := f.verdict(tool)
	if err != nil {
		f.end(r, failure(r.id, codeOurs, err.Error()))
		return
	}
	judged := f.judge(tool, reason)
	if reason == "" && judged != nil {
		reason = judged.Error()
	}
	if reason != "" {
		f.end(r, refused(r.id, fmt.Sprintf("denied: tool %.128q of server %s: %s", tool, f.server.Name, reason)))
		return
	}
	forward := map[string]any{"name": tool}
	if arguments, has := params["arguments"]; has {
		forward["arguments"] = arguments
	}
	var meta object
	if json.Unmarshal(params["_meta"], &meta) == nil && isID(meta["progressToken"]) {
		r.token = meta["progressToken"]
	}
	r.result = func(m message) {
		if m.result == nil || m.result[0] != '{' {
			f.end(r, f.failed(r, m))
			return
		}
		f.end(r, success(r.id, m.result))
	}
	if err := f.ask(r, "tools/call", forward); err != nil {
		f.end(r, failure(r.id, codeOurs, err.Error()))
	}
}
