// Package env builds the environment of one command from ordered layers. It is
// the only place that does. It also reads and writes .env files.
package env

// Var is one variable.
type Var struct{ Name, Value string }

// Filter is what env_policy and a rule's env_* allow through from the request.
type Filter struct {
	Allow    []string // globs; nil: everything but the built-in drop list
	Deny     []string // globs; deny beats allow
	MaxBytes int      // total of names and values in bytes; 0: not limited
	MaxKeys  int      // number of variables; 0: not limited
}
