package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"strings"
	"sync"
	"time"

	"agentsh/policy"
)

// handover is the listener of the web server: it accepts what [client.handWeb]
// gives it.
type handover struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newHandover() *handover {
	return &handover{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.done:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.done) })
	return nil
}

func (h *handover) Addr() net.Addr { return &net.UnixAddr{Name: "egress", Net: "unix"} }

// handed is a client's connection in the hands of the web server. Its way is
// fixed, or nil where each request names its own.
type handed struct {
	net.Conn
	c    *client
	f    *flow
	once sync.Once
}

// Close ends the client.
func (h *handed) Close() error {
	err := h.Conn.Close()
	h.once.Do(func() {
		h.c.end()
		h.c.p.serving.Done()
	})
	return err
}

// CloseWrite ends one direction: what the server of a connection sent last is
// then not lost by a reset.
func (h *handed) CloseWrite() error { return endWrite(h.Conn) }

// handWeb has the web server serve a client from here on. On a secured way TLS
// ends there.
func (c *client) handWeb(f *flow, in net.Conn) {
	c.mu.Lock()
	c.handed = true
	c.mu.Unlock()
	c.p.serving.Add(1)
	h := &handed{Conn: in, c: c, f: f}
	conn := net.Conn(h)
	if f != nil && f.secured {
		secure := tls.Server(h, c.p.shown)
		// Here and not in the server: the deep stack of a handshake ends with
		// this goroutine instead of staying with the connection.
		c.limitTime(in)
		if err := secure.HandshakeContext(c.ctx); err != nil {
			f.fail(fmt.Errorf("TLS with the client: %w", err))
			_ = h.Close()
			return
		}
		noLimit(in)
		conn = secure
	}
	select {
	case c.p.handed.conns <- conn:
	case <-c.p.handed.done:
		_ = h.Close()
	}
}

// newServerTLS is what clients are met with.
func (p *Proxy) newServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			h, ok := hello.Conn.(*handed)
			if !ok {
				return nil, errors.New("egress: a connection of another server")
			}
			return p.ca.certificate(h.f.serverName())
		},
	}
}

// serverName is the name or address that the destination proves to be.
func (f *flow) serverName() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.name != "" {
		return f.name
	}
	return f.to.host.String()
}

type contextKey int

const (
	keyHanded contextKey = iota
	keyExchange
)

// exchange is one HTTP request on its way.
type exchange struct {
	f      *flow
	h      *handed
	host   string // as the server gets it
	second bool   // the request came by HTTP/2
	scrub  *scrubbing
	repeat *repeatable // nil: without a body
}

func exchangeOf(ctx context.Context) *exchange {
	x, _ := ctx.Value(keyExchange).(*exchange)
	return x
}

// newWeb is the server of everything that is HTTP.
func (p *Proxy) newWeb() *http.Server {
	p.shown = p.newServerTLS()
	quiet := log.New(io.Discard, "", 0) // what clients send wrong is theirs to know
	forward := &httputil.ReverseProxy{
		Rewrite: rewrite, Transport: carriers{}, ErrorHandler: p.unreachable, ModifyResponse: p.answered,
		BufferPool: buffers{}, ErrorLog: quiet,
	}
	s := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serveRequest(w, r, forward) }),
		ReadHeaderTimeout: p.opts.Limits.OpeningTimeout, MaxHeaderBytes: p.opts.Limits.HeaderBytes, ErrorLog: quiet,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streamsMost, MaxReceiveBufferPerStream: 256 << 10, MaxReceiveBufferPerConnection: 1 << 20},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if t, ok := conn.(*tls.Conn); ok {
				conn = t.NetConn()
			}
			return context.WithValue(ctx, keyHanded, conn)
		},
		Protocols: new(http.Protocols),
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	return s
}

// buffers are what answers are copied through. One is held by each request on
// its way, also by one that is silent for hours.
type buffers struct{}

var answerBuffers = sync.Pool{New: func() any { b := make([]byte, 4<<10); return &b }}

func (buffers) Get() []byte  { return *answerBuffers.Get().(*[]byte) }
func (buffers) Put(b []byte) { answerBuffers.Put(&b) }

