package egress

import (
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
)

// web is the server of all HTTP requests that are judged one by one.
type web struct {
	server   *http.Server
	handover *handover
	tls      *tls.Config // for clients whose TLS ends at the proxy
}

// newWeb makes the server. It is served by the listener web.handover.
func (p *Proxy) newWeb() *web {
	quiet := log.New(io.Discard, "", 0) // errors that clients make are not logged
	forward := httputil.ReverseProxy{
		Rewrite: rewrite, Transport: transports{}, ErrorHandler: p.unreachable, ModifyResponse: p.answered, ErrorLog: quiet,
	}
	s := &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serveRequest(w, r, forward) }),
		ReadHeaderTimeout: p.opts.Limits.OpeningTimeout, MaxHeaderBytes: p.opts.Limits.HeaderBytes, ErrorLog: quiet,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: streamsMost, MaxReceiveBufferPerStream: 256 << 10, MaxReceiveBufferPerConnection: 1 << 20},
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			if t, ok := conn.(*tls.Conn); ok {
				conn = t.NetConn()
			}
			return context.WithValue(ctx, keyWebConn, conn)
		},
		Protocols: new(http.Protocols),
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	return &web{server: s, handover: newHandover(), tls: p.newServerTLS()}
}

// newServerTLS is the TLS of the proxy towards clients: it makes a certificate for
// the host of the client's flow.
func (p *Proxy) newServerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			conn, ok := hello.Conn.(*webConn)
			if !ok {
				return nil, errors.New("egress: a connection of another server")
			}
			return p.ca.certificate(conn.flow.judged().serverName())
		},
	}
}

// handover is the listener of the web server: it accepts the connections that
// [client.serveHTTP] hands over.
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

// webConn is a client's connection that the web server serves.
type webConn struct {
	net.Conn
	client *client
	flow   *flow // nil: each request to the proxy names its own destination
	once   sync.Once
}

// Close ends the client.
func (c *webConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.client.end()
		c.client.p.open.serving.Done()
	})
	return err
}

// CloseWrite ends one direction, so that a reset does not lose the last bytes of
// the server.
func (c *webConn) CloseWrite() error { return endWrite(c.Conn) }

// serveHTTP has the web server serve a client from here on. If its flow is
// secured, TLS ends there.
func (c *client) serveHTTP(f *flow, in net.Conn) {
	c.mu.Lock()
	c.handed = true
	c.mu.Unlock()
	c.p.open.serving.Add(1)
	plain := &webConn{Conn: in, client: c, flow: f}
	conn := net.Conn(plain)
	if f != nil && f.secured {
		secure := tls.Server(plain, c.p.web.tls)
		// The handshake runs here and not in the server: its deep stack ends with
		// this goroutine instead of staying with the connection.
		c.limitTime(in)
		if err := secure.HandshakeContext(c.ctx); err != nil {
			f.fail(fmt.Errorf("TLS with the client: %w", err))
			_ = plain.Close()
			return
		}
		clearReadTimeout(in)
		conn = secure
	}
	select {
	case c.p.web.handover.conns <- conn:
	case <-c.p.web.handover.done:
		_ = plain.Close()
	}
}

type contextKey int

const (
	keyWebConn contextKey = iota
	keyExchange
)

// serveRequest judges one request and sends it on.
func (p *Proxy) serveRequest(w http.ResponseWriter, r *http.Request, forward httputil.ReverseProxy) {
	conn, ok := r.Context().Value(keyWebConn).(*webConn)
	if !ok {
		failed("a connection of another server").respond(w)
		return
	}
	// Without it net/http closes the rest of an HTTP/1 request when the answer
	// begins, which ends the request to the server and with it the answer.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		failed("%v", err).respond(w)
		return
	}
	x, refused := conn.exchange(r)
	if refused == nil {
		aside(func() { refused = x.permit(r) })
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
		// The requests of another protocol would not be inspected.
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
	}
	forward.BufferPool = x
	forward.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), keyExchange, x)))
}

// unreachable answers a request that could not be sent on.
func (p *Proxy) unreachable(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r.Context())
	text := p.judge.secrets().clean(err.Error())
	var refused *refusal
	var encoded *encodingError
	if errors.As(err, &encoded) || errors.Is(err, errPart) {
		refused = against("credentials", err.Error(), "ask for the whole resource, without an encoding")
		_ = p.refuse(x.f.client.from, x.f.to.String(), refused)
	} else {
		x.f.fail(errors.New(text))
		refused = failed("%s: %s", x.route.shown(), text)
	}
	refused.respond(w)
}

// answered prepares an answer for the session.
func (p *Proxy) answered(r *http.Response) error {
	if r.StatusCode < 100 { // the server of net/http would end the connection
		return fmt.Errorf("the server answered with the status %03d, which does not exist", r.StatusCode)
	}
	r.Header.Del("Alt-Svc") // it names other ports, and QUIC
	x := exchangeOf(r.Request.Context())
	x.events = strings.HasPrefix(strings.ToLower(r.Header.Get("Content-Type")), "text/event-stream")
	x.repeat.release()
	return x.scrub.answer(r)
}

// aside calls a function on another goroutine, and waits. A stack that grew stays
// large as long as a stream lasts; the other goroutine's ends with the call.
func aside(do func()) {
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		do()
	}()
	if failure := <-done; failure != nil {
		panic(failure)
	}
}
