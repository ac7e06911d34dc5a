package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"agentsh/internal/wire"
)

// lookedInto has every request to looked.test judged.
const lookedInto = `
network_rules:
  - {name: no-admin, domains: [looked.test], paths: ["/admin/**"], decision: deny, message: not the admin pages}
  - {name: reads, domains: [looked.test], methods: [GET, PUT], decision: allow}
  - {name: ask, domains: [looked.test], methods: [DELETE], decision: approve}
  - {name: other, domains: [plain.test, "*.plain.test"], decision: allow}
`

func TestEachRequestOfAConnectionIsJudged(t *testing.T) {
	for _, second := range []bool{false, true} {
		w := newWorld(t, lookedInto, nil)
		w.place(w.web(true, hello("s")), "192.0.2.1", 443, "looked.test", "a.plain.test")
		w.place(w.web(false, hello("p")), "192.0.2.1", 80, "looked.test")
		c := w.client(second)
		for _, scheme := range []string{"https", "http"} {
			for _, test := range []struct {
				method, path, rule string
				code               int
			}{
				{"GET", "/x", "reads", 200}, {"GET", "/admin/x", "no-admin", 403}, {"GET", "/a/../admin/x", "no-admin", 403}, {"GET", "/%61dmin/x",
					"no-admin", 403},
				{"GET", "//admin/x", "no-admin", 403}, {"PUT", "/x", "reads", 200}, {"POST", "/x", "default", 403}, {"DELETE", "/x", "ask", 403},
				{"GET", "/y?z=1", "reads", 200},
			} {
				code, body := do(t, c, test.method, scheme+"://looked.test"+test.path, "")
				if code != test.code || code == 403 && !strings.Contains(body, "(rule "+test.rule+",") {
					t.Errorf("%s %s %s: %d %s", scheme, test.method, test.path, code, body)
				}
			}
		}
		// One connection for all of it, with HTTP/2 where the client speaks it.
		events := w.finishedAfter(c)
		opened, requests := 0, 0
		for _, e := range events {
			if e.Phase == "begin" {
				opened++
			}
			if e.Phase == "request" {
				requests++
				if e.Op == "" || e.Path == "" || e.Rule == nil || strings.Contains(e.Path, "?") {
					t.Errorf("%+v", e)
				}
			}
		}
		if requests != 18 || opened > 4 {
			t.Errorf("%d requests on %d connections", requests, opened)
		}
	}
}

func TestTheAuthorityOfARequestMustBeThatOfItsConnection(t *testing.T) {
	w := newWorld(t, lookedInto, nil)
	w.place(w.web(true, hello("s")), "192.0.2.1", 443, "looked.test", "a.plain.test")
	for _, protocol := range []string{"h2", "http/1.1"} {
		c, _, _, _ := w.connect("looked.test:443")
		pool := w.roots.Clone()
		pool.AppendCertsFromPEM(w.p.CA())
		tr := &http.Transport{
			ForceAttemptHTTP2: protocol == "h2",
			DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				tc := tls.Client(c, &tls.Config{RootCAs: pool, ServerName: "looked.test", NextProtos: []string{protocol}})
				return tc, tc.HandshakeContext(ctx)
			},
		}
		client := &http.Client{Transport: tr, Timeout: guard}
		for _, test := range []struct {
			host string
			good bool
		}{{"", true}, {"LOOKED.test", true}, {"looked.test:443", true}, {"evil.test", false}, {"a.plain.test", false}, {"looked.test:444",
			false}} {
			r, _ := http.NewRequest(http.MethodGet, "https://looked.test/", nil)
			r.Host = test.host
			res, err := client.Do(r)
			if err != nil {
				t.Errorf("%s %q: %v", protocol, test.host, err)
				continue
			}
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if (res.StatusCode == 200) != test.good || test.good && !strings.Contains(string(body), " looked.test ") {
				t.Errorf("%s %q: %d %s", protocol, test.host, res.StatusCode, body)
			}
		}
		tr.CloseIdleConnections()
	}
	w.wantDenial("but the request is for evil.test")
}

