package policy_test

import (
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
