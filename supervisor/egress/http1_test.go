package egress

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"agentsh/policy"
)

// scripted is a server whose connections do what a function says; it gets the
// number of the connection. They end with it.
func scripted(t testing.TB, serve func(n int, c net.Conn, in *bufio.Reader)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(guard))
			wg.Go(func() {
				defer c.Close()
				serve(n, c, bufio.NewReader(c))
			})
		}
	})
	return l.Addr().String()
}

// http1To is an http1 to a server without a proxy around it.
func http1To(t testing.TB, to string) *http1 {
	return http1By(t, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, to)
	})
}

// http1By is an http1 whose connections a function makes.
func http1By(t testing.TB, dial func(ctx context.Context, network, address string) (net.Conn, error)) *http1 {
	c := &client{ctx: t.Context(), p: &Proxy{opts: Options{Dial: dial, Limits: Limits{DialTimeout: guard}}}}
	r := newRoute(destination{policy.HostOf(netip.MustParseAddr("192.0.2.1")), 80})
	r.addrs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	f := newFlow(c, r)
	h := &http1{f: f}
	t.Cleanup(func() { h.CloseIdleConnections(); f.up.close() })
	return h
}

// one sends a request and reads the answer.
func (t *http1) one(r *http.Request) (string, error) {
	res, err := t.RoundTrip(r)
	if err != nil {
		return "", err
	}
	b, err := io.ReadAll(res.Body)
	return fmt.Sprint(res.StatusCode, " ", string(b), res.Trailer), errors.Join(err, res.Body.Close())
}

func requestOf(t testing.TB, method, body string) *http.Request {
	var in io.Reader
	if body != "" {
		in = io.MultiReader(strings.NewReader(body)) // its length is not known
	}
	r, err := http.NewRequestWithContext(t.Context(), method, "http://a.test/", in)
	if err != nil {
		t.Fatal(err)
	}
	makeRepeatable(r)
	return r
}

// answerOnce reads a request and answers it.
func answerOnce(c net.Conn, in *bufio.Reader, text string) bool {
	r, err := http.ReadRequest(in)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, r.Body)
	fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(text), text)
	return true
}

// A request that a server may have got is sent once only, unless its method says
// that this changes nothing.
func TestARequestOnADyingConnectionIsRepeatedOnlyIfThatIsSafe(t *testing.T) {
	for _, test := range []struct {
		method, body, key string
		again             bool
	}{
		{"GET", "", "", true},
		{"HEAD", "", "", true},
		{"POST", "", "", false},
		{"POST", "body", "", false},
		{"POST", "body", "key", true},
		{"DELETE", "", "", false},
	} {
		got := make(chan int, 4)
		h := http1To(t, scripted(t, func(n int, c net.Conn, in *bufio.Reader) {
			if answerOnce(c, in, "") && n == 0 {
				if r, err := http.ReadRequest(in); err == nil { // gets the second request whole, and dies
					_, _ = io.Copy(io.Discard, r.Body)
					got <- n
				}
				return
			}
			got <- n
		}))
		if _, err := h.one(requestOf(t, "GET", "")); err != nil {
			t.Fatal(err)
		}
		r := requestOf(t, test.method, test.body)
		if test.key != "" {
			r.Header.Set("Idempotency-Key", test.key)
		}
		_, err := h.one(r)
		if <-got != 0 {
			t.Fatalf("%+v: the connection was not used again", test)
		}
		if (err == nil) != test.again || len(got) > 0 && !test.again {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

// What comes on an idle connection is no answer to the next request, and an idle
// connection that ended costs no request, not even a POST.
func TestAnIdleConnectionIsUsedOnlyIfItIsQuiet(t *testing.T) {
	for _, after := range []string{"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged", ""} {
		done := make(chan struct{})
		h := http1To(t, scripted(t, func(n int, c net.Conn, in *bufio.Reader) {
			if answerOnce(c, in, fmt.Sprint("real ", n)) && n == 0 {
				_, _ = io.WriteString(c, after)
				if after == "" {
					_ = endWrite(c)
				}
				close(done)
				_, _ = io.Copy(io.Discard, in)
			}
		}))
		for i := range 2 {
			if got, err := h.one(requestOf(t, "POST", "body")); err != nil || got != fmt.Sprintf("200 real %dmap[]", i) {
				t.Errorf("%q %v", got, err)
			}
			<-done
		}
	}
}

// A connection is used again after an answer of each kind that leaves it whole.
func TestAConnectionIsUsedAgain(t *testing.T) {
	answers := []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n2\r\nab\r\n0\r\nX-A: 1\r\n\r\n",
		"HTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 304 Not Modified\r\n\r\n",
		"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n",
	}
	h := http1To(t, scripted(t, func(n int, c net.Conn, in *bufio.Reader) {
		for _, a := range answers {
			if _, err := http.ReadRequest(in); err != nil || n > 0 {
				return
			}
			_, _ = io.WriteString(c, a)
		}
		_, _ = in.Peek(1)
	}))
	want := []string{"200 abmap[]", "200 abmap[X-A:[1]]", "204 map[]", "304 map[]", "200 map[]"}
	for i := range answers {
		res, err := h.RoundTrip(requestOf(t, "GET", ""))
		if err != nil {
			t.Fatalf("%q: %v", answers[i], err)
		}
		b, err := io.ReadAll(res.Body)
		if got := fmt.Sprint(res.StatusCode, " ", string(b), res.Trailer); err != nil || got != want[i] {
			t.Errorf("%q: %q %v", answers[i], got, err)
		}
	}
}

// A server may answer before it has the whole request, and close.
func TestAnAnswerBeforeTheRequestIsSentArrives(t *testing.T) {
	const part = 64 << 10
	for _, first := range []int64{0, part} { // what the server reads first; after all of it nothing is being sent
		h := http1To(t, scripted(t, func(_ int, c net.Conn, in *bufio.Reader) {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			if _, err := io.CopyN(io.Discard, r.Body, first); err != nil {
				t.Error(err)
			}
			_, _ = io.WriteString(c, "HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\ntoo")
			_, _ = in.Peek(4 << 10)
		}))
		r := requestOf(t, "POST", "x")
		r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(make([]byte, part)), blocked{t.Context()}))
		if got, err := h.one(r); err != nil || got != "413 toomap[]" {
			t.Errorf("%d bytes first: %q %v", first, got, err)
		}
	}
}