func TestStreamsAndLargeBodiesPass(t *testing.T) {
	w := newWorld(t, lookedInto, nil)
	next := make(chan string)
	serve := func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events":
			rw.Header().Set("Content-Type", "text/event-stream")
			for {
				_ = http.NewResponseController(rw).Flush()
				select {
				case text := <-next:
					fmt.Fprintf(rw, "data: %s\n\n", text)
				case <-r.Context().Done():
					return
				}
			}
		case "/large":
			n, err := io.Copy(io.Discard, r.Body)
			rw.Header().Set("X-Got", fmt.Sprint(n, err))
			_, _ = rw.Write(bytes.Repeat([]byte("y"), 8<<20))
		}
	}
	w.place(w.web(true, serve), "192.0.2.1", 443, "looked.test", "a.plain.test")
	for _, second := range []bool{false, true} {
		for _, host := range []string{"looked.test", "a.plain.test"} {
			c := w.client(second)
			res, err := c.Get("https://" + host + "/events")
			if err != nil {
				t.Fatal(err)
			}
			in := bufio.NewReader(res.Body)
			for _, text := range []string{"one", "two"} { // each comes before the next is sent
				next <- text
				if line, err := in.ReadString('\n'); err != nil || line != "data: "+text+"\n" {
					t.Fatalf("%q %v", line, err)
				}
				_, _ = in.ReadString('\n')
			}
			_ = res.Body.Close()
			r, _ := http.NewRequest(http.MethodPut, "https://"+host+"/large", bytes.NewReader(make([]byte, 8<<20)))
			if res, err = c.Do(r); err != nil {
				t.Fatal(err)
			}
			n, err := io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if n != 8<<20 || err != nil || res.Header.Get("X-Got") != fmt.Sprint(8<<20, " ", nil) {
				t.Errorf("%d %v %s", n, err, res.Header.Get("X-Got"))
			}
			c.CloseIdleConnections()
		}
	}
}

func TestWebSocketsPassAndOtherUpgradesDoNot(t *testing.T) {
	w := newWorld(t, lookedInto, credentials("Authorization", "", "looked.test"))
	serve := func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "" {
			fmt.Fprint(rw, "no upgrade")
			return
		}
		c, in, err := http.NewResponseController(rw).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: %s\r\nConnection: Upgrade\r\n\r\n", r.Header.Get("Upgrade"))
		line, _ := in.ReadString('\n')
		fmt.Fprintf(c, "got %s%s\n", line, value)
	}
	w.place(w.web(true, serve), "192.0.2.1", 443, "looked.test")
	pool := w.roots.Clone()
	pool.AppendCertsFromPEM(w.p.CA())
	for upgrade, want := range map[string]string{"websocket": "got hello", "h2c": "no upgrade", "anything": "no upgrade"} {
		c, _, _, _ := w.connect("looked.test:443")
		tc := tls.Client(c, &tls.Config{RootCAs: pool, ServerName: "looked.test"})
		fmt.Fprintf(tc, "GET /ws HTTP/1.1\r\nHost: looked.test\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", upgrade)
		in := bufio.NewReader(tc)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		if res.StatusCode == http.StatusSwitchingProtocols {
			fmt.Fprint(tc, "hello\n")
			b, _ := io.ReadAll(in)
			text = string(b)
		} else {
			b, _ := io.ReadAll(res.Body)
			text = string(b)
		}
		if !strings.Contains(text, want) || strings.Contains(text, value) {
			t.Errorf("%s: %d %q", upgrade, res.StatusCode, text)
		}
		_ = tc.Close()
	}
}

func TestBothHalvesOfATunnelEndByThemselves(t *testing.T) {
	w := newWorld(t, lookedInto, nil)
	real, got := sink(t)
	w.place(real, "192.0.2.1", 9, "plain.test")
	c, in, code, _ := w.connect("plain.test:9")
	if code != 200 {
		t.Fatal(code)
	}
	sent := "\x01" + strings.Repeat("a", 3<<20)
	_, _ = io.WriteString(c, sent)
	_ = c.(*net.TCPConn).CloseWrite()
	if text := <-got; text != sent {
		t.Errorf("%d bytes came through of %d", len(text), len(sent))
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("%q %v", rest, err)
	}
	for _, e := range w.finished() {
		if e.Phase == "end" && (e.Net.Sent != int64(len(sent)) || e.Net.Received != 0) {
			t.Errorf("%+v", e.Net)
		}
	}
}

// talker is a server that speaks first and then answers each line.
func talker(t testing.TB, greeting string) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, greeting)
				in := bufio.NewReader(c)
				for {
					line, err := in.ReadString('\n')
					if err != nil {
						return
					}
					_, _ = io.WriteString(c, "you said "+line)
				}
			}()
		}
	}()
	return l.Addr().String()
}

