package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// The proxy of the memory measurements is a process of its own, so that clients
// and servers do not count.
const childVariable = "EGRESS_TEST_CHILD"

func TestMain(m *testing.M) {
	if target := os.Getenv(childVariable); target != "" {
		child(target)
		return
	}
	os.Exit(m.Run())
}

// child runs a proxy until its standard input ends. Every name leads to target.
func child(target string) {
	looked := load(&childTB{}, `
network_rules:
  - {name: looked, domains: [looked.test], methods: [GET], decision: allow}
  - {name: all, domains: ["*"], decision: allow}
`)
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(os.Getenv(childVariable + "_ROOTS"))
	if err != nil {
		panic(err)
	}
	roots.AppendCertsFromPEM(pem)
	few := os.Getenv(childVariable+"_FEW") != ""
	if few {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1024, Max: 1024}); err != nil {
			panic(err)
		}
	}
	p, err := New(Options{
		Policy: func() *policy.Policy { return looked }, Emit: denials, Roots: roots,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, target)
		},
	})
	if err != nil {
		panic(err)
	}
	p.judge.names.ask = func(context.Context, string) ([]netip.Addr, time.Duration, error) {
		return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, time.Minute, nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	if few { // as if the rest of the process needed nearly all of them
		for range 1024 - 80 {
			f, err := os.Open(os.DevNull)
			if err != nil {
				panic(err)
			}
			defer f.Close()
		}
	}
	go func() { _ = p.ServeProxy(l) }()
	fmt.Fprintln(os.Stdout, l.Addr())
	fmt.Fprintln(os.Stdout, strings.ReplaceAll(string(p.CA()), "\n", "|"))
	_, _ = io.Copy(io.Discard, os.Stdin)
	_ = p.Close()
}

// denials prints the rules of what is denied.
func denials(e wire.Event) error {
	if e.Decision == "deny" {
		fmt.Fprintln(os.Stdout, "denied by", e.Rule.Name)
	}
	return nil
}

type childTB struct{ testing.TB }

func (*childTB) Helper()           {}
func (*childTB) Fatal(args ...any) { panic(fmt.Sprint(args...)) }

// held is a proxy process with an HTTPS server behind it.
type remote struct {
	proxy string
	roots *x509.CertPool
	pid   int
	out   *bufio.Reader // what it prints
}

func startRemote(t testing.TB, h http.Handler, more ...string) *remote {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	ca := &authority{}
	if err := ca.make(); err != nil {
		t.Fatal(err)
	}
	s.TLS = &tls.Config{GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return ca.certificate(hello.ServerName) }}
	s.StartTLS()
	t.Cleanup(s.Close)
	roots := t.TempDir() + "/roots.pem"
	if err := os.WriteFile(roots, ca.pem, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+s.Listener.Addr().String(), childVariable+"_ROOTS="+roots)
	cmd.Env = append(cmd.Env, more...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.CloseClientConnections()
		_ = stdin.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	})
	in := bufio.NewReader(out)
	r := &remote{roots: x509.NewCertPool(), pid: cmd.Process.Pid, out: in}
	addr, err := in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	own, err := in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	r.proxy = strings.TrimSpace(addr)
	r.roots.AppendCertsFromPEM([]byte(strings.ReplaceAll(own, "|", "\n")))
	r.roots.AppendCertsFromPEM(ca.pem)
	return r
}

