package egress

import (
	"bufio"
	"bytes"
	"context"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"

	"agentsh/policy"
)

// exchange is one HTTP request with its answer.
type exchange struct {
	f      *flow
	route  route  // of the flow when the request was judged
	host   string // Host of the request to the server
	second bool   // the request came by HTTP/2
	scrub  *scrubbing
	repeat *repeatable // nil: without a body
	events bool        // the answer is a stream of events
}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(keyExchange).(*exchange)
	return x
}

// flowsMost is how many destinations one client connection may have.
const flowsMost = 64

// exchange finds the flow that a request belongs to. A refusal is recorded.
func (c *webConn) exchange(r *http.Request) (*exchange, *refusal) {
	if c.flow == nil {
		return c.client.exchange(r)
	}
	f := c.flow
	x := &exchange{f: f, route: f.judged(), second: r.ProtoMajor == 2}
	if refused := x.agree(r); refused != nil {
		return x, c.client.p.refuse(c.client.from, f.to.String(), refused)
	}
	return x, nil
}

// exchange finds or opens the flow of a request to the proxy itself.
func (c *client) exchange(r *http.Request) (*exchange, *refusal) {
	if r.URL.Scheme != "http" || r.URL.Host == "" {
		return nil, c.p.refuse(c.from, r.Method,
			against("request", "the request is not for http://host/...", "use CONNECT for https, and name the whole URL"))
	}
	to, err := parseDestination(r.URL.Host, "80")
	if err != nil {
		return nil, c.p.refuse(c.from, r.Method, against("request", "the URL of the request: "+err.Error(), ""))
	}
	f, n := c.flowTo(to)
	if f == nil {
		if n >= flowsMost {
			return nil, c.p.refuse(c.from, to.String(),
				against("limit", "one connection to the proxy has too many destinations", "use another connection"))
		}
		var refused *refusal
		if f, refused = c.open(to); refused != nil {
			return nil, refused
		}
	}
	return &exchange{f: f, route: f.judged(), host: hostHeader(to.host.String(), to.port, 80), second: r.ProtoMajor == 2}, nil
}

// agree compares the host of a request with the connection that it came on, and
// sets the exchange's route and host.
func (x *exchange) agree(r *http.Request) *refusal {
	f := x.f
	if r.Method == http.MethodConnect {
		return against("request", "CONNECT inside a connection", "")
	}
	port := uint16(80)
	if f.secured {
		port = 443
	}
	x.host = x.route.serverName()
	if r.Host != "" {
		to, err := parseDestination(r.Host, "1") // the port is compared below
		if err != nil {
			return against("agreement", "the request to "+x.route.shown()+" names a malformed host", "")
		}
		if _, _, err := net.SplitHostPort(r.Host); err == nil && to.port != f.to.port {
			return against("agreement", "the connection is to "+f.to.String()+" but the request is for "+to.String(), "")
		}
		if refused := x.agreeHost(to.host); refused != nil {
			return refused
		}
		x.host = to.host.String()
	}
	x.host = hostHeader(x.host, f.to.port, port)
	return nil
}

// agreeHost compares the host of a request with that of the flow. A request on a
// connection to an address may name a host: the flow follows that.
func (x *exchange) agreeHost(host policy.Host) *refusal {
	f := x.f
	if name := x.route.serverName(); f.secured && host.String() != name {
		return against("agreement", "the connection is to "+name+" but the request is for "+host.String(),
			"connect to the host that is asked for")
	}
	if f.secured {
		return nil
	}
	c := f.client
	next, refused := c.p.judge.agree(c.ctx, c.from, x.route, host.String())
	if refused != nil {
		return refused
	}
	f.follow(next)
	x.route = next
	return nil
}

// hostHeader is the Host of a request.
func hostHeader(host string, port, usual uint16) string {
	d := destination{port: port}
	d.host, _ = policy.ParseHost(host) // it is one
	if port != usual {
		return d.String()
	}
	if d.host.Addr().Is6() {
		return "[" + host + "]"
	}
	return host
}