// serveRequest judges one request and sends it on.
func (p *Proxy) serveRequest(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	h, ok := r.Context().Value(keyHanded).(*handed)
	if !ok {
		failed("a connection of another server").respond(w)
		return
	}
	x := &exchange{h: h, second: r.ProtoMajor == 2}
	// Without it net/http closes the rest of an HTTP/1 request when the answer
	// begins, which ends the request to the server and with it the answer.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		failed("%v", err).respond(w)
		return
	}
	refused := x.route(r)
	if refused == nil {
		refused = x.permit(r)
	}
	if refused != nil {
		refused.respond(w)
		return
	}
	w = answering{w, x.scrub}
	if len(r.Trailer) > 0 {
		r.Body = newTrailed(r)
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		// Another protocol would carry what nobody looks into.
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	forward.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyExchange, x)))
}

// answering is where an answer is written to.
type answering struct {
	http.ResponseWriter
	scrub *scrubbing // nil: there is nothing to scrub
}

// WriteHeader has the headers of early answers scrubbed. Those of the last
// answer are when they come.
func (w answering) WriteHeader(code int) {
	if w.scrub != nil && code < 200 && code != http.StatusSwitchingProtocols {
		w.scrub.headers(w.Header())
	}
	w.ResponseWriter.WriteHeader(code)
}

// Hijack gives the connection of an upgrade together with what the client sent
// ahead, which httputil.ReverseProxy does not look at.
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

// waysMost is how many destinations one client connection may have.
const waysMost = 64

// route finds the way a request goes. A refusal is recorded.
func (x *exchange) route(r *http.Request) *refusal {
	c := x.h.c
	if x.h.f == nil {
		return x.routeProxy(r)
	}
	x.f = x.h.f
	refuse := func(refused *refusal) *refusal { return c.refuse(x.f.to.String(), refused) }
	if r.Method == http.MethodConnect {
		return refuse(against("request", "CONNECT inside a connection", ""))
	}
	port := uint16(80)
	if x.f.secured {
		port = 443
	}
	x.host = x.f.serverName()
	if r.Host != "" {
		to, err := parseDestination(r.Host, "1") // the port is looked at below
		if err != nil {
			return refuse(against("agreement", "the request to "+x.f.shown()+" names a malformed host", ""))
		}
		if _, _, err := net.SplitHostPort(r.Host); err == nil && to.port != x.f.to.port {
			return refuse(against("agreement", "the connection is to "+x.f.to.String()+" but the request is for "+to.String(), ""))
		}
		if refused := x.agree(to.host); refused != nil {
			return refuse(refused)
		}
		x.host = to.host.String()
	}
	x.host = hostHeader(x.host, x.f.to.port, port)
	return nil
}

