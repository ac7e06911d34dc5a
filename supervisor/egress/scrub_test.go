package egress

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Libraries write the same text in different ways.
func TestAValueIsFoundInEveryEncodingOfLibraries(t *testing.T) {
	for _, c := range []struct{ value, written, by string }{
		{"q/Zk+81=pp&x==", "q%2fZk%2b81%3dpp%26x%3d%3d", "small letters in escapes"},
		{"q Zk+81==", "q%20Zk%2B81%3D%3D", "encodeURIComponent"},
		{"q Zk+81==", "q+Zk%2b81%3d%3d", "a form in small letters"},
		{"q/Zk+81<==", `q/Zk+81\u003c\u003d\u003d`, "JSON that escapes ="},
		{"q/Zk+81&==", `q/Zk+81&==`, "JSON that escapes nothing"},
		{"q\"/Zk+81&==", `q\"/Zk+81&==`, "JSON that escapes quotes only"},
		{"q/Zk+81&==", `q/Zk\u002B81\u0026==`, "JSON that escapes +"},
		{"q/Zk+81>==", `q\/Zk+81\u003E==`, "JSON with escaped slashes"},
		{"q'Zk\"81<==", "q&#x27;Zk&quot;81&lt;==", "HTML with x27"},
		{"q'Zk\"81<==", "q&#039;Zk&quot;81&lt;==", "HTML with 039"},
		{"q'Zk\"81<==", "q'Zk\"81&lt;==", "HTML outside attributes"},
	} {
		s, err := newSecrets(
			[]Credential{{Name: "key", Placeholder: "placeholder-of-key", Value: c.value, Endpoints: []string{"api.test"}, Header: "Authorization"}},
		)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.clean("a " + c.written + " b"); strings.Contains(got, c.written) {
			t.Errorf("%s: %q is not known as %q", c.by, c.written, c.value)
		}
	}
}

// An answer that holds a value is scrubbed wherever it comes from, and nothing
// but a whole one comes from an endpoint.
func TestAnswersOfEveryInspectedServerAreScrubbed(t *testing.T) {
	w := newWorld(t, `
network_rules:
  - {name: looked, domains: [looked.test, api.test], methods: [GET, HEAD], decision: allow}
  - {name: rest, domains: ["*"], decision: allow}
`, credentials("Authorization", "", "api.test"))
	var packed bytes.Buffer
	z := zlib.NewWriter(&packed)
	fmt.Fprint(z, "packed "+value)
	_ = z.Close()
	var mu sync.Mutex
	var asked http.Header
	serve := func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked = r.Header.Clone()
		mu.Unlock()
		h := rw.Header()
		switch r.URL.Path {
		case "/part":
			h.Set("Content-Range", "bytes 0-4/20")
			rw.WriteHeader(http.StatusPartialContent)
		case "/parts":
			h.Set("Content-Type", "Multipart/ByteRanges; boundary=x")
		case "/deflate":
			h.Set("Content-Encoding", "deflate")
			_, _ = rw.Write(packed.Bytes())
			return
		case "/early":
			h.Set("Link", "<"+value+">")
			rw.WriteHeader(http.StatusEarlyHints)
			h.Del("Link")
		}
		h.Set("Trailer", "X-Late")
		h.Set("X-Head", value)
		h.Set("X-"+fmt.Sprintf("%x", value), "1")
		fmt.Fprint(rw, "is "+value[:3])
		_ = http.NewResponseController(rw).Flush()
		fmt.Fprint(rw, value[3:])
		h.Set("X-Late", value)
	}
	w.place(w.web(true, serve), "192.0.2.1", 443, "api.test", "looked.test")
	w.place(w.web(false, serve), "192.0.2.1", 80, "plain.test")
	var early []string
	for _, second := range []bool{false, true} {
		c := w.client(second)
		for _, test := range []struct {
			url   string
			code  int
			whole bool // the range is not asked for
		}{
			{"https://api.test/", 200, true}, {"https://looked.test/", 200, false}, {"http://plain.test/", 200, false},
			{"https://looked.test/deflate", 200, false},
			{"https://looked.test/early", 200, false}, {"https://looked.test/part", 206, false}, {"https://api.test/part", 403, true},
			{"https://api.test/parts", 403, true},
		} {
			r, err := http.NewRequest("GET", test.url, nil)
			if err != nil {
				t.Fatal(err)
			}
			r = r.WithContext(
				httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
					early = append(early, fmt.Sprint(code, h))
					return nil
				}}),
			)
			r.Header.Set("Range", "bytes=0-4")
			r.Header.Set("If-Range", "x")
			res, err := c.Do(r)
			if err != nil {
				t.Errorf("%s: %v", test.url, err)
				continue
			}
			body, err := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if all := fmt.Sprintf("%s %v %v %v", body, res.Header, res.Trailer, res.Status); err != nil || strings.Contains(all, "real-secret") ||
				strings.Contains(strings.ToLower(all), fmt.Sprintf("%x", value)) {
				t.Errorf("%s: %v %s", test.url, err, all)
			}
			if res.StatusCode != test.code || test.code < 300 && !bytes.Contains(body, []byte("***")) {
				t.Errorf("%s: %d %s", test.url, res.StatusCode, body)
			}
			mu.Lock()
			if asked.Get("Accept-Encoding") != "identity" || (asked.Get("Range") == "") != test.whole ||
				(asked.Get("If-Range") == "") != test.whole {
				t.Errorf("%s: the server was asked with %v", test.url, asked)
			}
			mu.Unlock()
		}
	}
	if len(early) != 2 || !strings.Contains(early[0], "***") || strings.Contains(fmt.Sprint(early), "real-secret") {
		t.Errorf("early answers: %q", early)
	}
}