// resident is the memory of the proxy's process, in bytes.
func (r *remote) resident(t testing.TB) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(data, []byte("VmRSS:"))
	var kib int64
	if _, err := fmt.Sscan(string(rest), &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// stream opens a tunnel, asks for an answer by TLS and reads its first piece. The
// answer to / is endless, that to /whole leaves an idle connection.
func (r *remote) stream(host, path string) (net.Conn, error) {
	c, err := net.Dial("tcp", r.proxy)
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(guard))
	fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\nHost: %s:443\r\n\r\n", host, host)
	res, err := http.ReadResponse(bufio.NewReaderSize(c, 64), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return c, err
	}
	if res.StatusCode != 200 {
		return c, fmt.Errorf("status %d", res.StatusCode)
	}
	s := tls.Client(c, &tls.Config{RootCAs: r.roots, ServerName: host})
	if _, err := fmt.Fprintf(s, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, host); err != nil {
		return c, err
	}
	var all []byte
	for buf := make([]byte, 512); !bytes.Contains(all, []byte("first")); {
		n, err := s.Read(buf)
		if err != nil {
			return c, err
		}
		all = append(all, buf[:n]...)
	}
	return s, nil
}

// endless answers with one piece and then waits for its client to go.
func endless(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/whole" {
		fmt.Fprint(w, "first and last")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprint(w, "data: first\n\n")
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// holds opens n streams through the proxy and returns what its memory grew by.
func holds(t testing.TB, host, path string, n int) int64 {
	r := startRemote(t, http.HandlerFunc(endless))
	first, err := r.stream(host, path)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	before := r.resident(t)
	conns := make([]net.Conn, n)
	errs := make([]error, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 50)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			conns[i], errs[i] = r.stream(host, path)
		})
	}
	wg.Wait()
	grown := r.resident(t) - before
	for i, err := range errs {
		if err != nil {
			t.Fatalf("%s %d: %v", host, i, err)
		}
	}
	for _, c := range conns {
		_ = c.Close()
	}
	return grown
}

// A proxy whose process has no descriptors left refuses connections one by one,
// says so, and serves again when there are some.
func TestWithoutDescriptorsOneRequestIsRefused(t *testing.T) {
	r := startRemote(t, http.HandlerFunc(endless), childVariable+"_FEW=1")
	connect := func() (net.Conn, bool) {
		c, err := net.Dial("tcp", r.proxy)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(guard))
		fmt.Fprint(c, "CONNECT tunnel.test:443 HTTP/1.1\r\nHost: tunnel.test:443\r\n\r\n")
		res, err := http.ReadResponse(bufio.NewReaderSize(c, 64), &http.Request{Method: http.MethodConnect})
		return c, err == nil && res.StatusCode == 200
	}
	var open []net.Conn
	for range 200 { // says nothing, and so needs one descriptor only
		c, err := net.Dial("tcp", r.proxy)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	for line := ""; line != "denied by descriptors\n"; {
		var err error
		if line, err = r.out.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range open {
		_ = c.Close()
	}
	for ok := false; !ok; { // it learns of their ends by and by
		var c net.Conn
		c, ok = connect()
		_ = c.Close()
	}
}

func TestConnectionsAreBoundedByDescriptors(t *testing.T) {
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) })
	for _, test := range []struct{ have, want int }{{1024, 384}, {400, 100}, {8448, 4096}, {8446, 4095}} {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(test.have), Max: old.Max}); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		o := Options{Log: slog.New(slog.NewTextHandler(&said, nil))}
		o.setDefaults()
		if got := o.fit(); got != test.want || (said.Len() > 0) != (test.want < 4096) {
			t.Errorf("%d descriptors: %d connections, want %d: %s", test.have, got, test.want, &said)
		}
	}
}

// BenchmarkMemory reports what a proxy's process grows by with 1,000 open
// connections: tunnels, inspected ones with an open stream of events each, and
// inspected ones that are idle after an answer.
func BenchmarkMemory(b *testing.B) {
	for _, kind := range []struct{ name, host, path string }{
		{"tunnel", "tunnel.test", "/"}, {"looked", "looked.test", "/"}, {"idle", "looked.test", "/whole"},
	} {
		b.Run(kind.name, func(b *testing.B) {
			for b.Loop() {
				b.ReportMetric(float64(holds(b, kind.host, kind.path, 1000))/(1<<20), "MiB")
			}
		})
	}
}
