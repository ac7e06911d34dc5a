package policy_test

import (
	"fmt"
	"testing"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

// What AllowsSignal says of a signal must hold for every request there can be.
func TestAllowsSignalSpeaksForEveryRequest(t *testing.T) {
	words := []string{"self", "children", "descendants", "siblings", "session", "parent", "system"}
	rule := func(n int, signals, target, decision string) string {
		extra := ""
		if decision == "redirect" {
			extra = ", redirect_to: SIGTERM"
		}
		return fmt.Sprintf("  - {name: r%d, signals: [%s], target: {%s}, decision: %s%s}\n", n, signals, target, decision, extra)
	}
	targets := []string{"type: session", "type: self", "type: descendants", "type: external", "type: user", "type: process, pattern: nginx",
		"type: session, pattern: 'a*'", "type: pid_range, min: 5, max: 7"}
	said := 0
	for _, first := range targets {
		for _, decision := range []string{"allow", "deny", "audit", "absorb", "redirect", "approve"} {
			for _, second := range targets {
				text := "version: 1\nname: s\nsignal_rules:\n" + rule(1, "USR1, 0", first, decision) + rule(2, "'@all'", second, "allow")
				p, err := syntax.Load(policy.Source{Name: "s.yaml", Data: []byte(text)}, syntax.Options{})
				if err != nil {
					t.Fatal(err)
				}
				for _, number := range []int{0, 9, 10, 64} {
					for _, word := range words {
						allowed, _ := p.AllowsSignal(number, word)
						if !allowed {
							continue
						}
						said++
						for _, q := range requests(number, word) {
							if d, _ := p.Evaluate(&q); d.Effect != policy.Allow {
								t.Fatalf("%s: signal %d to %s is said to be allowed and %+v is %v", text, number, word, q, d.Effect)
							}
						}
					}
				}
			}
		}
	}
	if said == 0 {
		t.Error("nothing was said to be allowed")
	}
}

// requests are those about one signal to one kind of target.
func requests(number int, word string) (out []policy.SignalRequest) {
	for _, name := range []string{"nginx", "abc", "zzz"} {
		for _, pid := range []int{4, 6, 100} {
			for _, same := range []bool{true, false} {
				out = append(out, policy.SignalRequest{Signal: number, Target: word, PID: pid, Name: name, SameUser: same})
			}
		}
	}
	return out
}

func TestAllowsSignalNamesTheRuleThatDecidesOtherwise(t *testing.T) {
	text := `version: 1
name: s
signal_rules:
  - {name: own, signals: ['@all'], target: {type: session}, decision: allow}
  - {name: rest, signals: [KILL], target: {type: external}, decision: deny}
`
	p, err := syntax.Load(policy.Source{Name: "s.yaml", Data: []byte(text)}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		number  int
		target  string
		allowed bool
		rule    string
	}{
		{9, "parent", true, ""}, {64, "siblings", true, ""}, {9, "system", false, "rest"}, {10, "system", false, ""},
		{65, "self", false, ""}, {-1, "self", false, ""}, {9, "nobody", false, ""},
	} {
		allowed, rule := p.AllowsSignal(c.number, c.target)
		name := ""
		if rule != nil {
			name = rule.Name
		}
		if allowed != c.allowed || name != c.rule {
			t.Errorf("signal %d to %s: %v, rule %q", c.number, c.target, allowed, name)
		}
	}
}
