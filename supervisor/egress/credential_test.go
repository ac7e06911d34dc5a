package egress

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

const (
	mark  = "agentsh-placeholder-0123456789abcdef"
	value = "real-secret/value+with=signs&more" // shorter than the placeholder
)

func credentials(header, query string, endpoints ...string) func(*Options) {
	return func(o *Options) {
		o.Credentials = []Credential{
			{Name: "api", Placeholder: mark, Value: value, Endpoints: endpoints, Header: header, Query: query, Path: header+query == ""},
		}
	}
}

const everything = `network_rules: [{name: all, domains: ["*"], decision: allow}]`

// echo answers with everything it got, in several spellings and in pieces.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("X-Echo", r.Header.Get("Authorization"))
	w.Header().Set("Trailer", "X-Late")
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s %s\n%v\n%s\n", r.Method, r.RequestURI, r.Header, body)
	for name, v := range r.Header {
		if name == "Authorization" {
			fmt.Fprintf(&b, "%q %x %s", v, v, base64.StdEncoding.EncodeToString([]byte("x"+v[0])))
		}
	}
	for _, piece := range b.Bytes() {
		_, _ = w.Write([]byte{piece})
		_ = http.NewResponseController(w).Flush()
	}
	w.Header().Set("X-Late", r.Header.Get("Authorization"))
}

func do(t *testing.T, c *http.Client, method, u, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, u, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, v, _ := strings.Cut(h, ": ")
		r.Header.Set(name, v)
	}
	res, err := c.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return res.StatusCode, err.Error()
	}
	return res.StatusCode, fmt.Sprintf("%s\n%v\n%v", b, res.Header, res.Trailer)
}

