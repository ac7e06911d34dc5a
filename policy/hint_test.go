package policy_test

import "testing"
import (
	"agentsh/policy"
	"agentsh/policy/syntax"
)

func TestAHintDoesNotSayThatAllOthersAreAllowed(t *testing.T) {
	p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte(`version: 1
name: x
command_rules:
  - {name: no, commands: [kill], decision: deny}
  - {name: rest, commands: ['*'], decision: allow}
`)}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	_, d := p.Evaluate(&policy.CommandRequest{Program: policy.Program{Called: "kill", Path: "/usr/bin/kill"}, Argv: []string{"kill"}})
	if d.Rule != "no" || d.Hint != "" {
		t.Errorf("rule %q, hint %q", d.Rule, d.Hint)
	}
}
