package policy_test

import (
	"net/netip"
	"strings"
	"testing"

	"agentsh/policy"
	"agentsh/policy/internal/fixture"
)

func TestAHostHasOneSpelling(t *testing.T) {
	long := strings.Repeat("a", 63)
	for text, want := range map[string]string{
		"example.com": "example.com", "EXAMPLE.com.": "example.com", "ｅxample。com": "example.com",
		"Bücher.example": "xn--bcher-kva.example", "xn--bcher-kva.example": "xn--bcher-kva.example",
		"a_b.example": "a_b.example", long + ".example": long + ".example",
		"127.0.0.1": "127.0.0.1", "127.1": "127.0.0.1", "2130706433": "127.0.0.1", "0x7f.1": "127.0.0.1", "0177.0.0.1": "127.0.0.1",
		"0x7f000001": "127.0.0.1", "127.0.0.1.": "127.0.0.1", "[::1]": "::1", "::ffff:127.0.0.1": "127.0.0.1",
		"::ffff:7f00:1": "127.0.0.1", "fe80::1%eth0": "fe80::1", "１２７.0.0.1": "127.0.0.1",
		"": "", ".": "", "..": "", "a..b": "", "a.com..": "", ".a.com": "", "a b": "", "a\x00.example.com": "", "a\n.com": "",
		"a/b.com": "", "user@host": "", "a%2ecom": "", "a:80": "", "1.2.3.4.5": "", "256.1.1.1": "", "1.2.3.0x": "1.2.3.0", "a.09": "",
		"host.1": "", "host.0x1": "", long + "a.example": "", strings.Repeat(long+".", 4) + "com": "", "a;b.com": "", `a\b.com`: "",
		"[::1": "::1", "xn--": "", "0x100000000": "",
	} {
		host, err := policy.ParseHost(text)
		if host.String() != want && (want != "" || err == nil) || (err != nil) != (want == "") {
			t.Errorf("%q is %q (%v), want %q", text, host, err, want)
		}
	}
	if h := policy.HostOf(netip.MustParseAddr("::ffff:10.0.0.1")); h.String() != "10.0.0.1" || h.Name() != "" {
		t.Errorf("%v", h)
	}
}

func FuzzParseHost(f *testing.F) {
	for _, s := range []string{"Example.COM.", "0x7f.1", "xn--bcher-kva.de", "::ffff:1.2.3.4", "a\x00b", "1.2.3.4.5", "｡", "ß.de"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		host, err := policy.ParseHost(text)
		if err != nil {
			if host != (policy.Host{}) {
				t.Fatalf("%q: %v with an error", text, host)
			}
			return
		}
		if (host.Name() == "") == !host.Addr().IsValid() {
			t.Fatalf("%q is %+v", text, host)
		}
		shown := host.String()
		if again, err := policy.ParseHost(shown); err != nil || again != host {
			t.Fatalf("%q is %q, then %q: %v", text, host, again, err)
		}
		if strings.Trim(shown, "abcdefghijklmnopqrstuvwxyz0123456789-_.:") != "" || host.Addr().Is4In6() || host.Addr().Zone() != "" {
			t.Fatalf("%q is %q", text, shown)
		}
	})
}

func TestNamesAreLookedUpWhenARuleCouldPermitThem(t *testing.T) {
	p := load(t, `
network_rules:
  - {name: evil, domains: ["evil.example"], decision: deny}
  - {name: no-writes, domains: [api.example], methods: [POST], decision: deny}
  - {name: api, domains: [api.example], ports: [443], decision: allow}
  - {name: narrow, domains: [in.example], cidrs: [10.0.0.0/8], decision: allow}
  - {name: git, domains: [git.example], binaries: [git], decision: allow}
  - {name: ask, domains: ["*.ask.example"], decision: approve}
  - {name: nets, cidrs: [192.0.2.0/24], decision: allow}
  - {name: ask-private, domains: ["*.home.example"], cidrs: [10.0.0.0/8], decision: approve}
  - {name: ask-ssh, domains: ["*.home.example"], ports: [22], decision: approve}
  - {name: no-cam, domains: [cam.home.example], decision: deny}
  - {name: home, domains: [nas.home.example], decision: audit}
`)
	for _, test := range []struct{ name, binary, want string }{
		{"evil.example", "/bin/a", "deny by evil"}, {"api.example", "", "allow by api"}, {"in.example", "", "allow by narrow"},
		{"git.example", "/usr/bin/git", "allow by git"}, {"git.example", "/usr/bin/curl", "deny by default"}, {"git.example", "",
			"deny by default"},
		{"x.ask.example", "", "approve by ask"}, {"other.example", "", "deny by default"},
		{"nas.home.example", "", "audit by home"}, {"cam.home.example", "", "approve by ask-private"},
		{"tv.home.example", "", "approve by ask-private"},
	} {
		host, err := policy.ParseHost(test.name)
		if err != nil {
			t.Fatal(err)
		}
		d, g := policy.Lookup(p, host, test.binary)
		if got := d.Effect.String() + " by " + g.Rule; got != test.want || !d.Permits() && g.Message == "" {
			t.Errorf("%s: %s (%+v), want %s", test.name, got, g, test.want)
		}
	}
	if d, _ := policy.Lookup(p, policy.HostOf(netip.MustParseAddr("192.0.2.1")), ""); d.Permits() {
		t.Error("an address is a name")
	}
	name, err := policy.ParseHost("a.example")
	if err != nil {
		t.Fatal(err)
	}
	if d, _ := policy.Lookup(anyNetwork(t), name, ""); !d.Permits() {
		t.Error("a rule for everything permits no name")
	}
}