func TestPlaceholdersAreSwappedAtTheirEndpointsOnly(t *testing.T) {
	for _, second := range []bool{false, true} {
		got := make(chan *http.Request, 100)
		const markQuery, markPath = "agentsh-placeholder-of-the-query-01", "agentsh-placeholder-of-the-path-01"
		w := newWorld(t, everything, func(o *Options) {
			one := Credential{
				Name:        "api",
				Placeholder: mark,
				Value:       value,
				Endpoints:   []string{"api.test", "*.sub.test:8443"},
				Header:      "Authorization",
			}
			query, path := one, one
			query.Name, query.Placeholder, query.Header, query.Query = "query", markQuery, "", "k"
			path.Name, path.Placeholder, path.Header, path.Path = "path", markPath, "", true
			o.Credentials = []Credential{one, query, path}
		})
		keep := func(rw http.ResponseWriter, r *http.Request) { got <- r.Clone(t.Context()); echo(rw, r) }
		secure, plain := w.web(true, keep), w.web(false, keep)
		w.place(secure, "192.0.2.1", 443, "api.test", "other.test", "a.sub.test")
		w.place(secure, "192.0.2.1", 8443, "a.sub.test")
		w.place(plain, "192.0.2.1", 80, "api.test")
		c := w.client(second)
		basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+mark))
		for _, test := range []struct {
			name, method, url, body, header, want string
			good                                  bool
		}{
			{"a header", "GET", "https://api.test/", "", "Authorization: Bearer " + mark, "Bearer " + value, true},
			{"basic", "GET", "https://api.test/", "", "Authorization: " + basic, "", true},
			{"the query", "GET", "https://api.test/?k=" + markQuery + "&a=1", "", "", "", true},
			{"the path", "GET", "https://api.test/bot" + markPath + "/x", "", "", "", true},
			{"below a name", "GET", "https://a.sub.test:8443/", "", "Authorization: Bearer " + mark, "Bearer " + value, true},
			{"nothing", "GET", "https://other.test/", "", "", "", true},
			{"another host by TLS that is not inspected", "GET", "https://other.test/", "", "X: " + mark, mark, true},
			{"the body", "POST", "https://api.test/", "a" + mark + "b", "", "", true},
			{"the header's in the path", "GET", "https://api.test/bot" + mark, "", "", "", false},
			{"the header's in the query", "GET", "https://api.test/?k=" + mark, "", "", "", false},
			{"the path's in a header", "GET", "https://api.test/", "", "Authorization: " + markPath, "", false},
			{"the name of a header", "GET", "https://api.test/", "", mark + ": 1", "", false},
			{"plain HTTP", "GET", "http://api.test/", "", "Authorization: Bearer " + mark, "", false},
			{"plain HTTP, basic", "GET", "http://api.test/", "", "Authorization: " + basic, "", false},
			{"plain HTTP, the query", "GET", "http://api.test/?" + mark, "", "", "", false},
			{"plain HTTP, the body", "POST", "http://api.test/", strings.Repeat("x", 5000) + mark, "", "", true},
			{"a host name", "GET", "https://" + mark + ".api.test/", "", "", "", false},
		} {
			var headers []string
			if test.header != "" {
				headers = append(headers, test.header)
			}
			code, body := do(t, c, test.method, test.url, test.body, headers...)
			if (code == 200) != test.good {
				t.Errorf("%s: %d %s", test.name, code, body)
			}
			for _, hidden := range []string{value, fmt.Sprintf("%x", value), "real-secret%2Fvalue",
				base64.StdEncoding.EncodeToString([]byte(value))[:20]} {
				if strings.Contains(body, hidden) {
					t.Errorf("%s: the answer holds %q:\n%s", test.name, hidden, body)
				}
			}
			if !test.good {
				continue
			}
			r := <-got
			if strings.Contains(test.name, "the body") && !strings.Contains(body, test.body) {
				t.Errorf("%s: the body did not pass as it was:\n%s", test.name, body)
			}
			auth := r.Header.Get("Authorization")
			switch test.name {
			case "basic":
				if _, password, _ := r.BasicAuth(); password != value {
					t.Errorf("%s: %q", test.name, password)
				}
			case "the query":
				if r.URL.Query().Get("k") != value || r.URL.Query().Get("a") != "1" {
					t.Errorf("%s: %q", test.name, r.URL.RawQuery)
				}
			case "the path":
				if r.URL.Path != "/bot"+value+"/x" {
					t.Errorf("%s: %q", test.name, r.URL.Path)
				}
			case "another host by TLS that is not inspected":
				if r.Header.Get("X") != mark {
					t.Errorf("%s: %q", test.name, r.Header)
				}
			default:
				if auth != test.want {
					t.Errorf("%s: %q, want %q", test.name, auth, test.want)
				}
			}
		}
		w.wantDenial("by credential api")
		for _, e := range w.finishedAfter(c) {
			if strings.Contains(fmt.Sprintf("%+v %+v %+v", e, e.Rule, e.Net), "real-secret") {
				t.Errorf("an event holds the value: %+v", e)
			}
		}
	}
}

func TestACredentialHasOnePosition(t *testing.T) {
	for _, test := range []struct {
		header, query, url, with string
		good                     bool
	}{
		{"X-Key", "", "https://api.test/", "X-Key: " + mark, true}, {"x-key", "", "https://api.test/", "X-Key: " + mark, true},
		{"X-Key", "", "https://api.test/", "Cookie: " + mark, false}, {"X-Key", "", "https://api.test/?a=" + mark, "A: b", false},
		{"", "key", "https://api.test/?key=" + mark, "A: b", true}, {"", "key", "https://api.test/?other=" + mark, "A: b", false},
		{"", "key", "https://api.test/", "X-Key: " + mark, false}, {"", "key", "https://api.test/" + mark, "A: b", false},
	} {
		w := newWorld(t, everything, credentials(test.header, test.query, "api.test"))
		w.place(w.web(true, echo), "192.0.2.1", 443, "api.test")
		code, body := do(t, w.client(false), "GET", test.url, "", test.with)
		if (code == 200) != test.good || !test.good && !strings.Contains(body, "(rule credential api") {
			t.Errorf("%+v: %d %s", test, code, body)
		}
	}
}