// A server that stopped reading may have answered before. Its answer is read, even if
// sending failed first.
func TestAnAnswerArrivesThoughSendingFailed(t *testing.T) {
	for answer, want := range map[string]string{
		"HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\n\r\ntoo": "413 toomap[] <nil>",
		"": " the server ended the connection before it answered: EOF",
	} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			h := http1By(t, func(context.Context, string, string) (net.Conn, error) { return fullConn{here}, nil })
			done := make(chan string)
			go func() {
				got, err := h.one(requestOf(t, "POST", "body"))
				done <- fmt.Sprint(got, " ", err)
			}()
			synctest.Wait() // sending has failed
			if _, err := io.WriteString(there, answer); err != nil {
				t.Error(err)
			}
			_ = there.Close()
			if got := <-done; got != want {
				t.Errorf("%q, want %q", got, want)
			}
		})
	}
}

// fullConn is a connection to a server that stopped reading.
type fullConn struct{ net.Conn }

func (fullConn) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// blocked is a body of which nothing more comes.
type blocked struct{ ctx context.Context }

func (b blocked) Read([]byte) (int, error) { <-b.ctx.Done(); return 0, io.EOF }

// A request that breaks off is not ended as if it were whole.
func TestABodyThatBreaksOffBreaksTheConnection(t *testing.T) {
	const part = 64 << 10 // more than is buffered
	got := make(chan error, 1)
	h := http1To(t, scripted(t, func(_ int, _ net.Conn, in *bufio.Reader) {
		r, err := http.ReadRequest(in)
		if err == nil {
			_, err = io.Copy(io.Discard, r.Body)
		}
		got <- err
	}))
	broken := errors.New("the client is gone")
	r := requestOf(t, "POST", "x")
	r.Body = io.NopCloser(io.MultiReader(bytes.NewReader(make([]byte, part)), failing{broken}))
	if _, err := h.one(r); err == nil || err.Error() != broken.Error() {
		t.Errorf("the error is %v", err)
	}
	if err := <-got; !errors.Is(err, io.ErrUnexpectedEOF) { // at once: not by the deadline of the server
		t.Errorf("the server of a part of the body: %v", err)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// The header of an answer has a limit, also one of many informational answers.
func TestALongHeaderOfAnAnswerIsRefused(t *testing.T) {
	long := strings.Repeat("a", 1000)
	for _, line := range []string{"X-A: " + long + "\r\n", "\r\nHTTP/1.1 103 Early Hints\r\n", long} {
		h := http1To(t, scripted(t, func(_ int, c net.Conn, _ *bufio.Reader) {
			_, err := io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n")
			for err == nil {
				_, err = io.WriteString(c, line)
			}
		}))
		if _, err := h.one(requestOf(t, "GET", "")); !errors.Is(err, errHeaderLong) {
			t.Errorf("%.30q: %v", line, err)
		}
	}
}

// Whatever a server sends, the answer is the one that net/http reads.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n2\r\nab\r\n0\r\nX-A: 1\r\n\r\nrest",
		"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
		"HTTP/1.0 200 OK\r\n\r\nup to the end", "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 101 Switching Protocols\r\n\r\nraw", "\r\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	var mu sync.Mutex
	var text []byte
	to := scripted(f, func(_ int, c net.Conn, in *bufio.Reader) {
		if r, err := http.ReadRequest(in); err != nil || r.Header.Get("X-Fuzz") == "" {
			return
		}
		mu.Lock()
		b := text
		mu.Unlock()
		_, _ = c.Write(b)
		_ = endWrite(c)
		_, _ = io.Copy(io.Discard, in)
	})
	plain := &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, to)
		},
		DisableCompression: true, DisableKeepAlives: true, MaxResponseHeaderBytes: answerHeaderMost, ReadBufferSize: 1 << 10,
	}
	f.Fuzz(func(t *testing.T, answer []byte, head bool) {
		mu.Lock()
		text = answer
		mu.Unlock()
		method := map[bool]string{true: "HEAD", false: "GET"}[head]
		ask := func(via http.RoundTripper) string {
			r := requestOf(t, method, "")
			r.Header.Set("X-Fuzz", "1")
			res, err := via.RoundTrip(r)
			if err != nil {
				return "refused"
			}
			defer res.Body.Close()
			if res.StatusCode == http.StatusSwitchingProtocols && via == http.RoundTripper(plain) {
				return "refused" // by httputil.ReverseProxy: nobody asked
			}
			b, err := io.ReadAll(res.Body)
			return fmt.Sprint(res.StatusCode, res.Header, res.ContentLength, string(b), err != nil, res.Trailer)
		}
		h := http1To(t, to)
		ours, theirs := ask(h), ask(plain)
		if ours != theirs && bytes.Count(answer, []byte("HTTP/1.")) < 6 { // net/http counts informational answers
			t.Errorf("%q, net/http %q", ours, theirs)
		}
	})
}