func TestServersThatSendFirstAreRelayed(t *testing.T) {
	w := newWorld(t, lookedInto, nil)
	w.place(talker(t, "220 hello\r\n"), "192.0.2.1", 25, "plain.test")
	c, in, code, _ := w.connect("plain.test:25")
	if line, err := in.ReadString('\n'); code != 200 || err != nil || line != "220 hello\r\n" {
		t.Fatalf("%d %q %v", code, line, err)
	}
	_, _ = io.WriteString(c, "EHLO me\n")
	if line, err := in.ReadString('\n'); err != nil || line != "you said EHLO me\n" {
		t.Fatalf("%q %v", line, err)
	}
	_ = c.Close()
	c, in, _, _ = w.connect("plain.test:25")
	_, _ = in.ReadString('\n')
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
	if rest, _ := io.ReadAll(in); len(rest) > 0 {
		t.Errorf("%q", rest)
	}
	w.finished()
	w.wantDenial("spoke before a request")
}

// socks asks for a destination by SOCKS 5 and returns the code of the answer.
func (w *world) socks(command byte, address []byte, port uint16) (net.Conn, byte) {
	w.t.Helper()
	c := w.raw()
	_, _ = c.Write([]byte{5, 2, 2, 0})
	var greeting [2]byte
	if _, err := io.ReadFull(c, greeting[:]); err != nil || greeting != [2]byte{5, 0} {
		w.t.Fatalf("%v %v", greeting, err)
	}
	_, _ = c.Write(binary.BigEndian.AppendUint16(append([]byte{5, command, 0}, address...), port))
	var answer [10]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		w.t.Fatal(err)
	}
	return c, answer[1]
}

func TestSOCKS(t *testing.T) {
	w := newWorld(t, simple, nil)
	w.place(talker(t, ""), "192.0.2.1", 443, "good.test")
	w.place(talker(t, ""), "198.51.100.1", 443)
	name := func(s string) []byte { return append([]byte{3, byte(len(s))}, s...) }
	for _, test := range []struct {
		what    string
		command byte
		address []byte
		port    uint16
		code    byte
	}{
		{"a name", 1, name("good.test"), 443, 0}, {"in capitals", 1, name("GOOD.test."), 443, 0}, {"an address", 1, []byte{1, 198, 51, 100, 1},
			443, 0},
		{"a mapped address", 1, append([]byte{4}, net.ParseIP("198.51.100.1").To16()...), 443, 0},
		{"a denied name", 1, name("evil.test"), 443, 2}, {"a denied port", 1, name("good.test"), 22, 2}, {"another address", 1, []byte{1, 192,
			0, 2, 1}, 443, 2},
		{"an address as a name", 1, name("0x7f.1"), 80, 2}, {"NUL", 1, name("good.test\x00.evil.test"), 443, 2}, {"port 0", 1,
			name("good.test"), 0, 2},
		{"UDP", 3, name("good.test"), 443, 7}, {"BIND", 2, name("good.test"), 443, 7}, {"another kind of address", 1, []byte{9, 1, 2}, 443, 8},
		{"nobody there", 1, name("a.good.test"), 443, 5},
	} {
		c, code := w.socks(test.command, test.address, test.port)
		if code != test.code {
			t.Errorf("%s: %d, want %d", test.what, code, test.code)
		}
		if code == 0 {
			_, _ = io.WriteString(c, "hello\n")
			if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "you said hello\n" {
				t.Errorf("%s: %q %v", test.what, line, err)
			}
		}
		_ = c.Close()
	}
	w.finished()
	if n := len(w.denials()); n != 9 {
		t.Errorf("%d denials: %q", n, w.denials())
	}
}

// query asks a DNS server over UDP.
func query(t *testing.T, addr net.Addr, name string, kind dnsmessage.Type) (dnsmessage.RCode, []string) {
	t.Helper()
	c, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(guard))
	q := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	packed, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	if addr.Network() == "tcp" {
		packed = append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
	}
	_, _ = c.Write(packed)
	buf := make([]byte, 4096)
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	if addr.Network() == "tcp" {
		buf, n = buf[2:], n-2
	}
	var a dnsmessage.Message
	if err := a.Unpack(buf[:n]); err != nil || a.ID != 7 {
		t.Fatalf("%v %v", a, err)
	}
	var out []string
	for _, r := range a.Answers {
		switch b := r.Body.(type) {
		case *dnsmessage.AResource:
			out = append(out, netip.AddrFrom4(b.A).String())
		case *dnsmessage.AAAAResource:
			out = append(out, netip.AddrFrom16(b.AAAA).String())
		}
	}
	return a.RCode, out
}

