// Package prometheus answers a Prometheus server with counts, in its text format. Counts are made for
// a request, at most once a second. Nothing that works waits for a request.
package prometheus

import (
	"bytes"
	"context"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"agentsh/internal/listen"
	"agentsh/internal/socket"
)

// Path is where the counts are.
const Path = "/metrics"

// Bounds of the server.
const (
	maxConnections = 16 // at a time; further ones are closed
	requestTime    = 10 * time.Second
	idleTime       = time.Minute
	freshTime      = time.Second // an answer is given again for that time
)

// Config says where counts are served. Both are empty: nowhere.
type Config struct {
	Address   string // IP address and port
	TokenFile string // with a token that requests must have; needed if other machines reach the address
}

// Check returns why a configuration cannot be used. flag is what the user writes before the address.
func (c Config) Check(flag string) error {
	at, err := netip.ParseAddrPort(c.Address)
	switch {
	case err != nil:
		return fmt.Errorf("%s %q: write an IP address and a port, as in 127.0.0.1:9464", flag, c.Address)
	case c.TokenFile == "" && !at.Addr().IsLoopback():
		return fmt.Errorf("%s %s: other machines reach this address: write 127.0.0.1:%d, or name a file with a token", flag, c.Address, at.Port())
	}
	return nil
}

// Server answers requests until it is closed.
type Server struct {
	gather func() []*Family
	token  []byte   // empty: requests need none
	hosts  []string // that a request may name; empty: any
	server *http.Server
	listen net.Listener
	served sync.WaitGroup

	mu   sync.Mutex
	made time.Time // of the last answer
	last []byte
}

// Listen serves what gather returns. gather is called by one goroutine at a time. The caller calls
// [Server.Close].
func Listen(ctx context.Context, c Config, gather func() []*Family) (*Server, error) {
	if err := c.Check("metrics"); err != nil {
		return nil, err
	}
	s := &Server{gather: gather}
	if c.TokenFile != "" {
		secret, err := socket.ReadSecret(c.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("token of the metrics: %w", err)
		}
		s.token = []byte("Bearer " + base64.StdEncoding.EncodeToString(secret))
	}
	l, err := listen.TCP(ctx, netip.MustParseAddrPort(c.Address)) // Check has parsed it
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	s.listen = l
	if at, err := netip.ParseAddrPort(l.Addr().String()); err == nil && at.Addr().IsLoopback() {
		s.hosts = []string{at.String(), fmt.Sprintf("localhost:%d", at.Port())}
	}
	s.server = &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: requestTime, ReadTimeout: requestTime, WriteTimeout: requestTime, IdleTimeout: idleTime,
		MaxHeaderBytes: 16 << 10,
	}
	s.served.Go(func() { // ends with Close; nobody can be told of an error
		_ = s.server.Serve(&sparing{Sparing: listen.Sparing{Listener: l}, free: make(chan struct{}, maxConnections)})
	})
	return s, nil
}

// URL is where the counts are.
func (s *Server) URL() string { return "http://" + s.listen.Addr().String() + Path }

// Close ends the server and its connections. It may be called on nil.
func (s *Server) Close() {
	if s == nil {
		return
	}
	_ = s.server.Close() // the listener may have ended
	s.served.Wait()
}

// serve refuses requests that a web page has made, that name another host, or have no token. A
// [http.ServeMux] for one path would make agentsh larger.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	site := r.Header.Get("Sec-Fetch-Site")
	switch {
	case len(s.hosts) > 0 && !slices.Contains(s.hosts, r.Host):
		http.Error(w, "this server has another name: ask "+s.hosts[0], http.StatusMisdirectedRequest)
	case len(r.Header.Values("Origin")) > 0 || site != "" && site != "none":
		http.Error(w, "requests of pages are refused", http.StatusForbidden)
	case len(s.token) > 0 && subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), s.token) != 1:
		http.Error(w, "the token is missing, or another one: name its file as credentials_file of the scrape", http.StatusUnauthorized)
	case r.URL.Path != Path:
		http.Error(w, "the counts are at "+Path, http.StatusNotFound)
	case r.Method != http.MethodGet:
		http.Error(w, "ask with GET", http.StatusMethodNotAllowed)
	default:
		h.Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(s.text()) // the reader may have gone
	}
}

// text are the counts. Those who ask together get the same.
func (s *Server) text() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil || time.Since(s.made) >= freshTime {
		var b bytes.Buffer
		write(&b, s.gather())
		s.last, s.made = b.Bytes(), time.Now()
	}
	return s.last
}

// sparing is a listener that closes connections above a number: the process has other work, which
// needs descriptors.
type sparing struct {
	listen.Sparing
	free chan struct{} // has an element for each open connection
}

func (l *sparing) Accept() (net.Conn, error) {
	for {
		c, err := l.Sparing.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &counted{Conn: c, leave: sync.OnceFunc(func() { <-l.free })}, nil
		default:
			_ = c.Close() // the peer tries again
		}
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	c.leave()
	return c.Conn.Close()
}
