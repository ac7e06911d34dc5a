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
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// payload is what a stream carries: its bytes follow from its number.
func payload(number uint64) []byte {
	random := rand.New(rand.NewPCG(number, 1))
	b := make([]byte, 200+random.IntN(map[bool]int{true: 120 << 10, false: 4 << 10}[number%4 == 0]))
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// pieces gives a payload out in pieces, of which each is sent by itself.
func pieces(number uint64, send func([]byte) error) error {
	random := rand.New(rand.NewPCG(number, 2))
	for b := payload(number); len(b) > 0; {
		n := min(len(b), 1+random.IntN(8<<10))
		if err := send(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// streamer answers each kind of stream.
func streamer(w http.ResponseWriter, r *http.Request) {
	number, _ := strconv.ParseUint(r.URL.Query().Get("n"), 10, 64)
	control := http.NewResponseController(w)
	if r.URL.Path == "/chunked" || r.URL.Path == "/echo" { // what does not read all ends the connection without a word
		_ = control.EnableFullDuplex()
	}
	send := func(b []byte) error {
		if _, err := w.Write(b); err != nil {
			return err
		}
		return control.Flush()
	}
	switch r.URL.Path {
	case "/length":
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Got", strconv.Itoa(len(body)))
		w.Header().Set("Content-Length", strconv.Itoa(len(payload(number))))
		_, _ = w.Write(payload(number))
	case "/chunked": // begins to answer before it has read the request, all of which it needs to go on
		_ = send(nil)
		if got, _ := io.ReadAll(r.Body); !bytes.Equal(got, payload(number+1)) {
			panic(http.ErrAbortHandler)
		}
		_ = pieces(number, send)
	case "/events":
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.Copy(io.Discard, r.Body)
		_ = pieces(number, func(b []byte) error {
			if number%3 == 0 {
				<-time.After(time.Duration(len(b)%3) * time.Millisecond) // what a model needs to think
			}
			return send(b)
		})
	case "/unread": // never reads the request
		_, _ = w.Write(payload(number))
	case "/echo": // answers with the request while that is still coming
		w.Header().Set("Trailer", "X-Late")
		buf := make([]byte, 4<<10)
		for {
			n, err := r.Body.Read(buf)
			if n > 0 && send(buf[:n]) != nil {
				return
			}
			if err != nil {
				break
			}
		}
		w.Header().Set("X-Late", r.Trailer.Get("X-Sent"))
	case "/close", "/reset", "/ws":
		hijacked(w, r, number)
	}
}

// hijacked answers without net/http: up to the end of the connection, up to its
// reset in the middle, or as a WebSocket that repeats what it gets.
func hijacked(w http.ResponseWriter, r *http.Request, number uint64) {
	if r.ProtoMajor == 2 { // has no connection of its own: ends the stream
		if r.URL.Path == "/close" {
			_, _ = w.Write(payload(number))
			return
		}
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	_, _ = io.Copy(io.Discard, r.Body) // what is unread would have the kernel reset the connection
	c, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	switch r.URL.Path {
	case "/close":
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
		_ = pieces(number, func(b []byte) error { _, err := c.Write(b); return err })
	case "/reset":
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(payload(number)))
		_, _ = c.Write(payload(number)[:100])
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0)
		}
	case "/ws":
		fmt.Fprint(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n")
		_, _ = io.Copy(c, in)
		fmt.Fprint(c, "the end")
	}
}

// serve1 starts a TLS server that speaks HTTP/1 only.
func (w *world) serve1(h http.HandlerFunc) string {
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) { return w.ca.certificate(hello.ServerName) },
	}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	w.t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// streams opens streams of all kinds.
type streams struct {
	w       *world
	clients [3]*http.Client // HTTP/1, HTTP/2, a connection for each request
	roots   *tls.Config
}

var streamHosts = []string{
	"https://one.test",
	"https://two.test",
	"https://one.endpoint.test",
	"https://two.endpoint.test",
	"http://plain.test",
	"https://tunnel.test",
}

var streamKinds = []struct {
	name string
	run  func(s *streams, number uint64) error
}{
	{"length", func(s *streams, n uint64) error { return s.exchange(n, "/length", bytes.NewReader(payload(n+1)), "") }},
	{"length, large request", func(s *streams, n uint64) error {
		return s.exchange(n, "/length", bytes.NewReader(bytes.Repeat([]byte("x"), 300<<10)), "")
	}},
	{"chunked", func(s *streams, n uint64) error {
		return s.exchange(n, "/chunked", bytes.NewReader(payload(n+1)), "")
	}},
	{"chunked, both", func(s *streams, n uint64) error {
		return s.exchange(n, "/chunked", io.MultiReader(bytes.NewReader(payload(n+1))), "")
	}},
	{"events", func(s *streams, n uint64) error {
		return s.exchange(n, "/events", strings.NewReader(`{"stream": true}`), "")
	}},
	{"events of GET", func(s *streams, n uint64) error { return s.exchange(n, "/events", nil, "") }},
	{"continue", func(s *streams, n uint64) error {
		return s.exchange(n, "/length", bytes.NewReader(payload(n+1)), "100-continue")
	}},
	{"unread", (*streams).unread},
	{"close", func(s *streams, n uint64) error { return s.exchange(n, "/close", strings.NewReader("{}"), "") }},
	{"late", (*streams).late},
	{"trailers", (*streams).trailers},
	{"reset", (*streams).reset},
	{"gone", (*streams).gone},
	{"websocket", (*streams).websocket},
}

func (s *streams) client(n uint64) *http.Client { return s.clients[n/uint64(len(streamHosts))%3] }

func (s *streams) request(n uint64, path string, body io.Reader) *http.Request {
	method := http.MethodPost
	if body == nil {
		method = http.MethodGet
	}
	r, err := http.NewRequest(method, fmt.Sprintf("%s%s?n=%d", streamHosts[n%uint64(len(streamHosts))], path, n), body)
	if err != nil {
		panic(err)
	}
	if n%2 == 0 && strings.Contains(r.URL.Host, "endpoint") {
		r.Header.Set("Authorization", "Bearer "+mark)
	}
	return r
}

// exchange sends a request and compares the answer, which it reads slowly now and
// then.
func (s *streams) exchange(n uint64, path string, body io.Reader, expect string) error {
	r := s.request(n, path, body)
	if expect != "" {
		r.Header.Set("Expect", expect)
	}
	res, err := s.client(n).Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return sameBytes(n, res)
}

func sameBytes(n uint64, res *http.Response) error {
	var in io.Reader = res.Body
	if n%7 == 0 {
		in = slowly{in}
	}
	got, err := io.ReadAll(in)
	want := payload(n)
	if err != nil || res.StatusCode != http.StatusOK || !bytes.Equal(got, want) {
		return fmt.Errorf("%s: %d bytes of %d, %w: %.80q", res.Status, len(got), len(want), err, got)
	}
	return nil
}

// slowly reads little at once, and lets others go first.
type slowly struct{ in io.Reader }

func (s slowly) Read(b []byte) (int, error) {
	runtime.Gosched()
	return s.in.Read(b[:min(len(b), 700)])
}

// unread has its server answer without reading the request. A server that then
// resets a connection loses its answer where nobody stands between.
func (s *streams) unread(n uint64) error {
	path := "/unread"
	if strings.Contains(streamHosts[n%uint64(len(streamHosts))], "tunnel") {
		path = "/length"
	}
	return s.exchange(n, path, bytes.NewReader(payload(n+1)), "")
}

// late sends the second half of its request when the answer has begun.
func (s *streams) late(n uint64) error {
	in, out := io.Pipe()
	body := payload(n + 1)
	begun := make(chan struct{})
	go func() {
		_, err := out.Write(body[:len(body)/2])
		<-begun
		if err == nil {
			_, err = out.Write(body[len(body)/2:])
		}
		_ = out.CloseWithError(err)
	}()
	res, err := s.client(n).Do(s.request(n, "/chunked", in))
	close(begun)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return sameBytes(n, res)
}

// trailers has its request come back while it is being sent, trailers as well.
func (s *streams) trailers(n uint64) error {
	in, out := io.Pipe()
	r := s.request(n, "/echo", in)
	r.Trailer = http.Header{"X-Sent": nil}
	go func() {
		err := pieces(n, func(b []byte) error { _, err := out.Write(b); return err })
		r.Trailer.Set("X-Sent", fmt.Sprint("late ", n))
		_ = out.CloseWithError(err)
	}()
	res, err := s.client(n).Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if err := sameBytes(n, res); err != nil {
		return err
	}
	if got := res.Trailer.Get("X-Late"); got != fmt.Sprint("late ", n) {
		return fmt.Errorf("the trailer is %q", got)
	}
	return nil
}

// reset is a server that goes away in the middle: the client must see that.
func (s *streams) reset(n uint64) error {
	res, err := s.client(n).Do(s.request(n, "/reset", strings.NewReader("{}")))
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	got, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode == http.StatusOK {
		return fmt.Errorf("%d bytes came as a whole answer", len(got))
	}
	return nil
}

// gone is a client that goes away in the middle.
func (s *streams) gone(n uint64) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	res, err := s.client(n).Do(s.request(n, "/events", strings.NewReader("{}")).WithContext(ctx))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.ReadFull(res.Body, make([]byte, 100))
	return err
}

// websocket sends and receives at once, then ends its half.
func (s *streams) websocket(n uint64) error {
	target, _ := url.Parse(streamHosts[n%uint64(len(streamHosts))])
	if strings.HasPrefix(target.Host, "two") || strings.HasPrefix(target.Host, "tunnel") { // servers of HTTP/2 only
		target, _ = url.Parse("https://one.test")
	}
	to := target.Host + ":443"
	if target.Scheme == "http" {
		to = target.Host + ":80"
	}
	c, in, err := s.w.tunnel(to)
	if err != nil {
		return err
	}
	defer c.Close()
	if target.Scheme == "https" {
		config := s.roots.Clone()
		config.ServerName = target.Host
		c = tls.Client(c, config)
		in = bufio.NewReader(c)
	}
	fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", target.Host)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("%v, %w", res, err)
	}
	sent := make(chan error, 1)
	go func() {
		err := pieces(n, func(b []byte) error { _, err := c.Write(b); return err })
		sent <- errors.Join(err, endWrite(c))
	}()
	got, err := io.ReadAll(in)
	if want := append(payload(n), "the end"...); !bytes.Equal(got, want) {
		return fmt.Errorf("%d bytes of %d, %w", len(got), len(want), err)
	}
	return errors.Join(err, <-sent)
}