func TestNamesAndRedirectedConnections(t *testing.T) {
	w := newWorld(t, simple+`
  - {name: six, domains: [six.test], decision: allow}
  - {name: looked, domains: [looked.test], methods: [GET], decision: allow}
`, nil)
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp := w.listen()
	served := make(chan error, 2)
	go func() { served <- w.p.ServeDNS(udp, tcp) }()
	redirected := w.listen()
	to := make(chan netip.AddrPort, 1)
	go func() {
		served <- w.p.ServeTransparent(redirected, func(net.Conn) (netip.AddrPort, error) { return <-to, nil })
	}()
	w.place(talker(t, ""), "192.0.2.1", 443, "good.test")
	w.place(talker(t, ""), "192.0.2.1", 80)
	w.place(talker(t, ""), "198.51.100.1", 25)
	w.place(w.web(false, hello("x")), "2001:db8::1", 80, "six.test")
	w.place(w.web(true, hello("s")), "192.0.2.9", 443, "looked.test")
	reach := func(addr string, port uint16, first string) string {
		c, err := net.Dial("tcp", redirected.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(guard))
		to <- netip.AddrPortFrom(netip.MustParseAddr(addr), port)
		_, _ = io.WriteString(c, first)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil {
			return "refused"
		}
		return strings.TrimSpace(line)
	}
	if got := reach("192.0.2.1", 443, "hello\n"); got != "refused" {
		t.Errorf("before the name was looked up: %s", got)
	}
	for _, test := range []struct {
		addr net.Addr
		name string
		kind dnsmessage.Type
		code dnsmessage.RCode
		want string
	}{
		{udp.LocalAddr(), "evil.test.", dnsmessage.TypeA, dnsmessage.RCodeRefused, "[]"}, {udp.LocalAddr(), "other.test.", dnsmessage.TypeA,
			dnsmessage.RCodeRefused, "[]"},
		{udp.LocalAddr(), "GOOD.test.", dnsmessage.TypeA, 0, "[192.0.2.1]"}, {tcp.Addr(), "good.test.", dnsmessage.TypeA, 0, "[192.0.2.1]"},
		{udp.LocalAddr(), "good.test.", dnsmessage.TypeAAAA, 0, "[]"},
		{udp.LocalAddr(), "six.test.", dnsmessage.TypeAAAA, 0, "[2001:db8::1]"}, {udp.LocalAddr(), "good.test.", dnsmessage.TypeTXT,
			dnsmessage.RCodeRefused, "[]"},
		{udp.LocalAddr(), "good.test.", 65, 0, "[]"}, {udp.LocalAddr(), "none.good.test.", dnsmessage.TypeA, dnsmessage.RCodeNameError, "[]"},
		{udp.LocalAddr(), "a\\b.test.", dnsmessage.TypeA, dnsmessage.RCodeRefused, "[]"},
	} {
		code, got := query(t, test.addr, test.name, test.kind)
		if code != test.code || fmt.Sprint(got) != test.want {
			t.Errorf("%s %s: %v %v", test.name, test.kind, code, got)
		}
	}
	for _, test := range []struct {
		addr        string
		port        uint16
		first, want string
	}{
		{"192.0.2.1", 443, "hello\n", "you said hello"}, {"192.0.2.1", 22, "hello\n", "refused"}, {"198.51.100.1", 25, "hello\n",
			"you said hello"},
		{"203.0.113.1", 80, "hello\n", "refused"}, {"127.0.0.1", 80, "hello\n", "refused"}, {"::ffff:127.0.0.1", 80, "hello\n", "refused"},
		{"2001:db8::1", 80, "GET / HTTP/1.1\r\nHost: six.test\r\n\r\n", "HTTP/1.1 200 OK"}, {"2001:db8::1", 80,
			"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n", "HTTP/1.1 403 Forbidden"},
	} {
		if got := reach(test.addr, test.port, test.first); got != test.want {
			t.Errorf("%s %d %q: %s, want %s", test.addr, test.port, test.first, got, test.want)
		}
	}
	if code, _ := query(t, udp.LocalAddr(), "looked.test.", dnsmessage.TypeA); code != 0 {
		t.Errorf("%v", code)
	}
	if got := reach("192.0.2.9", 443, "\x01no TLS\n"); got != "refused" {
		t.Errorf("to be inspected: %s", got)
	}
	pool := w.roots.Clone()
	pool.AppendCertsFromPEM(w.p.CA())
	c := &http.Client{
		Timeout: guard,
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: pool},
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				to <- netip.MustParseAddrPort("192.0.2.9:443")
				return net.Dial("tcp", redirected.Addr().String())
			},
		},
	}
	for method, want := range map[string]int{"GET": 200, "POST": 403} {
		if code, body := do(t, c, method, "https://looked.test/", ""); code != want {
			t.Errorf("redirected and inspected, %s: %d %s", method, code, body)
		}
	}
	w.finishedAfter(c)
	_ = w.p.Close()
	for range 2 {
		if err := <-served; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
	}
}

