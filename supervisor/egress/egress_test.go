package egress

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

const simple = `
network_rules:
  - {name: no-evil, domains: [evil.test], decision: deny, message: evil is not for you}
  - {name: web, domains: [good.test, "*.good.test"], ports: [80, 443], decision: allow}
  - {name: net, cidrs: [198.51.100.0/24], decision: allow}
`

func TestAllowedHostsAreReachedAndOthersReadTheReason(t *testing.T) {
	w := newWorld(t, simple, nil)
	w.place(w.web(true, hello("secure")), "192.0.2.1", 443, "good.test")
	w.place(w.web(false, hello("plain")), "192.0.2.1", 80, "good.test", "evil.test")
	c := w.client(true)
	if code, body := w.get(c, "https://good.test/a?b=c"); code != 200 || body != "secure HTTP/2.0 good.test /a?b=c" {
		t.Errorf("%d %s", code, body)
	}
	if code, body := w.get(c, "http://good.test/a?b=c;d&e=%zz"); code != 200 || body != "plain HTTP/1.1 good.test /a?b=c;d&e=%zz" {
		t.Errorf("%d %s", code, body)
	}
	code, body := w.get(c, "http://evil.test/")
	for _, part := range []string{"evil is not for you", "no-evil, p.yaml:5:5", "hint: allowed destinations: good.test"} {
		if code != 403 || !strings.Contains(body, part) {
			t.Errorf("%d %s lacks %q", code, body, part)
		}
	}
	_, _, code, body = w.connect("evil.test:443")
	if code != 403 || !strings.Contains(body, "no-evil, p.yaml:5:5") {
		t.Errorf("%d %s", code, body)
	}
	if _, _, code, _ := w.connect("good.test:22"); code != 403 {
		t.Errorf("a port that no rule allows: %d", code)
	}
	c.CloseIdleConnections()
	var ends int
	for _, e := range w.finished() {
		if e.Phase == "end" {
			ends++
			if e.Rule == nil || e.Rule.Name != "web" || e.Net.Sent == 0 || e.Net.Received == 0 || !strings.HasPrefix(e.Net.Address, "192.0.2.1:") {
				t.Errorf("%+v %+v", e, e.Net)
			}
		}
		if e.Decision == "deny" && (e.Rule == nil || e.Message == "") {
			t.Errorf("%+v", e)
		}
	}
	if ends != 2 || len(w.denials()) != 3 {
		t.Errorf("%d ends, %q", ends, w.denials())
	}
	if strings.Contains(strings.Join(w.lookups, " "), "evil") {
		t.Errorf("looked up: %q", w.lookups)
	}
}

func TestSpellingsOfHostsThatAreRefused(t *testing.T) {
	w := newWorld(
		t,
		`network_rules: [{name: all, domains: ["*"], decision: allow}, {name: local, cidrs: [127.0.0.1/32], ports: [9], decision: allow}]`,
		nil,
	)
	real := w.web(false, hello("inside"))
	for _, a := range []string{"127.0.0.1", "169.254.169.254", "10.0.0.1", "192.168.1.1", "::1", "fe80::1", "fd00::1", "0.0.0.0",
		"100.64.0.1", "224.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "255.255.255.255"} {
		w.place(real, a, 80)
	}
	w.place(real, "169.254.169.254", 80, "rebound.test")
	w.place(real, "127.0.0.1", 80, "localhost", "local.test")
	w.place(real, "10.0.0.1", 80, "private.test")
	for _, host := range []string{
		"127.0.0.1", "127.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.0.0.1.", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]",
		"169.254.169.254", "2852039166", "0xa9fea9fe", "0251.0376.0251.0376", "169.254.43518", "[::ffff:a9fe:a9fe]", "[64:ff9b::a9fe:a9fe]",
		"[2002:7f00:1::]",
		"10.0.0.1", "10.1", "192.168.257", "[fe80::1%25eth0]", "[fe80::1]", "[fd00::1]", "0", "0.0.0.0", "[::]", "100.64.0.1", "224.0.0.1",
		"255.255.255.255",
		"rebound.test", "localhost", "LOCALHOST.", "local.test", "private.test", "１２７.0.0.1", "①②⑦.0.0.1",
		"1.2.3.4.5", "256.1.1.1", "a..test", "a%00.test", "a\x00.test", "good.test\x00.evil.test", "a test", "a/b", "user@a.test", "a.test#b", "",
	} {
		_, _, code, body := w.connect(host + ":80")
		if code != 403 && code != 502 && code != 0 || code == 200 {
			t.Errorf("%q: %d %s", host, code, body)
		}
	}
	for _, dialled := range w.dialled {
		t.Errorf("dialled %s", dialled)
	}
	for i, d := range w.denials() {
		if strings.HasSuffix(d, ": ") {
			t.Errorf("%d: %s has no reason", i, d)
		}
	}
}

