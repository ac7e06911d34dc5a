package egress

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// noWrites permits reading, and reading below /public, of two hosts.
const noWrites = `
network_rules:
  - {name: no-admin, domains: [looked.test], paths: ["/admin/**"], decision: deny}
  - {name: no-writes, domains: [looked.test], methods: [POST, PUT, DELETE, PROPFIND], decision: deny}
  - {name: rest, domains: [looked.test], decision: allow}
  - {name: public, domains: [public.test], methods: [GET], paths: ["/public/**"], decision: allow}
`

// rawServer keeps each byte that arrives, and answers requests one by one.
type rawServer struct {
	mu  sync.Mutex
	got []string
}

func (s *rawServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.got = append(s.got, r.Method+" "+r.RequestURI+" "+r.Host+" "+string(body))
	s.mu.Unlock()
	fmt.Fprint(w, "served")
}

func (s *rawServer) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got
	s.got = nil
	return got
}

// What a client writes as one request is never served as another, nor as two.
func TestARequestThatServersReadDifferentlyIsRefusedOrRewritten(t *testing.T) {
	w := newWorld(t, noWrites, nil)
	server := &rawServer{}
	w.place(w.web(false, server.ServeHTTP), "192.0.2.1", 80, "looked.test", "public.test")
	const host = "Host: looked.test\r\n"
	for name, test := range map[string]struct {
		send  string
		code  int
		serve []string // in words of rawServer; nil: nothing
	}{
		"an ordinary one":           {"GET /x HTTP/1.1\r\n" + host + "\r\n", 200, []string{"GET /x looked.test "}},
		"a method in small letters": {"post /x HTTP/1.1\r\n" + host + "Content-Length: 1\r\n\r\na", 400, nil},
		"mixed case":                {"gEt /x HTTP/1.1\r\n" + host + "\r\n", 400, nil},
		"a method that is denied":   {"PROPFIND /x HTTP/1.1\r\n" + host + "\r\n", 403, nil},
		"another method":            {"MKCOL /x HTTP/1.1\r\n" + host + "\r\n", 200, []string{"MKCOL /x looked.test "}},
		"an override":               {"GET /x HTTP/1.1\r\n" + host + "X-HTTP-Method-Override: POST\r\n\r\n", 403, nil},
		"an override, small":        {"GET /x HTTP/1.1\r\n" + host + "x-http-method: delete\r\n\r\n", 403, nil},
		"an override, underscores":  {"GET /x HTTP/1.1\r\n" + host + "X_METHOD_OVERRIDE: put\r\n\r\n", 403, nil},
		"an override in the query":  {"GET /x?_method=delete HTTP/1.1\r\n" + host + "\r\n", 403, nil},
		"an encoded one":            {"GET /x?_%6dethod=delete HTTP/1.1\r\n" + host + "\r\n", 403, nil},
		"one that is permitted": {"GET /x HTTP/1.1\r\n" + host + "X-HTTP-Method-Override: MKCOL\r\n\r\n", 200,
			[]string{"GET /x looked.test "}},
		"one that is no method":    {"GET /x HTTP/1.1\r\n" + host + "X-HTTP-Method-Override: a b\r\n\r\n", 400, nil},
		"too many":                 {"GET /x HTTP/1.1\r\n" + host + strings.Repeat("X-HTTP-Method: GET\r\n", 9) + "\r\n", 400, nil},
		"another path":             {"GET /x HTTP/1.1\r\n" + host + "X-Original-URL: /admin\r\n\r\n", 403, nil},
		"another path, rewritten":  {"GET /x HTTP/1.1\r\n" + host + "X-Rewrite-Url: http://looked.test/ADMIN/x\r\n\r\n", 403, nil},
		"a denied path":            {"GET /x/..;/admin HTTP/1.1\r\n" + host + "\r\n", 403, nil},
		"a fragment":               {"GET /x#/admin HTTP/1.1\r\n" + host + "\r\n", 400, nil},
		"an opaque target":         {"GET http:admin HTTP/1.1\r\n" + host + "\r\n", 400, nil},
		"another protocol":         {"GET ftp://looked.test/x HTTP/1.1\r\n" + host + "\r\n", 400, nil},
		"a target without a slash": {"GET admin HTTP/1.1\r\n" + host + "\r\n", 400, nil},
		"the whole URL":            {"GET http://looked.test/x HTTP/1.1\r\nHost: evil.test\r\n\r\n", 200, []string{"GET /x looked.test "}},
		"the URL of another host":  {"GET http://evil.test/x HTTP/1.1\r\n" + host + "\r\n", 403, nil},
		"two hosts":                {"GET /x HTTP/1.1\r\n" + host + "Host: evil.test\r\n\r\n", 400, nil},
		"no host":                  {"GET /x HTTP/1.1\r\n\r\n", 400, nil},
		"nothing after the first": {"GET /x HTTP/1.1\r\n" + host + "Connection: close\r\n\r\nGET /y HTTP/1.1\r\n" + host + "\r\n", 200,
			[]string{"GET /x looked.test "}},
		"CONNECT":                  {"CONNECT looked.test:80 HTTP/1.1\r\n" + host + "\r\n", 403, nil},
		"both lengths":             {"GET /x HTTP/1.1\r\n" + host + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /admin HTTP/1.1\r\n" + host + "\r\n", 200, []string{"GET /x looked.test "}},
		"two lengths":              {"GET /x HTTP/1.1\r\n" + host + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n", 400, nil},
		"an odd encoding":          {"GET /x HTTP/1.1\r\n" + host + "Transfer-Encoding: xchunked\r\n\r\n", 501, nil},
		"two encodings":            {"GET /x HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501, nil},
		"a space before the colon": {"GET /x HTTP/1.1\r\n" + host + "Content-Length : 4\r\n\r\nabcd", 400, nil},
		"a folded header":          {"GET /x HTTP/1.1\r\n" + host + "X: a\r\n Content-Length: 30\r\n\r\n", 200, []string{"GET /x looked.test "}},
		"a bare CR":                {"GET /x HTTP/1.1\r\n" + host + "X: a\rContent-Length: 3\r\n\r\n", 400, nil},
		"bare LFs":                 {"GET /x HTTP/1.1\n" + strings.ReplaceAll(host, "\r", "") + "\n", 200, []string{"GET /x looked.test "}},
		"a trailer that overrides": {"PUT /x HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\nTrailer: X-Http-Method\r\n\r\n0\r\nX-Http-Method: DELETE\r\n\r\n", 400, nil},
		"HTTP/2 in the clear":      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, nil},
	} {
		c, in, _, _ := w.connect("looked.test:80")
		_, _ = io.WriteString(c, test.send)
		res, err := http.ReadResponse(in, nil)
		if test.code == 0 {
			if err == nil && res.StatusCode < 400 {
				t.Errorf("%s: %d", name, res.StatusCode)
			}
		} else if err != nil || res.StatusCode != test.code {
			t.Errorf("%s: %v %+v, want %d", name, err, res, test.code)
		}
		_ = c.Close()
		w.finished()
		if got := server.take(); !slices.Equal(got, test.serve) &&
			(len(got) != 1 || len(test.serve) != 1 || strings.TrimSpace(got[0]) != strings.TrimSpace(test.serve[0])) {
			t.Errorf("%s: the server got %q, want %q", name, got, test.serve)
		}
	}
	w.wantDenial("the method of the request is not a token in capital letters")
	w.wantDenial("by its headers or query the request is also DELETE /x")
}

// A second request that hides in the first is judged like any other.
func TestRequestsInOneConnectionAreJudgedOneByOne(t *testing.T) {
	w := newWorld(t, noWrites, nil)
	server := &rawServer{}
	w.place(w.web(false, server.ServeHTTP), "192.0.2.1", 80, "looked.test")
	c, in, _, _ := w.connect("looked.test:80")
	_, _ = io.WriteString(
		c,
		"GET /a HTTP/1.1\r\nHost: looked.test\r\nContent-Length: 3\r\n\r\nabcGET /admin HTTP/1.1\r\nHost: looked.test\r\n\r\nGET /b HTTP/1.1\r\nHost: looked.test\r\nConnection: close\r\n\r\n",
	)
	for _, want := range []int{200, 403, 200} {
		res, err := http.ReadResponse(in, nil)
		if err != nil || res.StatusCode != want {
			t.Fatalf("%v %+v, want %d", err, res, want)
		}
		_, _ = io.Copy(io.Discard, res.Body)
	}
	if got := server.take(); !slices.Equal(got, []string{"GET /a looked.test abc", "GET /b looked.test "}) {
		t.Errorf("%q", got)
	}
}

// framed opens a connection of HTTP/2 to the proxy, to write frames on.
func (w *world) framed(host string) (*http2.Framer, *tls.Conn) {
	w.t.Helper()
	c, _, _, _ := w.connect(host + ":443")
	pool := w.roots.Clone()
	pool.AppendCertsFromPEM(w.p.CA())
	tc := tls.Client(c, &tls.Config{RootCAs: pool, ServerName: host, NextProtos: []string{"h2"}})
	if err := tc.HandshakeContext(context.Background()); err != nil {
		w.t.Fatal(err)
	}
	_, _ = io.WriteString(tc, http2.ClientPreface)
	f := http2.NewFramer(tc, bufio.NewReader(tc))
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_ = f.WriteSettings()
	return f, tc
}

func TestPseudoHeadersOfHTTP2AreUnambiguous(t *testing.T) {
	w := newWorld(t, noWrites, nil)
	server := &rawServer{}
	w.place(w.web(true, server.ServeHTTP), "192.0.2.1", 443, "looked.test")
	ordinary := []string{":method", "GET", ":scheme", "https", ":path", "/x", ":authority", "looked.test"}
	with := func(changes ...string) []string {
		out := slices.Clone(ordinary)
		for i := 0; i < len(changes); i += 2 {
			out[slices.Index(out, changes[i])+1] = changes[i+1]
		}
		return out
	}
	for name, test := range map[string]struct {
		fields []string
		code   string // empty: the stream is reset
	}{
		"ordinary":                   {ordinary, "200"},
		"small letters":              {with(":method", "post"), "400"},
		"a denied method":            {with(":method", "PROPFIND"), "403"},
		"CONNECT":                    {with(":method", "CONNECT"), ""},
		"two methods":                {append([]string{":method", "POST"}, ordinary...), ""},
		"two paths":                  {append([]string{":path", "/admin"}, ordinary...), ""},
		"a path after the headers":   {append(slices.Clone(ordinary), "x", "y", ":path", "/admin"), ""},
		"a denied path":              {with(":path", "/%2561dmin"), "403"},
		"a fragment":                 {with(":path", "/x#y"), "400"},
		"a path without a slash":     {with(":path", "admin"), ""},
		"a URL as path":              {with(":path", "https://evil.test/x"), ""},
		"another authority":          {with(":authority", "evil.test"), "403"},
		"another host":               {append(slices.Clone(ordinary), "host", "evil.test"), "200"}, // dropped
		"a space in the path":        {with(":path", "/x HTTP/1.1"), "200"},                        /* encoded */
		"a header with a line end":   {append(slices.Clone(ordinary), "x", "a\r\nb: c"), ""},
		"a header of HTTP/1":         {append(slices.Clone(ordinary), "transfer-encoding", "chunked"), ""},
		"a header in capitals":       {append(slices.Clone(ordinary), "X", "a"), ""},
		"a length that is wrong":     {append(slices.Clone(ordinary), "content-length", "5"), "200"}, /* without a body */
		"a method that overrides it": {append(slices.Clone(ordinary), "x-http-method-override", "DELETE"), "403"},
	} {
		f, c := w.framed("looked.test")
		var block strings.Builder
		enc := hpack.NewEncoder(&block)
		for i := 0; i < len(test.fields); i += 2 {
			_ = enc.WriteField(hpack.HeaderField{Name: test.fields[i], Value: test.fields[i+1]})
		}
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndStream: true, EndHeaders: true})
		code, err := answerOf(f)
		if code != test.code && (test.code != "" || code != "400") {
			t.Errorf("%s: %q %v, want %q", name, code, err, test.code)
		}
		_ = c.Close()
		for _, got := range server.take() {
			if got != "GET /x looked.test " && got != "GET /x%20HTTP/1.1 looked.test " {
				t.Errorf("%s: the server got %q", name, got)
			}
		}
	}
}

// answerOf is the status of the answer to stream 1; empty when it is reset or
// the connection ends.
func answerOf(f *http2.Framer) (string, error) {
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return "", err
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status"), nil
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "", nil
		}
	}
}

// Servers read a query in different ways.
func TestAQueryThatOverridesTheMethodIsJudged(t *testing.T) {
	for query, want := range map[string]string{
		"_method=DELETE": "DELETE", "a=b&_method=DELETE": "DELETE", "a=1;_method=DELETE": "DELETE", "_method=DELETE;a": "DELETE",
		"%5fmethod=%44ELETE": "DELETE", ".method=DELETE": "DELETE", "+_method=DELETE": "DELETE", "_method=DELETE&b=%zz": "DELETE",
		"[method=DELETE": "DELETE", "_METHOD=DELETE": "DELETE", "_method[]=DELETE": "DELETE", "_method=DEL%": "DEL%", "method=DELETE": "",
		"x_method=DELETE": "",
	} {
		if got := strings.Join(queryMethods(query), ","); got != want {
			t.Errorf("%s: %q, want %q", query, got, want)
		}
	}
}