func TestAPersonApprovesAndNoAnswerDenies(t *testing.T) {
	var asked []string
	var mu sync.Mutex
	w := newWorld(t, `
network_rules:
  - {name: ask, domains: ["*.ask.test"], timeout: 5s, message: may it, decision: approve}
  - {name: ask-net, cidrs: [198.51.100.0/24], decision: approve}
`, func(o *Options) {
		o.Approve = func(_ context.Context, q wire.Question) wire.Answer {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, q.Kind+" "+string(q.Subject)+" "+q.Message)
			if q.Rule == nil || q.Rule.Position() == "" {
				t.Errorf("%+v", q)
			}
			return wire.Answer{Allow: strings.Contains(string(q.Subject), "yes") || strings.Contains(string(q.Subject), "198"), Reason: "no answer"}
		}
	})
	w.place(w.web(false, hello("x")), "192.0.2.1", 80, "yes.ask.test", "no.ask.test")
	w.place(w.web(false, hello("x")), "198.51.100.1", 80)
	c := w.client(false)
	if code, body := w.get(c, "http://yes.ask.test/"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if code, _ := w.get(c, "http://yes.ask.test/2"); code != 200 {
		t.Errorf("%d", code)
	}
	if code, body := w.get(c, "http://no.ask.test/"); code != 403 || !strings.Contains(body, "no answer") {
		t.Errorf("%d %s", code, body)
	}
	if code, body := w.get(c, "http://198.51.100.1/"); code != 200 {
		t.Errorf("%d %s", code, body)
	}
	if got := strings.Join(asked, ", "); got != "net tcp yes.ask.test:80 may it, net tcp no.ask.test:80 may it, net tcp 198.51.100.1:80 " {
		t.Errorf("%s", got)
	}
	if strings.Join(w.lookups, " ") != "yes.ask.test" {
		t.Errorf("looked up %q", w.lookups)
	}
	silent := newWorld(t, `network_rules: [{name: ask, domains: ["*"], decision: approve}]`, nil)
	if _, _, code, _ := silent.connect("a.test:80"); code != 403 || len(silent.lookups) > 0 {
		t.Errorf("nobody to ask: %d %q", code, silent.lookups)
	}
}

