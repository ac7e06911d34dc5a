package env_test

import (
	"fmt"

	"agentsh/policy/env"
)

// The filter applies to the variables of the request. The operator's values
// come last and win.
func ExampleBuild() {
	result, err := env.Build(env.Layers{
		Baseline: []env.Var{{Name: "HOME", Value: "/home/sandbox"}},
		Request:  []string{"GOFLAGS=-mod=mod", "API_KEY=x", "BASH_ENV=/tmp/mine.sh"},
		Filter:   env.Filter{Source: "env_policy", Allow: []string{"GO*"}},
		Inject:   []env.Inject{{Source: "policy", Vars: map[string]string{"BASH_ENV": "/usr/lib/agentsh/bash_startup.sh"}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i, entry := range result.Env {
		fmt.Println(entry, "from", result.Origins[i].Layer)
	}
	for _, d := range result.Dropped {
		fmt.Println("dropped", d.Name)
	}
	// Output:
	// BASH_ENV=/usr/lib/agentsh/bash_startup.sh from env_inject
	// GOFLAGS=-mod=mod from request
	// HOME=/home/sandbox from baseline
	// dropped API_KEY
	// dropped BASH_ENV
}

// A .env file is read as data: nothing is expanded and nothing is run. Text that
// a shell would expand is an error with its position.
func ExampleParse() {
	vars, err := env.Parse("example.env", []byte("export NAME='a value'\nLEVEL=3 # a comment\n"))
	fmt.Println(vars, err)
	_, err = env.Parse("example.env", []byte("LIKE=$HOME/bin\n"))
	fmt.Println(err)
	// Output:
	// [{NAME a value} {LEVEL 3}] <nil>
	// example.env:1:6: $ would be expanded by a shell: nothing is expanded here, write it in single quotes
}
