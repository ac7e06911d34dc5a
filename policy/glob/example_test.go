package glob_test

import (
	"fmt"

	"agentsh/policy/glob"
)

// In a path, one star stays within one component and two cross them.
func ExampleGlob_Match() {
	for _, pattern := range []string{"/work/*.go", "/work/**"} {
		g, err := glob.Compile(glob.Path, pattern)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(pattern, g.Match("/work/a.go"), g.Match("/work/b/a.go"))
	}
	// Output:
	// /work/*.go true false
	// /work/** true true
}