// permit judges the request, records the decision, and prepares what is sent on.
func (x *exchange) permit(r *http.Request) *refusal {
	c := x.f.client
	path := r.URL.EscapedPath()
	var v verdict
	meant, refused := meanings(r)
	if refused == nil {
		v, refused = c.p.judge.request(r.Context(), c.from, x.route, meant)
	}
	if refused == nil {
		refused = x.ready(r)
	}
	e := x.f.event("request")
	e.Op, e.Path = r.Method, path
	e.Net.Sent, e.Net.Received, e.Net.Millis = 0, 0, 0 // they count the whole connection
	e.Decision, e.Rule = v.Effect.String(), ruleOf(v.diag)
	if refused != nil {
		refused.what = strings.TrimSpace(e.Op + " " + e.Path + " " + e.Target)
		e.Decision, e.Message, e.Hint, e.Rule = policy.Deny.String(), refused.diag.Message, refused.diag.Hint, ruleOf(refused.diag)
	}
	if err := c.p.opts.Emit(e); err != nil && refused == nil {
		return against("audit", "the request cannot be recorded: "+err.Error(), "")
	}
	return refused
}

// Buffers that answers are copied through. Each open answer has one, also one that is
// silent for hours. Those are streams of events, which are small.
var (
	answerBuffers = sync.Pool{New: func() any { return make([]byte, 4<<10) }}
	eventBuffers  = sync.Pool{New: func() any { return make([]byte, 1<<10) }}
)

// Get returns the buffer for the answer, for [httputil.ReverseProxy].
func (x *exchange) Get() []byte { return x.buffers().Get().([]byte) }

// Put takes the buffer back.
func (x *exchange) Put(b []byte) { x.buffers().Put(b) } //nolint:staticcheck // a slice header for each answer is little

func (x *exchange) buffers() *sync.Pool {
	if x.events {
		return &eventBuffers
	}
	return &answerBuffers
}

// rewrite makes the request to the server.
func rewrite(r *httputil.ProxyRequest) {
	x := exchangeOf(r.Out.Context())
	r.Out.URL.Scheme = "http"
	if x.f.secured {
		r.Out.URL.Scheme = "https"
	}
	r.Out.URL.Host = net.JoinHostPort(x.route.serverName(), portText(x.f.to.port))
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as it was written
	r.Out.URL.User = nil
	r.Out.Host = x.host
	x.repeat = makeRepeatable(r.Out)
	// The values are set when the body was read, in the map of the client's request.
	if r.Out.Trailer = r.In.Trailer; len(r.Out.Trailer) > 0 {
		r.Out.ContentLength = -1
	}
}

// answering writes an answer to the client.
type answering struct {
	http.ResponseWriter
	scrub *scrubbing // nil: there is nothing to scrub
}

// WriteHeader scrubs the headers of early answers. Those of the last answer are
// scrubbed already. The header of a stream is sent at once: it needs more stack than
// the rest, and less of it from here than with the first bytes of the stream.
func (w answering) WriteHeader(code int) {
	if w.scrub != nil && code < 200 && code != http.StatusSwitchingProtocols {
		w.scrub.headers(w.Header())
	}
	w.ResponseWriter.WriteHeader(code)
	switch {
	case code < 200, code == http.StatusNoContent, code == http.StatusNotModified, w.Header().Get("Content-Length") != "":
	default:
		_ = http.NewResponseController(w.ResponseWriter).Flush() // the next write has the error
	}
}

// Hijack returns the connection of an upgrade with what the client sent ahead,
// which httputil.ReverseProxy ignores.
func (w answering) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, both, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil || both.Reader.Buffered() == 0 {
		return conn, both, err
	}
	ahead, err := both.Peek(both.Reader.Buffered())
	return &replayed{Conn: conn, seen: bytes.Clone(ahead)}, both, err
}

// Unwrap serves http.ResponseController.
func (w answering) Unwrap() http.ResponseWriter { return w.ResponseWriter }
