// Package lazy compiles regular expressions when they are first used. A program starts
// faster without those that it does not use.
package lazy

import (
	"regexp"
	"sync"
)

// Regexp returns a function that compiles an expression in its first call, and returns the
// same result in each. It panics if the expression is wrong, like [regexp.MustCompile].
func Regexp(expression string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
}