// The words of a status line are the server's own; net/http drops them, except
// those of an upgrade.
func TestTheStatusLineOfAnUpgradeIsScrubbed(t *testing.T) {
	w := newWorld(t, everything, credentials("Authorization", "", "api.test"))
	w.place(w.web(true, func(rw http.ResponseWriter, r *http.Request) {
		c, in, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX: %s\r\n\r\n", value, value)
		b, _ := io.ReadAll(in) // until the client ends its half
		fmt.Fprintf(c, "got %s, %s", b, value)
	}), "192.0.2.1", 443, "api.test")
	pool := w.roots.Clone()
	pool.AppendCertsFromPEM(w.p.CA())
	c, _, _, _ := w.connect("api.test:443")
	tc := tls.Client(c, &tls.Config{RootCAs: pool, ServerName: "api.test"})
	fmt.Fprint(tc, "GET /ws HTTP/1.1\r\nHost: api.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
	in := bufio.NewReader(tc)
	status, err := in.ReadString('\n')
	if err != nil || strings.TrimSpace(status) != "HTTP/1.1 101 Switching Protocols" {
		t.Fatalf("%q %v", status, err)
	}
	_ = tc.CloseWrite()
	all, err := io.ReadAll(in)
	if err != nil || !bytes.HasSuffix(all, []byte("got hello, "+strings.Repeat("*", len(value)))) || bytes.Contains(all, []byte(value)) {
		t.Errorf("%v %q", err, all)
	}
}

// needles finds what a search for each text would.
func TestTextsAreFoundInOnePass(t *testing.T) {
	random := rand.New(rand.NewSource(1))
	for range 2000 {
		var forms []form
		for range 1 + random.Intn(12) {
			text := make([]byte, 8+random.Intn(9))
			for i := range text {
				text[i] = "ab"[random.Intn(2)]
			}
			forms = append(forms, form{text, bytes.Repeat([]byte("*"), len(text))})
		}
		b := make([]byte, random.Intn(400))
		for i := range b {
			b[i] = "ab"[random.Intn(2)]
		}
		want := slices.Clone(b)
		held := 0
		for _, f := range forms {
			for at := range b {
				if bytes.HasPrefix(b[at:], f.text) {
					copy(want[at:], f.shown)
				}
				if len(b)-at < len(f.text) && bytes.HasPrefix(f.text, b[at:]) {
					held = max(held, len(b)-at)
				}
			}
		}
		n := newNeedles(forms)
		if got := n.partial(b); got != held {
			t.Fatalf("%s: holds %d, want %d", b, got, held)
		}
		if n.hide(b); !bytes.Equal(b, want) {
			t.Fatalf("got  %s\nwant %s", b, want)
		}
	}
}

func BenchmarkScrub(b *testing.B) {
	text := []byte(strings.Repeat(`{"text": "an ordinary line of words", "hash": "5f2b8c01"},`+"\n", 72))
	for _, n := range []int{1, 10} {
		var forms []form
		for i := range n {
			forms = append(forms, formsOf(Credential{Value: fmt.Sprintf("%02d-%s", i, value), Placeholder: mark})...)
		}
		needles := newNeedles(forms)
		b.Run(fmt.Sprintf("credentials=%d", n), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				needles.hide(text)
				needles.partial(text)
			}
		})
		b.Run(fmt.Sprintf("hide,credentials=%d", n), func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				needles.hide(text)
			}
		})
	}
}
