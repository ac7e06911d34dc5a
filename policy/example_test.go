package policy_test

import (
	"fmt"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

// A policy is loaded once. Then each request is evaluated: the first rule that
// matches decides, and what no rule names is denied.
func Example() {
	file := policy.Source{Name: "example.yaml", Data: []byte(`version: 1
name: example
command_rules:
  - name: no-force-push
    commands: [git]
    args: [push, '**', '--force|-f']
    decision: deny
    message: push to a new branch
  - name: tools
    commands: [git, ls]
    decision: allow
`)}
	p, err := syntax.Load(file, syntax.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, argv := range [][]string{{"git", "status"}, {"git", "push", "-f"}, {"curl", "example.com"}} {
		request := &policy.CommandRequest{
			Program: policy.Program{Called: argv[0], Path: "/usr/bin/" + argv[0], Names: []string{"/usr/bin/" + argv[0]}},
			Argv:    argv,
		}
		decision, why := p.Evaluate(request)
		fmt.Println(argv, decision.Permits(), why.Rule, why.Pos.Line)
	}
	// Output:
	// [git status] true tools 9
	// [git push -f] false no-force-push 4
	// [curl example.com] false default 0
}