func TestPlaceholdersInTunnelsThatAreNoTLSAreRefused(t *testing.T) {
	w := newWorld(t, everything, credentials("Authorization", "", "api.test"))
	real, got := sink(t)
	w.place(real, "192.0.2.1", 22, "git.test")
	c, _, code, _ := w.connect("git.test:22")
	if code != 200 {
		t.Fatal(code)
	}
	for _, part := range []string{"\x00hello " + mark[:10], mark[10:] + " more"} {
		_, _ = io.WriteString(c, part)
	}
	if _, err := io.Copy(io.Discard, c); err == nil {
		t.Log("the connection ended in order")
	}
	if text := <-got; strings.Contains(text, mark) {
		t.Errorf("%q came through", text)
	}
	w.finished()
	w.wantDenial("by credential api: the placeholder of the credential api stands in what is sent to git.test:22")
}

func TestCompressedAnswersAreDecodedOrRefused(t *testing.T) {
	w := newWorld(t, everything, credentials("Authorization", "", "api.test"))
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	fmt.Fprint(z, strings.Repeat("x", 100), value)
	_ = z.Close()
	w.place(w.web(true, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("Range") != "" {
			rw.WriteHeader(418)
		}
		rw.Header().Set("Content-Encoding", strings.TrimPrefix(r.URL.Path, "/"))
		_, _ = rw.Write(packed.Bytes())
	}), "192.0.2.1", 443, "api.test")
	c := w.client(true)
	use := []string{"Authorization: " + mark, "Accept-Encoding: gzip, br", "Range: bytes=0-4"}
	if code, body := do(t, c, "GET", "https://api.test/gzip", "", use...); code != 200 || !strings.Contains(body, "xxx***") ||
		strings.Contains(body, value) {
		t.Errorf("%d %s", code, body)
	}
	if code, body := do(t, c, "GET", "https://api.test/br", "", use...); code != 403 || !strings.Contains(body, "cannot be searched") {
		t.Errorf("%d %s", code, body)
	}
}

func TestScrubbingAcrossTheBordersOfReads(t *testing.T) {
	search := newNeedles(formsOf(Credential{Value: value, Placeholder: mark}))
	text := "a" + value + value + value[:10] + "b" + strings.Repeat("c", 8<<10) + value + value[:len(value)-1]
	want := strings.ReplaceAll(text, value, strings.Repeat("*", len(value)))
	for name, wrap := range map[string]func(io.Reader) io.Reader{"whole": func(r io.Reader) io.Reader { return r },
		"bytes": iotest.OneByteReader, "halves": iotest.HalfReader, "end with data": iotest.DataErrReader} {
		for size, read := range map[string]func(io.Reader) io.Reader{"small": iotest.OneByteReader,
			"large": func(r io.Reader) io.Reader { return bufio.NewReaderSize(r, 4<<10) }} {
			s := &scrubbed{src: io.NopCloser(wrap(strings.NewReader(text))), values: func() *needles { return search }}
			got, err := io.ReadAll(read(s))
			if err != nil || string(got) != want {
				t.Errorf("%s, %s: %v, %d bytes instead of %d", name, size, err, len(got), len(want))
			}
		}
	}
	// What cannot be the beginning of a value does not wait.
	in, out := io.Pipe()
	s := &scrubbed{src: in, values: func() *needles { return search }}
	go func() { _, _ = io.WriteString(out, "data: event "+value[:4]) }()
	buf := make([]byte, 100)
	if n, err := s.Read(buf); err != nil || string(buf[:n]) != "data: event " {
		t.Errorf("%q %v", buf[:n], err)
	}
	_ = out.Close()
	same := formsOf(Credential{Value: "0123456789abcdefghij", Placeholder: "ABCDEFGHIJ0123456789"})
	b := []byte("is 0123456789abcdefghij.")
	if newNeedles(same).hide(b); string(b) != "is ABCDEFGHIJ0123456789." {
		t.Errorf("%s", b)
	}
}