func TestOnlyJudgedAddressesAreDialled(t *testing.T) {
	w := newWorld(t, simple, nil)
	real := w.web(false, hello("x"))
	w.place(real, "10.0.0.1", 80, "mixed.good.test")
	w.place(real, "192.0.2.7", 80, "mixed.good.test")
	if code, _ := w.get(w.client(false), "http://mixed.good.test/"); code != 200 || strings.Join(w.dialled, " ") != "192.0.2.7:80" {
		t.Errorf("%d %q", code, w.dialled)
	}
	// The name now leads inside: what is kept is kept, a new answer is judged.
	w.mu.Lock()
	w.names["later.good.test"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	w.servers["127.0.0.1:80"] = real
	w.mu.Unlock()
	if code, body := w.get(w.client(false), "http://later.good.test/"); code != 403 || !strings.Contains(body, "loopback") {
		t.Errorf("%d %s", code, body)
	}
}

func TestServerNamesAndHostsMustAgree(t *testing.T) {
	w := newWorld(t, simple+`  - {name: looked, domains: [looked.test], methods: [GET], decision: allow}`+"\n", nil)
	w.place(w.web(true, hello("s")), "192.0.2.1", 443, "good.test", "a.good.test", "looked.test")
	w.place(w.web(false, hello("p")), "192.0.2.1", 80, "good.test", "a.good.test")
	w.place(w.web(true, hello("n")), "198.51.100.1", 443)
	pool := w.roots.Clone()
	pool.AppendCertsFromPEM(w.p.CA())
	shake := func(to, name string) error {
		c, _, code, body := w.connect(to)
		if code != 200 {
			return fmt.Errorf("%d %s", code, body)
		}
		config := &tls.Config{RootCAs: pool, ServerName: name, InsecureSkipVerify: name == ""}
		tc := tls.Client(c, config)
		if err := tc.Handshake(); err != nil {
			return err
		}
		host := name
		if host == "" {
			host, _, _ = net.SplitHostPort(to)
		}
		fmt.Fprintf(tc, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", host)
		b, err := io.ReadAll(tc)
		if err == nil && !strings.HasPrefix(string(b), "HTTP/1.1 200") {
			err = fmt.Errorf("%s", b)
		}
		return err
	}
	for _, test := range []struct {
		to, name string
		good     bool
	}{
		{"good.test:443", "good.test", true}, {"good.test:443", "GOOD.test", true}, {"good.test:443", "a.good.test", false},
		{"good.test:443", "evil.test", false}, {"good.test:443", "", false}, {"looked.test:443", "good.test", false}, {"looked.test:443",
			"looked.test", true},
		{"198.51.100.1:443", "", true}, {"198.51.100.1:443", "whatever.test", true}, {"198.51.100.1:443", "evil.test", false},
		{"192.0.2.1:443", "good.test", false},
	} {
		if err := shake(test.to, test.name); (err == nil) != test.good {
			t.Errorf("%s as %q: %v", test.to, test.name, err)
		}
	}
	w.wantDenial("the connection is to good.test:443 but asks for evil.test")
	w.wantDenial("names no server")
	// HTTP in a tunnel, each request of it.
	for _, test := range []struct {
		to, host string
		good     bool
	}{
		{"good.test:80", "good.test", true}, {"good.test:80", "good.test:80", true}, {"good.test:80", "good.test:8080", false},
		{"good.test:80", "a.good.test", false},
		{"good.test:80", "evil.test", false}, {"good.test:80", "evil.test\x00", false},
	} {
		c, in, code, body := w.connect(test.to)
		if code != 200 {
			t.Errorf("%v: %d %s", test, code, body)
			continue
		}
		fmt.Fprintf(c, "GET /1 HTTP/1.1\r\nHost: good.test\r\n\r\n")
		res, err := http.ReadResponse(in, nil)
		if err != nil || res.StatusCode != 200 {
			t.Errorf("%v: %v", test, err)
			continue
		}
		_, _ = io.Copy(io.Discard, res.Body)
		fmt.Fprintf(c, "GET /2 HTTP/1.1\r\nHost: %s\r\n\r\n", test.host)
		res, err = http.ReadResponse(in, nil)
		if err != nil || (res.StatusCode == 200) != test.good {
			t.Errorf("%v: %v %v", test, res, err)
		}
		_ = c.Close()
	}
}
