package egress

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

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

// httpTransport returns the flow's transport: flows share no connections. It
// uses HTTP/2 to the server if the client does: an upgrade of HTTP/1, as for
// WebSocket, needs HTTP/1 on both sides.
func (f *flow) httpTransport(second bool) *http.Transport {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.transport == nil {
		f.transport = f.newTransport(second)
	}
	return f.transport
}

func (f *flow) newTransport(second bool) *http.Transport {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(second)
	next := []string{"http/1.1"}
	if second {
		next = []string{"h2", "http/1.1"}
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: f.client.p.opts.Roots, NextProtos: next}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := f.up.dial(ctx, f.judged())
		if err != nil {
			return nil, err
		}
		return &counted{Conn: conn, up: &f.up, sent: f.meter(&f.sent), received: f.meter(&f.received)}, nil
	}
	return &http.Transport{
		DialContext: dial,
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			named := config.Clone()
			named.ServerName = f.judged().serverName()
			server := tls.Client(conn, named)
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
}