func TestCredentialsThatCannotBeProtectedAreRefused(t *testing.T) {
	good := Credential{Name: "a", Placeholder: mark, Value: value, Endpoints: []string{"a.test"}, Header: "Authorization"}
	for what, change := range map[string]func(*Credential){
		"no name": func(c *Credential) { c.Name = "" }, "short placeholder": func(c *Credential) { c.Placeholder = "short" },
		"spaces": func(c *Credential) { c.Placeholder = mark + " x" }, "short value": func(c *Credential) { c.Value = "1234567" },
		"a line end": func(c *Credential) { c.Value += "\n" }, "both places": func(c *Credential) { c.Header, c.Query = "a", "b" },
		"no place":        func(c *Credential) { c.Header = "" },
		"header and path": func(c *Credential) { c.Path = true },
		"no endpoints":    func(c *Credential) { c.Endpoints = nil }, "a bad endpoint": func(c *Credential) { c.Endpoints = []string{"a b"} },
		"its own value": func(c *Credential) { c.Value = "x" + mark },
	} {
		c := good
		change(&c)
		if _, err := newSecrets([]Credential{c}); err == nil {
			t.Errorf("%s is taken", what)
		} else if strings.Contains(err.Error(), value) {
			t.Errorf("%s: the error holds the value", what)
		}
	}
	if _, err := newSecrets([]Credential{good, good}); err == nil {
		t.Error("two of one placeholder are taken")
	}
	if _, err := newSecrets([]Credential{good}); err != nil {
		t.Error(err)
	}
}

func TestEachSessionHasItsOwnAuthority(t *testing.T) {
	a, b := newWorld(t, everything, credentials("Authorization", "", "api.test")), newWorld(t, everything, nil)
	if bytes.Equal(a.p.CA(), b.p.CA()) {
		t.Error("two sessions have one authority")
	}
	if !a.p.Intercepts() || b.p.Intercepts() {
		t.Error("Intercepts reports the wrong proxies")
	}
	bundle, err := a.p.CABundle()
	if err != nil || !bytes.HasPrefix(bundle, a.p.CA()) {
		t.Errorf("%v", err)
	}
	// SSL_CERT_FILE replaces the authorities of the machine: in an image it names them.
	own := filepath.Join(t.TempDir(), "own.pem")
	t.Setenv("SSL_CERT_FILE", own)
	if bundle, err := a.p.CABundle(); err != nil || !bytes.Equal(bundle, a.p.CA()) {
		t.Errorf("a file that is not there: %v\n%s", err, bundle)
	}
	if err := os.WriteFile(own, []byte("own authorities\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if bundle, err := a.p.CABundle(); err != nil || string(bundle) != string(a.p.CA())+"\nown authorities\n" {
		t.Errorf("%v\n%s", err, bundle)
	}
	a.place(a.web(true, echo), "192.0.2.1", 443, "api.test")
	c, _, _, _ := a.connect("api.test:443")
	tc := tls.Client(c, &tls.Config{RootCAs: a.roots, ServerName: "api.test"})
	if err := tc.Handshake(); err == nil || !strings.Contains(err.Error(), "authority") {
		t.Errorf("who does not trust the session's authority: %v", err)
	}
	// A server that the machine does not trust is not reached.
	a.place(b.web(true, echo), "192.0.2.2", 443, "fake.test")
	d := newWorld(t, everything, credentials("Authorization", "", "fake.test"))
	d.place(b.web(true, echo), "192.0.2.2", 443, "fake.test")
	if code, body := do(t, d.client(true), "GET", "https://fake.test/", "", "Authorization: "+mark); code != 502 ||
		!strings.Contains(body, "certificate") {
		t.Errorf("%d %s", code, body)
	}
}
