// Command judge reads what a suite printed and compares two runs of it.
//
//	judge parse SUITE DIR GROUP ...       prints lines of test and result
//	judge compare TABLE SUITE POLICY USER NATIVE SESSION
//
// compare prints each difference that the table does not list, and each entry of
// the table that no longer differs; either makes its exit status 1.
package main

import (
	"fmt"
	"os"
)

func main() {
	problems, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "judge:", err)
		os.Exit(2)
	}
	if problems > 0 {
		os.Exit(1)
	}
}

func run(args []string) (int, error) {
	switch {
	case len(args) >= 4 && args[0] == "parse":
		results, err := parseDir(args[1], args[2], args[3:])
		if err != nil {
			return 0, err
		}
		return 0, writeResults(os.Stdout, results)
	case len(args) == 7 && args[0] == "compare":
		return compareFiles(os.Stdout, args[1], where{suite: args[2], policy: args[3], user: args[4]}, args[5], args[6])
	}
	return 0, fmt.Errorf("usage: judge parse SUITE DIR GROUP ... | judge compare TABLE SUITE POLICY USER NATIVE SESSION")
}
