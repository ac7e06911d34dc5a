package syntax_test

import (
	"fmt"

	"agentsh/policy"
	"agentsh/policy/syntax"
)

// All problems of a policy are returned at once, each with its position.
func ExampleLoad_problems() {
	file := policy.Source{Name: "wrong.yaml", Data: []byte("version: 1\nname: wrong\ncomand_rules: []\n")}
	_, err := syntax.Load(file, syntax.Options{})
	fmt.Println(err)
	// Output:
	// wrong.yaml:3:1: the policy has no key "comand_rules" (did you mean "command_rules"?)
}