// agree holds the host of a request against the connection it came on.
func (x *exchange) agree(host policy.Host) *refusal {
	if !x.f.secured {
		return x.f.settle(host.String())
	}
	if name := x.f.serverName(); host.String() != name {
		return against(
			"agreement",
			"the connection is to "+name+" but the request is for "+host.String(),
			"connect to the host that is asked for",
		)
	}
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

// routeProxy finds or opens the way of a request to the proxy itself.
func (x *exchange) routeProxy(r *http.Request) *refusal {
	c := x.h.c
	if r.URL.Scheme != "http" || r.URL.Host == "" {
		return c.refuse(r.Method, against("request", "the request is not for http://host/...", "use CONNECT for https, and name the whole URL"))
	}
	to, err := parseDestination(r.URL.Host, "80")
	if err != nil {
		return c.refuse(r.Method, against("request", "the URL of the request: "+err.Error(), ""))
	}
	c.mu.Lock()
	f, n := c.flows[to], len(c.flows)
	c.mu.Unlock()
	if f == nil {
		if n >= waysMost {
			return c.refuse(to.String(), against("limit", "one connection to the proxy has too many destinations", "use another connection"))
		}
		var refused *refusal
		if f, refused = c.open(to); refused != nil {
			return refused
		}
	}
	x.f, x.host = f, hostHeader(to.host.String(), to.port, 80)
	return nil
}

// permit judges the request itself, records that, and readies what it carries.
func (x *exchange) permit(r *http.Request) *refusal {
	c := x.f.client
	path := r.URL.EscapedPath()
	var d policy.Decision
	var diag policy.Diagnostic
	meant, refused := meanings(r)
	if refused == nil {
		d, diag, refused = x.f.judgeRequest(r.Context(), meant)
	}
	if refused == nil {
		refused = x.ready(r)
	}
	e := x.f.event("request")
	e.Op, e.Path = r.Method, path
	e.Net.Sent, e.Net.Received, e.Net.Millis = 0, 0, 0 // those are of the connection
	e.Decision, e.Rule = d.Effect.String(), ruleAt(diag)
	if refused != nil {
		e.Decision, e.Message, e.Hint, e.Rule = policy.Deny.String(), refused.diag.Message, refused.diag.Hint, ruleAt(refused.diag)
	}
	if err := c.p.opts.Emit(e); err != nil && refused == nil {
		return against("audit", "the request cannot be recorded: "+err.Error(), "")
	}
	return refused
}

// rewrite makes the request that the server gets.
func rewrite(r *httputil.ProxyRequest) {
	x := exchangeOf(r.Out.Context())
	r.Out.URL.Scheme = "http"
	if x.f.secured {
		r.Out.URL.Scheme = "https"
	}
	r.Out.URL.Host = net.JoinHostPort(x.f.serverName(), portText(x.f.to.port))
	r.Out.URL.RawQuery = r.In.URL.RawQuery // as it was written
	r.Out.URL.User = nil
	r.Out.Host = x.host
	x.repeat = makeRepeatable(r.Out)
	// Its values come when the body was read, into the map of the client's request.
	if r.Out.Trailer = r.In.Trailer; len(r.Out.Trailer) > 0 {
		r.Out.ContentLength = -1
	}
}

// carriers sends a request on by the way it belongs to.
type carriers struct{}

func (carriers) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	carrier := x.f.carriage(x.second)
	res, err := carrier.RoundTrip(r)
	if err == nil || err.Error() != serverClosedIdle || r.GetBody == nil {
		return res, err
	}
	body, again := r.GetBody()
	if again != nil {
		return nil, err
	}
	carrier.CloseIdleConnections()
	r = r.WithContext(r.Context()) // a copy
	r.Body = body
	return carrier.RoundTrip(r)
}

// serverClosedIdle is what net/http says when the server ended a connection
// before it could get the request that was just sent on it. A request with a
// body is not sent again by net/http.
const serverClosedIdle = "http: server closed idle connection"

// streamsMost is how many requests one client connection may have open, and so
// how many connections to the destination it needs when that speaks HTTP/1 only.
const streamsMost = 100

// carriage is the flow's own transport: its connections are not shared with
// other ways. HTTP/2 is spoken to the server where the client speaks it: an
// upgrade of HTTP/1, as for WebSocket, needs HTTP/1 on both sides.
func (f *flow) carriage(second bool) *http.Transport {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.carrier != nil {
		return f.carrier
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(second)
	next := []string{"http/1.1"}
	if second {
		next = []string{"h2", "http/1.1"}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: f.client.p.opts.Roots, NextProtos: next}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := f.dial(ctx)
		if err != nil {
			return nil, err
		}
		return &counted{conn, f}, nil
	}
	f.carrier = &http.Transport{
		DialContext: dial,
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			own := config.Clone()
			own.ServerName = f.serverName()
			server := tls.Client(conn, own)
			if err := server.HandshakeContext(ctx); err != nil {
				_ = conn.Close()
				return nil, err
			}
			return server, nil
		},
		Protocols: protocols, ForceAttemptHTTP2: second, DisableCompression: true,
		MaxConnsPerHost: streamsMost, MaxIdleConnsPerHost: 2, IdleConnTimeout: 90 * time.Second,
		ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10, MaxResponseHeaderBytes: 256 << 10,
	}
	return f.carrier
}

// unreachable answers a request that could not be carried.
func (p *Proxy) unreachable(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	text := p.secrets.clean(err.Error())
	var refused *refusal
	var encoded *encodingError
	if errors.As(err, &encoded) || errors.Is(err, errPart) {
		refused = against("credentials", err.Error(), "ask for the whole resource, without an encoding")
		_ = x.h.c.refuse(x.f.to.String(), refused)
	} else {
		x.f.fail(errors.New(text))
		refused = failed("%s: %s", x.f.shown(), text)
	}
	refused.respond(w)
}

// answered readies an answer for the session.
func (p *Proxy) answered(r *http.Response) error {
	r.Header.Del("Alt-Svc") // it names ways around: other ports, QUIC
	x := exchangeOf(r.Request.Context())
	x.repeat.release()
	return x.scrub.answer(r)
}
