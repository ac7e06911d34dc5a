package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// transport sends the requests of one flow.
type transport interface {
	http.RoundTripper
	CloseIdleConnections()
}

// transports sends a request on by the transport of its flow.
type transports struct{}

func (transports) RoundTrip(r *http.Request) (*http.Response, error) {
	x := exchangeOf(r.Context())
	transport := x.f.httpTransport(x.second)
	res, err := transport.RoundTrip(r)
	if err == nil || err.Error() != serverClosedIdle || r.GetBody == nil {
		return res, err
	}
	body, again := r.GetBody()
	if again != nil {
		return nil, err
	}
	transport.CloseIdleConnections()
	r = r.WithContext(r.Context()) // a copy
	r.Body = body
	return transport.RoundTrip(r)
}

// serverClosedIdle is what net/http says when the server ended a connection
// before it could get the request that was just sent on it. A request with a
// body is not sent again by net/http.
const serverClosedIdle = "http: server closed idle connection"

// streamsMost is how many requests one client connection may have open, and so
// how many connections to the destination it needs when it supports HTTP/1 only.
const streamsMost = 100

// idleTimeout is how long a connection to a server is kept without requests.
const idleTimeout = 90 * time.Second

// httpTransport returns the flow's transport: flows share no connections. It
// uses HTTP/2 to the server if the client does: an upgrade of HTTP/1, as for
// WebSocket, needs HTTP/1 on both sides.
func (f *flow) httpTransport(second bool) transport {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.transport != nil:
	case second:
		f.transport = f.newTransport()
	default:
		f.transport = &http1{f: f}
	}
	return f.transport
}

// newTransport is for clients of HTTP/2. Their server may have HTTP/1 only.
func (f *flow) newTransport() *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return f.dial(ctx) },
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return f.dialTLS(ctx, "h2", "http/1.1")
		},
		Protocols: protocols, ForceAttemptHTTP2: true, DisableCompression: true,
		MaxConnsPerHost: streamsMost, MaxIdleConnsPerHost: 2, IdleConnTimeout: idleTimeout,
		ReadBufferSize: 1 << 10, WriteBufferSize: 1 << 10, MaxResponseHeaderBytes: answerHeaderMost,
	}
}

// dial connects to the flow's destination.
func (f *flow) dial(ctx context.Context) (net.Conn, error) {
	conn, err := f.up.dial(ctx, f.judged())
	if err != nil {
		return nil, err
	}
	return &counted{Conn: conn, up: &f.up, sent: f.meter(&f.sent), received: f.meter(&f.received)}, nil
}

// dialTLS connects to the flow's destination by TLS, for one of the protocols.
func (f *flow) dialTLS(ctx context.Context, protocols ...string) (net.Conn, error) {
	conn, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	server := tls.Client(conn, &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: f.client.p.opts.Roots, NextProtos: protocols,
		ServerName: f.judged().serverName(),
	})
	if err := server.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return server, nil
}

// http1 sends the requests of one flow by HTTP/1. A client of HTTP/1 has one request
// at a time, so one idle connection is kept. In contrast to [http.Transport], a
// connection has no goroutines and no buffers while nothing is sent: one goroutine
// sends a request, and the caller reads the answer.
type http1 struct {
	f *flow

	mu     sync.Mutex
	idle   *http1Conn
	closed bool
}

// RoundTrip sends a request. It sends it once more if a reused connection ended
// before the answer began, and if that is safe.
func (t *http1) RoundTrip(r *http.Request) (*http.Response, error) {
	for {
		c, err := t.take(r.Context())
		if err != nil {
			return nil, err
		}
		res, err := c.exchange(r)
		if err == nil {
			return res, nil
		}
		if !c.repeatable(r) {
			return nil, err
		}
		if r.Body != nil {
			body, again := r.GetBody()
			if again != nil {
				return nil, err
			}
			r = r.WithContext(r.Context()) // a copy
			r.Body = body
		}
	}
}

// CloseIdleConnections closes the idle connection. Connections in use are closed
// after their request.
func (t *http1) CloseIdleConnections() {
	t.mu.Lock()
	c := t.idle
	t.idle, t.closed = nil, true
	t.mu.Unlock()
	if c != nil {
		c.idle.Stop()
		_ = c.Close()
	}
}

// take returns the idle connection if it still is one, or another.
func (t *http1) take(ctx context.Context) (*http1Conn, error) {
	t.mu.Lock()
	c := t.idle
	t.idle = nil
	t.mu.Unlock()
	if c != nil {
		c.idle.Stop()
		if c.quiet() {
			c.reused = true
			return c, nil
		}
		_ = c.Close()
	}
	var conn net.Conn
	var err error
	aside(func() {
		if t.f.secured {
			conn, err = t.f.dialTLS(ctx, "http/1.1")
		} else {
			conn, err = t.f.dial(ctx)
		}
	})
	if err != nil {
		return nil, err
	}
	return &http1Conn{Conn: conn, of: t}, nil
}

// put keeps a connection for the next request.
func (t *http1) put(c *http1Conn) {
	if c.idle == nil {
		c.idle = time.AfterFunc(idleTimeout, func() { t.drop(c) })
	} else {
		c.idle.Reset(idleTimeout)
	}
	t.mu.Lock()
	old := t.idle
	t.idle = c
	if t.closed {
		old, t.idle = c, old
	}
	t.mu.Unlock()
	if old != nil {
		old.idle.Stop()
		_ = old.Close()
	}
}

// drop closes a connection that is still idle.
func (t *http1) drop(c *http1Conn) {
	t.mu.Lock()
	is := t.idle == c
	if is {
		t.idle = nil
	}
	t.mu.Unlock()
	if is {
		_ = c.Close()
	}
}

// quiet reports whether an idle connection is open and nothing came on it. What
// comes without a request is no answer to the next one.
func (c *http1Conn) quiet() bool {
	below := c.Conn
	if secure, ok := below.(*tls.Conn); ok {
		below = secure.NetConn()
	}
	if counted, ok := below.(*counted); ok {
		below = counted.Conn
	}
	socket, ok := below.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	var one [1]byte
	var peeked error
	err = raw.Read(func(fd uintptr) bool {
		_, _, peeked = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return true
	})
	if err != nil || !errors.Is(peeked, unix.EAGAIN) {
		return false
	}
	// Only what TLS has read already can be returned at once.
	_ = c.SetReadDeadline(time.Unix(1, 0))
	n, err := c.Conn.Read(one[:])
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded) && c.SetReadDeadline(time.Time{}) == nil
}
