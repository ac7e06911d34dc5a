package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// Programs ask about the session itself without meaning to. That makes no event, asks
// nobody, and tells them what is true inside. What is not an address is refused without
// asking anybody.
func TestLookupsOfTheSessionItself(t *testing.T) {
	const (
		ok      = dnsmessage.RCodeSuccess
		none    = dnsmessage.RCodeNameError
		refused = dnsmessage.RCodeRefused
		a       = dnsmessage.TypeA
		aaaa    = dnsmessage.TypeAAAA
		ptr     = dnsmessage.TypePTR
		loop6   = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.ip6.arpa."
	)
	var asked atomic.Int32
	w := newWorld(t, `network_rules:
  - {name: no-evil, domains: [evil.test], decision: deny}
  - {name: others, domains: ['*'], decision: approve}
`, func(o *Options) {
		o.HostName = "sandbox"
		o.Approve = func(context.Context, wire.Question) wire.Answer { asked.Add(1); return wire.Answer{} }
	})
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.1.1 laptop\n10.0.0.5 db\n::1 ip6-localhost\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.p.judge.names.hosts = &hostsFile{path: hosts}
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- w.p.ServeDNS(udp, nil) }()
	for _, test := range []struct {
		name   string
		kind   dnsmessage.Type
		code   dnsmessage.RCode
		addrs  string
		events int // refusals
		asked  int32
	}{
		{"localhost.", a, ok, "[127.0.0.1]", 0, 0},
		{"LocalHost.", aaaa, ok, "[::1]", 0, 0},
		{"app.localhost.", aaaa, ok, "[::1]", 0, 0},
		{"localhost.", typeHTTPS, ok, "[]", 0, 0},
		{"localhost.", dnsmessage.TypeMX, ok, "[]", 0, 0},
		{"sandbox.", a, ok, "[127.0.0.1]", 0, 0},
		{"sandbox.", aaaa, ok, "[]", 0, 0},
		{"laptop.", aaaa, ok, "[]", 0, 0},
		{"laptop.", a, ok, "[127.0.1.1]", 0, 0},
		{"ip6-localhost.", a, ok, "[]", 0, 0},
		{"1.0.0.127.in-addr.arpa.", ptr, none, "[]", 0, 0},
		{"5.0.0.10.in-addr.arpa.", ptr, none, "[]", 0, 0},
		{"1.1.168.192.in-addr.arpa.", ptr, none, "[]", 0, 0},
		{loop6, ptr, none, "[]", 0, 0},
		{"1.2.0.192.in-addr.arpa.", ptr, refused, "[]", 1, 0},
		{"secret.in-addr.arpa.", ptr, refused, "[]", 1, 0},
		{"0.0.ip6.arpa.", ptr, refused, "[]", 1, 0},
		{"x.1.0.0.127.in-addr.arpa.", ptr, refused, "[]", 1, 0},
		{"_http._tcp.good.test.", dnsmessage.TypeSRV, refused, "[]", 1, 0},
		{"good.test.", dnsmessage.TypeTXT, refused, "[]", 1, 0},
		{"evil.test.", dnsmessage.TypeTXT, refused, "[]", 1, 0},
		{"db.", a, refused, "[]", 1, 1},
		{"xlocalhost.", a, refused, "[]", 1, 1},
		{"localhost.test.", a, refused, "[]", 1, 1},
		{"good.test.", a, refused, "[]", 1, 1},
	} {
		before := len(w.denials())
		asked.Store(0)
		code, got := query(t, udp.LocalAddr(), test.name, test.kind)
		if code != test.code || fmt.Sprint(got) != test.addrs {
			t.Errorf("%s %s: %v %v", test.name, test.kind, code, got)
		}
		if events := len(w.denials()) - before; events != test.events || asked.Load() != test.asked {
			t.Errorf("%s %s: %d refusals, a person was asked %d times", test.name, test.kind, events, asked.Load())
		}
	}
	if len(w.lookups) > 0 {
		t.Errorf("name servers of the machine were asked for %q", w.lookups)
	}
	_ = udp.Close()
	if err := <-served; errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

// A rule that permits localhost has the answer of the machine, which its services need.
func TestAPermittedLocalhostIsLookedUp(t *testing.T) {
	w := newWorld(t, "network_rules: [{name: own, domains: [localhost], decision: allow}]", nil)
	host, err := policy.ParseHost("localhost")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, known := w.p.local(origin{}, host, dnsmessage.TypeA); known {
		t.Error("the rule does not come first")
	}
}

func TestLocalhostHasTheAddressesOfTheHostsFile(t *testing.T) {
	w := newWorld(t, "network_rules: [{name: own, domains: [own.test], decision: allow}]", nil)
	hosts := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hosts, []byte("127.0.0.1 localhost\n10.0.0.6 wrong.localhost\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.p.judge.names.hosts = &hostsFile{path: hosts}
	for _, name := range []string{"localhost", "app.localhost", "wrong.localhost"} {
		if got := fmt.Sprint(w.p.localAddrs(name)); got != "[127.0.0.1]" {
			t.Errorf("%s has %s, where the file has IPv4 alone", name, got)
		}
	}
}