func TestWhichConnectionsAreInspected(t *testing.T) {
	p := load(t, `
network_rules:
  - {name: first, domains: [plain.example], decision: allow}
  - {name: no-writes, domains: ["*"], methods: [POST], ports: [443], decision: deny}
  - {name: all, domains: ["*"], decision: allow}
`)
	for _, test := range []struct {
		name string
		port int
		want bool
	}{{"plain.example", 443, false}, {"a.example", 443, true}, {"a.example", 80, false}, {"a b", 443, false}} {
		q := &policy.NetworkRequest{Domain: test.name, Addr: netip.MustParseAddr("192.0.2.1"), Port: test.port, Protocol: "tcp"}
		if got := p.Inspects(q); got != test.want {
			t.Errorf("%+v: %v", test, got)
		}
	}
	if !p.InspectsAny() || anyNetwork(t).InspectsAny() {
		t.Error("whether any is inspected")
	}
}

func TestPrivateAddressesNeedTheirNetworkNamed(t *testing.T) {
	p := load(t, `
network_rules:
  - {name: both, domains: [in.example], cidrs: [10.0.0.0/8], decision: allow}
  - {name: wide, cidrs: [192.0.0.0/8], decision: allow}
  - {name: all, domains: ["*"], decision: allow}
`)
	for _, test := range []struct{ name, addr, want string }{
		{"in.example", "10.1.2.3", "allow by both"}, {"out.example", "10.1.2.3", "deny by default"}, {"", "192.168.1.1", "deny by default"},
		{"", "100.64.0.1", "deny by default"}, {"a.example", "fd00::1", "deny by default"}, {"a.example", "64:ff9b::a00:1", "deny by default"},
		{"a.example", "2002:a00:1::1", "deny by default"}, {"", "172.32.0.1", "allow by all"}, {"", "192.169.0.1", "allow by wide"},
	} {
		addr, _ := policy.ParseAddress(test.addr)
		fixture.Expect(t, p, &policy.NetworkRequest{Domain: test.name, Addr: addr, Port: 443, Protocol: "tcp"}, test.want)
	}
}

func TestAnAddressIsForbiddenWhenNeitherItNorANameIsPermitted(t *testing.T) {
	p := load(t, `
network_rules:
  - {name: evil, domains: [evil.example], decision: deny}
  - {name: web, domains: [a.example], ports: [443], decision: allow}
  - {name: ask, domains: [ask.example], decision: approve}
  - {name: net, cidrs: [198.51.100.0/24], decision: allow}
  - {name: api, domains: [api.example], methods: [GET], decision: allow}
`)
	for _, test := range []struct {
		addr, names, want, name string
		direct                  bool
	}{
		{"192.0.2.1", "", "deny by default", "", false},
		{"192.0.2.1", "evil.example", "deny by default", "", false},
		{"192.0.2.1", "evil.example a.example", "allow by web", "a.example", false},
		{"192.0.2.1", "ask.example a.example", "allow by web", "a.example", false},
		{"192.0.2.1", "evil.example ask.example", "approve by ask", "ask.example", false},
		{"192.0.2.1", "api.example", "allow by api", "api.example", false},
		{"198.51.100.1", "a.example", "allow by web", "a.example", true},
		{"198.51.100.1", "evil.example", "allow by net", "", true},
		{"10.0.0.1", "a.example", "deny by default", "", false},
	} {
		q := &policy.HostRequest{Host: policy.HostOf(netip.MustParseAddr(test.addr)), Port: 443}
		for _, name := range strings.Fields(test.names) {
			q.Names = append(q.Names, policy.HostName{Name: name})
		}
		d := p.EvaluateHost(q)
		got := d.Effect.String() + " by " + d.Diagnostic.Rule
		if got != test.want || d.Name != test.name || d.Direct != test.direct || d.Forbidden() != (d.Effect == policy.Deny) {
			t.Errorf("%s (%s): %s, name %q, direct %v", test.addr, test.names, got, d.Name, d.Direct)
		}
	}
}