// Each request of one HTTP/2 connection reaches a server of HTTP/1 while the
// others are open.
func TestManyRequestsOfHTTP2ReachAServerOfHTTP1AtOnce(t *testing.T) {
	w := newWorld(t, lookedInto, nil)
	var together sync.WaitGroup
	together.Add(60)
	w.place(w.serve1(func(rw http.ResponseWriter, _ *http.Request) {
		together.Done()
		together.Wait()
		fmt.Fprint(rw, "all came")
	}), "192.0.2.1", 443, "looked.test")
	c := w.client(true)
	c.Transport.(*http.Transport).MaxConnsPerHost = 1
	var wg sync.WaitGroup
	for range 60 {
		wg.Go(func() {
			if code, body := w.get(c, "https://looked.test/"); code != 200 || body != "all came" {
				t.Errorf("%d %s", code, body)
			}
		})
	}
	wg.Wait()
}

// Streams of all kinds pass byte by byte, many at once, and leave nothing behind.
// STREAMS says how many; make streams has 100,000.
func TestStreamsOfAllKindsPassUnchanged(t *testing.T) {
	total, err := strconv.Atoi(os.Getenv("STREAMS"))
	if err != nil {
		total = 3000
	}
	w := newWorld(t, `
network_rules:
  - {name: inspected, domains: [one.test, two.test, "*.endpoint.test", plain.test], methods: [GET, POST], decision: allow}
  - {name: tunnel, domains: [tunnel.test], decision: allow}
`, credentials("Authorization", "", "one.endpoint.test", "two.endpoint.test"))
	w.quiet = true
	one, two, plain := w.serve1(streamer), w.web(true, streamer), w.web(false, streamer)
	w.place(one, "192.0.2.1", 443, "one.test", "one.endpoint.test")
	w.place(two, "192.0.2.2", 443, "two.test", "two.endpoint.test", "tunnel.test")
	w.place(plain, "192.0.2.3", 80, "plain.test")
	s := &streams{w: w, clients: [3]*http.Client{w.client(false), w.client(true), w.client(false)}}
	s.clients[2].Transport.(*http.Transport).DisableKeepAlives = true
	for _, c := range s.clients {
		c.Transport.(*http.Transport).ExpectContinueTimeout = guard
	}
	s.roots = s.clients[0].Transport.(*http.Transport).TLSClientConfig
	openFiles, goroutines := descriptors(t), runtime.NumGoroutine()
	s.run(t, total)
	for _, c := range s.clients {
		c.CloseIdleConnections()
	}
	late := time.Now().Add(guard)
	for descriptors(t) > openFiles+8 || runtime.NumGoroutine() > goroutines+8 { // servers keep idle connections for their clients' sake
		if time.Now().After(late) {
			t.Fatalf("%d descriptors, %d before; %d goroutines, %d before", descriptors(t), openFiles, runtime.NumGoroutine(), goroutines)
		}
		runtime.Gosched()
	}
}

// run opens streams, 48 at once, and reports those that did not come whole.
func (s *streams) run(t *testing.T, total int) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	failed := map[string]int{}
	numbers := make(chan uint64)
	for range 48 {
		wg.Go(func() {
			for n := range numbers {
				kind := streamKinds[n%uint64(len(streamKinds))]
				if err := kind.run(s, n); err != nil {
					mu.Lock()
					if failed[kind.name]++; failed[kind.name] <= 3 {
						t.Errorf("stream %d, %s to %s: %v", n, kind.name, streamHosts[n%uint64(len(streamHosts))], err)
					}
					mu.Unlock()
				}
			}
		})
	}
	for n := range total {
		numbers <- uint64(n)
	}
	close(numbers)
	wg.Wait()
	if len(failed) > 0 {
		t.Errorf("did not come whole, of %d streams: %v", total, failed)
	}
}
