package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// guard is how long a test waits for what must happen.
const guard = 60 * time.Second

// world is a proxy with what it reaches: names, and servers behind addresses of
// no real network.
type world struct {
	t       testing.TB
	p       *Proxy
	proxy   string // address of the listener
	mu      sync.Mutex
	policy  *policy.Policy
	events  []wire.Event
	more    chan struct{} // there are more events than when it was last read
	broken  error         // of recording
	quiet   bool          // nothing is kept of what is recorded or dialled
	names   map[string][]netip.Addr
	lookups []string
	servers map[string]string // judged address to real one
	dialled []string
	roots   *x509.CertPool
	ca      *authority // of the servers
}

func load(t testing.TB, text string) *policy.Policy {
	t.Helper()
	p, problems := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte("version: 1\nname: p\n" + text)}, syntax.Options{})
	if p == nil {
		t.Fatal(problems)
	}
	return p
}

func newWorld(t testing.TB, text string, change func(*Options)) *world {
	t.Helper()
	w := &world{
		t:       t,
		policy:  load(t, text),
		names:   map[string][]netip.Addr{},
		servers: map[string]string{},
		roots:   x509.NewCertPool(),
		ca:      &authority{},
		more:    make(chan struct{}, 1),
	}
	if err := w.ca.make(); err != nil {
		t.Fatal(err)
	}
	w.roots.AddCert(w.ca.cert)
	opts := Options{
		Policy: func() *policy.Policy { w.mu.Lock(); defer w.mu.Unlock(); return w.policy },
		Emit:   w.emit, Roots: w.roots, Dial: w.dial,
	}
	if change != nil {
		change(&opts)
	}
	p, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	p.judge.names.ask = w.ask
	w.p = p
	l := w.listen()
	w.proxy = l.Addr().String()
	served := make(chan error, 1)
	go func() { served <- p.ServeProxy(l) }()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		if left := p.Connections(); len(left) > 0 {
			t.Errorf("left open: %+v", left)
		}
	})
	return w
}

func (w *world) listen() net.Listener {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = l.Close() })
	return l
}

func (w *world) emit(e wire.Event) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.quiet {
		return w.broken
	}
	w.events = append(w.events, e)
	select {
	case w.more <- struct{}{}:
	default:
	}
	return w.broken
}

func (w *world) ask(_ context.Context, name string) ([]netip.Addr, time.Duration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lookups = append(w.lookups, name)
	return w.names[name], time.Minute, nil
}

func (w *world) dial(ctx context.Context, network, address string) (net.Conn, error) {
	w.mu.Lock()
	if !w.quiet {
		w.dialled = append(w.dialled, address)
	}
	real, ok := w.servers[address]
	w.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("connect %s: refused", address)
	}
	return (&net.Dialer{}).DialContext(ctx, network, real)
}

// place puts a server behind names, an address and a port.
func (w *world) place(real, address string, port int, names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := netip.MustParseAddr(address)
	for _, n := range names {
		if !slices.Contains(w.names[n], a) {
			w.names[n] = append(w.names[n], a)
		}
	}
	w.servers[netip.AddrPortFrom(a, uint16(port)).String()] = real
}

// web starts an HTTP server; with TLS it has certificates for every name.
func (w *world) web(secure bool, h http.HandlerFunc) string {
	s := httptest.NewUnstartedServer(h)
	if secure {
		s.EnableHTTP2 = true
		s.TLS = &tls.Config{
			GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return w.ca.certificate(hello.ServerName) },
		}
		s.StartTLS()
	} else {
		s.Start()
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	w.t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// client is an HTTP client that goes through the proxy and trusts the session's
// authority as well as the servers' own.
func (w *world) client(second bool) *http.Client {
	pool := w.roots.Clone()
	pool.AppendCertsFromPEM(w.p.CA())
	tr := &http.Transport{
		Proxy:           http.ProxyURL(&url.URL{Scheme: "http", Host: w.proxy}),
		TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: second,
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: guard}
}

func (w *world) get(c *http.Client, u string) (int, string) {
	w.t.Helper()
	res, err := c.Get(u)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, err.Error()
	}
	return res.StatusCode, string(b)
}

// raw opens a connection to the proxy.
func (w *world) raw() net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.proxy)
	if err != nil {
		w.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(guard))
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// connect asks for a tunnel and returns the status and body of the answer.
func (w *world) connect(to string) (net.Conn, *bufio.Reader, int, string) {
	w.t.Helper()
	c := w.raw()
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", to, to)
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return c, in, 0, err.Error()
	}
	body := ""
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(in)
		body = string(b)
	}
	return c, in, res.StatusCode, body
}

// finished waits until every connection is recorded and returns the events.
func (w *world) finished() []wire.Event {
	w.t.Helper()
	for late := time.After(guard); len(w.p.Connections()) > 0 || w.unended() > 0; {
		select {
		case <-w.more:
		case <-late:
			w.t.Fatalf("still open: %+v", w.p.Connections())
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

// unended is how many connections have a recorded begin and no end yet: they
// are forgotten before their end is recorded.
func (w *world) unended() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, e := range w.events {
		switch e.Phase {
		case "begin":
			n++
		case "end":
			n--
		}
	}
	return n
}

// denials are the events that refuse, in short.
func (w *world) denials() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, e := range w.events {
		if e.Decision == "deny" {
			out = append(out, fmt.Sprintf("%s by %s: %s", e.Target, e.Rule.Name, e.Message))
		}
	}
	return out
}

func (w *world) wantDenial(part string) {
	w.t.Helper()
	for _, d := range w.denials() {
		if strings.Contains(d, part) {
			return
		}
	}
	w.t.Errorf("no denial with %q among %q", part, w.denials())
}

func hello(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s %s", name, r.Proto, r.Host, r.URL.RequestURI())
	}
}

// finishedAfter ends a client's idle connections first.
func (w *world) finishedAfter(c *http.Client) []wire.Event {
	w.t.Helper()
	c.CloseIdleConnections()
	return w.finished()
}

// sink is a server that takes one connection and gives all it read.
func sink(t testing.TB) (string, <-chan string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	got := make(chan string, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			got <- err.Error()
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		got <- string(b)
	}()
	return l.Addr().String(), got
}
