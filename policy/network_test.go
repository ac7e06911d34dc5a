package policy_test

import (
	"net/netip"
	"testing"

	"agentsh/policy"
)

func FuzzNetwork(f *testing.F) {
	f.Add("2852039166", "::ffff:a9fe:a9fe", "/a/../b")
	f.Add("Bücher.example.", "0x7f.1", "/%2e%2e/")
	f.Fuzz(func(t *testing.T, domain, addr, path string) {
		p := anyNetwork(t)
		address, _ := policy.ParseAddress(addr)
		d, _ := p.Evaluate(&policy.NetworkRequest{Domain: domain, Addr: address, Port: 80, Method: "GET", Path: path})
		if a, ok := policy.ParseAddress(addr); ok && policy.Guard(a) >= 0 && d.Permits() {
			t.Fatalf("%q %q is permitted", domain, addr)
		}
		if name, err := policy.NormalHost(domain); err == nil {
			if again, err := policy.NormalHost(name); err != nil || again != name {
				t.Fatalf("%q normalises to %q, then %q: %v", domain, name, again, err)
			}
		}
	})
}

func anyNetwork(t *testing.T) *policy.Policy {
	t.Helper()
	return load(t, "network_rules: [{name: all, domains: ['*'], decision: allow}]\n")
}

// The name localhost stands for two addresses of the many that reach this machine, and
// another name of one of them lifts no rule against it.
func TestLocalhostIsTwoAddresses(t *testing.T) {
	for _, test := range []struct {
		rules   string
		request policy.NetworkRequest
		permits bool
	}{
		{"{name: r, domains: [localhost], ports: [80], decision: allow}", policy.NetworkRequest{Addr: address(t, "127.0.0.1")}, true},
		{"{name: r, domains: [localhost], ports: [80], decision: allow}", policy.NetworkRequest{Addr: address(t, "::1")}, true},
		{"{name: r, domains: [localhost], ports: [80], decision: allow}", policy.NetworkRequest{Addr: address(t, "0.0.0.0")}, true},
		{"{name: r, domains: [localhost], ports: [80], decision: allow}", policy.NetworkRequest{Addr: address(t, "127.0.0.53")}, false},
		{"{name: r, domains: [localhost], ports: [80], decision: allow}", policy.NetworkRequest{Addr: address(t, "::ffff:127.0.0.2")}, false},
		{"{name: r, domains: [localhost], ports: [80], decision: allow}",
			policy.NetworkRequest{Domain: "localhost", Addr: address(t, "127.0.0.2")}, false},
		{denyLocalhost, policy.NetworkRequest{Domain: "vm", Addr: address(t, "127.0.0.1")}, false},
		{denyLocalhost, policy.NetworkRequest{Domain: "vm", Addr: address(t, "127.0.0.2")}, false},
		{denyLocalhost, policy.NetworkRequest{Addr: address(t, "127.0.0.1")}, false},
		{"{name: no, domains: [localhost, 192.0.2.1], decision: deny}, {name: r, domains: ['*'], cidrs: [127.0.0.0/8], decision: allow}",
			policy.NetworkRequest{Domain: "vm", Addr: address(t, "127.0.0.1")}, false},
		{"{name: r, cidrs: [127.0.0.0/8], decision: allow}, {name: no, domains: [localhost], decision: deny}",
			policy.NetworkRequest{Domain: "vm", Addr: address(t, "127.0.0.1")}, true},
	} {
		test.request.Port = 80
		if d, _ := load(t, "network_rules: ["+test.rules+"]\n").Evaluate(&test.request); d.Permits() != test.permits {
			t.Errorf("%s: %+v: permitted %v", test.rules, test.request, !test.permits)
		}
	}
}

const denyLocalhost = "{name: no, domains: [localhost], decision: deny}, {name: r, domains: ['*'], cidrs: [127.0.0.0/8], decision: allow}"

func address(t *testing.T, text string) netip.Addr {
	t.Helper()
	a, ok := policy.ParseAddress(text)
	if !ok {
		t.Fatal(text)
	}
	return a
}