// getsOfA permits requests to a.test.
const getsOfA = `network_rules: [{name: a, domains: [a.test], methods: [GET], decision: allow}]`

// A server that switches to a protocol unasked gets no tunnel: what follows would
// not be inspected.
func TestAServerSwitchesProtocolsOnlyIfAsked(t *testing.T) {
	for _, test := range []struct{ asked, answer string }{
		{"", ""},
		{"", "Upgrade: \r\n"},
		{"", "Upgrade: websocket\r\nConnection: Upgrade\r\n"},
		{"Upgrade: websocket\r\nConnection: Upgrade\r\n", "Upgrade: h2c\r\nConnection: Upgrade\r\n"},
		{"Upgrade: websocket\r\nConnection: Upgrade\r\n", ""},
		{"Upgrade: websocket\r\n", "Upgrade: websocket\r\nConnection: Upgrade\r\n"},
		{"Upgrade: h2c\r\nConnection: Upgrade\r\n", ""},
	} {
		got := make(chan string, 1)
		real := scripted(t, func(_ int, c net.Conn, in *bufio.Reader) {
			if _, err := http.ReadRequest(in); err != nil {
				return
			}
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\n"+test.answer+"\r\n")
			line, _ := in.ReadString('\n')
			got <- line
		})
		w := newWorld(t, getsOfA, nil)
		w.place(real, "192.0.2.1", 80, "a.test")
		c := w.raw()
		fmt.Fprintf(c, "GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\n%s\r\n", test.asked)
		in := bufio.NewReader(c)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(c, "POST /secret\n")
		_ = endWrite(c)
		if line := <-got; res.StatusCode == http.StatusSwitchingProtocols || line != "" {
			t.Errorf("%+v: %s, and the server got %q", test, res.Status, line)
		}
	}
}

// No answer has a status below 100. The client is told.
func TestAnAnswerWithoutAStatusIsAFailure(t *testing.T) {
	for _, status := range []string{"000", "099"} {
		w := newWorld(t, getsOfA, nil)
		w.place(scripted(t, func(_ int, c net.Conn, in *bufio.Reader) {
			if _, err := http.ReadRequest(in); err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 "+status+" x\r\nContent-Length: 0\r\n\r\n")
			}
		}), "192.0.2.1", 80, "a.test")
		if code, text := w.get(w.client(false), "http://a.test/"); code != http.StatusBadGateway || !strings.Contains(text, "status") {
			t.Errorf("%s: %d %s", status, code, text)
		}
	}
}