func TestANewPolicyEndsConnectionsThatItDoesNotPermit(t *testing.T) {
	w := newWorld(t, simple, nil)
	w.place(talker(t, ""), "192.0.2.1", 443, "good.test")
	w.place(talker(t, ""), "198.51.100.1", 443)
	open := func(to string) (net.Conn, *bufio.Reader) {
		c, in, code, body := w.connect(to)
		if code != 200 {
			t.Fatalf("%d %s", code, body)
		}
		for range 2 { // the first has been counted when the second arrives
			_, _ = io.WriteString(c, "hello\n")
			if _, err := in.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		return c, in
	}
	_, gone := open("good.test:443")
	stays, in := open("198.51.100.1:443")
	list := w.p.Connections()
	if len(list) != 2 || list[0].Target != "good.test:443" || list[0].Rule.Name != "web" || list[0].Sent < 6 || list[1].Received == 0 {
		t.Errorf("%+v", list)
	}
	w.mu.Lock()
	w.policy = load(t, `network_rules: [{name: net, cidrs: [198.51.100.0/24], decision: allow}]`)
	w.mu.Unlock()
	w.p.Recheck()
	if _, err := gone.ReadByte(); err == nil {
		t.Error("it goes on")
	}
	_, _ = io.WriteString(stays, "more\n")
	if line, err := in.ReadString('\n'); err != nil || line != "you said more\n" {
		t.Errorf("%q %v", line, err)
	}
	w.wantDenial("good.test:443 by default")
	_ = stays.Close()
}

func TestConnectionsThatCannotBeRecordedAreRefused(t *testing.T) {
	w := newWorld(t, lookedInto, nil)
	w.place(w.web(false, hello("x")), "192.0.2.1", 80, "plain.test", "looked.test")
	w.mu.Lock()
	w.broken = errors.New("disk full")
	w.mu.Unlock()
	if code, body := w.get(w.client(false), "http://plain.test/"); code != 403 || !strings.Contains(body, "cannot be recorded") {
		t.Errorf("%d %s", code, body)
	}
	if _, _, code, _ := w.connect("plain.test:80"); code != 403 || len(w.dialled) > 0 {
		t.Errorf("%d %q", code, w.dialled)
	}
}

func TestRulesOfPrograms(t *testing.T) {
	var who atomic.Value
	who.Store("")
	w := newWorld(t, `network_rules: [{name: git, domains: [plain.test], binaries: [git], decision: allow}]`, func(o *Options) {
		o.Identify = func(net.Conn) (Caller, error) {
			exe := who.Load().(string)
			if exe == "" {
				return Caller{}, errors.New("gone")
			}
			return Caller{Command: "c1", Process: wire.Process{PID: 7, Exe: exe}}, nil
		}
	})
	w.place(w.web(false, hello("x")), "192.0.2.1", 80, "plain.test")
	for _, test := range []struct {
		exe  string
		code int
	}{{"/usr/bin/git", 200}, {"/usr/bin/curl", 403}, {"", 403}} {
		who.Store(test.exe)
		c := w.client(false)
		if code, body := w.get(c, "http://plain.test/"); code != test.code {
			t.Errorf("%q: %d %s", test.exe, code, body)
		}
		c.CloseIdleConnections()
	}
	if e := w.finished()[0]; e.Command != "c1" || e.Process.PID != 7 {
		t.Errorf("%+v", e)
	}
}

func TestTooManyConnectionsAndTooLongHeaders(t *testing.T) {
	w := newWorld(t, lookedInto, func(o *Options) { o.Limits = Limits{Connections: 2, HeaderBytes: 4096} })
	w.place(talker(t, ""), "192.0.2.1", 9, "plain.test")
	a, _, code, _ := w.connect("plain.test:9")
	b := w.raw()
	fmt.Fprintf(b, "CONNECT plain.test:9 HTTP/1.1\r\nX: %s\r\n\r\n", strings.Repeat("x", 9000))
	res, err := http.ReadResponse(bufio.NewReader(b), nil)
	if code != 200 || err != nil || res.StatusCode != 403 {
		t.Errorf("%d %v %v", code, res, err)
	}
	c, _, code, _ := w.connect("plain.test:9")
	d := w.raw()
	if _, err := d.Read(make([]byte, 1)); code == 200 && err == nil {
		t.Error("a third connection is served")
	}
	w.wantDenial("connection by connections: there are 2 connections open already")
	for _, conn := range []net.Conn{a, b, c, d} {
		_ = conn.Close()
	}
}

func TestBandwidthIsLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(1 << 20)
		start := time.Now()
		var wg sync.WaitGroup
		for range 4 { // both directions, several connections
			wg.Go(func() {
				for range 160 {
					b.take(t.Context(), 16<<10)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took < 9900*time.Millisecond || took > 10*time.Second {
			t.Errorf("10 MiB at 1 MiB/s took %s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		before := time.Now()
		b.take(ctx, 100<<20)
		if time.Since(before) > 0 {
			t.Error("who is gone waits")
		}
	})
	var none *bucket
	none.take(t.Context(), 1<<30)
}

func TestManyConnectionsAtOnce(t *testing.T) {
	w := newWorld(t, lookedInto, func(o *Options) { o.Bandwidth = 1 << 30 })
	w.place(w.web(true, hello("s")), "192.0.2.1", 443, "looked.test", "a.plain.test")
	w.place(w.web(false, hello("p")), "192.0.2.1", 80, "looked.test")
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			c := w.client(i%2 == 0)
			for _, u := range []string{"https://looked.test/a", "https://a.plain.test/b", "http://looked.test/c", "https://looked.test/admin/d"} {
				code, body := w.get(c, u)
				if want := map[bool]int{true: 403, false: 200}[strings.Contains(u, "admin")]; code != want {
					t.Errorf("%s: %d %s", u, code, body)
				}
			}
			c.CloseIdleConnections()
		})
	}
	wg.Wait()
	w.finished()
	if n := len(w.denials()); n != 24 {
		t.Errorf("%d denials", n)
	}
}
