package policy_test

import (
	"fmt"
	"testing"
)

func TestWaysOutAreThoseThatARuleMayAllow(t *testing.T) {
	for rules, want := range map[string]string{
		"":                    "[] false",
		"network_rules: []\n": "[] false",
		"network_rules: [{name: a, domains: [example.com], ports: [443], decision: allow}]\n":              "[{invalid Prefix false [{443 443}]}] true",
		"network_rules: [{name: a, domains: [example.com], decision: deny}]\n":                             "[] false",
		"network_rules: [{name: a, domains: [db.internal], cidrs: [10.1.0.0/16], decision: approve}]\n":    "[{10.1.0.0/16 false []}] true",
		"network_rules: [{name: a, domains: [192.0.2.7], ports: [80], decision: allow}]\n":                 "[{192.0.2.7/32 false [{80 80}]}] false",
		"network_rules: [{name: a, cidrs: [10.0.0.0/8], decision: allow}]\n":                               "[{10.0.0.0/8 false []}] false",
		"defaults: {network: allow}\nnetwork_rules: [{name: a, domains: [example.com], decision: deny}]\n": "[{invalid Prefix true []}] true",
	} {
		ways, names := load(t, rules).Ways()
		if got := fmt.Sprint(ways, names); got != want {
			t.Errorf("%s: %s, want %s", rules, got, want)
		}
	}
}
