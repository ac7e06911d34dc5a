package env

import (
	"fmt"
	"slices"
	"strings"

	"agentsh/policy/glob"
)

// Filter has env_policy and the env_* keys of a command rule, which select
// variables of the request. Patterns are [glob.Text] patterns and
// case-sensitive. An invalid pattern in Allow matches nothing, one in Deny
// matches everything.
type Filter struct {
	Source   string   // name of the filter in reasons, for example "env_policy"
	Allow    []string // nil: everything but the built-in drop list
	Deny     []string // has precedence over Allow
	MaxBytes int      // total size of the allowed "NAME=value" in bytes; 0: not limited
	MaxKeys  int      // number of allowed variables; 0: not limited

	and []Filter // each must allow a variable too
}

// Merge returns the stricter combination of two filters. A variable must pass
// both, and every limit applies.
func (f Filter) Merge(g Filter) Filter {
	f.and = append(slices.Clone(f.and), g)
	return f
}

// Refuses returns why a variable of a request would be dropped, whatever its
// value. It is empty if the variable passes.
func (f Filter) Refuses(name string) string {
	_, reason := f.decide(name)
	return reason
}

// decide checks one name of a request. It returns either the rule that allows
// it or the reason why it is dropped.
func (f Filter) decide(name string) (rule, reason string) {
	if reason := fixedReason(name); reason != "" {
		return "", reason
	}
	if reason, denied := f.denies(name); denied {
		return "", reason
	}
	return f.allowsAll(name)
}

// allowsAll is allows of f and of every merged filter.
func (f Filter) allowsAll(name string) (rule, reason string) {
	rule, reason = f.allows(name)
	for _, g := range f.and {
		if reason != "" {
			break
		}
		var also string
		if also, reason = g.allowsAll(name); f.Allow == nil {
			rule = also
		}
	}
	if reason != "" {
		return "", reason
	}
	return rule, ""
}

// Denies returns why a variable of a file would be dropped: the allow list does not bind it. It is empty if the variable passes.
func (f Filter) Denies(name string) string {
	reason, _ := f.denies(name)
	return reason
}

func (f Filter) denies(name string) (reason string, denied bool) {
	for _, p := range f.Deny {
		if matchName(p, name, true) {
			return "denied by " + f.source() + " pattern " + p, true
		}
	}
	for _, g := range f.and {
		if reason, denied = g.denies(name); denied {
			return reason, true
		}
	}
	return "", false
}

// allows applies one allow list. A pattern "*" allows the same names as an
// absent list. A variable of the drop list therefore needs a more specific
// pattern.
func (f Filter) allows(name string) (rule, reason string) {
	everything := f.Allow == nil
	for _, p := range f.Allow {
		if p == "*" {
			everything = true
			continue
		}
		if matchName(p, name, false) {
			return f.source() + " pattern " + p, ""
		}
	}
	if !everything {
		return "", "not in the allow list of " + f.source()
	}
	if why := builtin(name); why != "" {
		return "", why
	}
	return "not on the built-in drop list", ""
}

func (f Filter) source() string {
	if f.Source == "" {
		return "env_policy"
	}
	return f.Source
}

// fits checks the limits.
func (f Filter) fits(bytes, keys int) error {
	if f.MaxBytes > 0 && bytes > f.MaxBytes {
		return fmt.Errorf("the request sets %d bytes of variables, %s allows %d", bytes, f.source(), f.MaxBytes)
	}
	if f.MaxKeys > 0 && keys > f.MaxKeys {
		return fmt.Errorf("the request sets %d variables, %s allows %d", keys, f.source(), f.MaxKeys)
	}
	for _, g := range f.and {
		if err := g.fits(bytes, keys); err != nil {
			return err
		}
	}
	return nil
}

// matchName matches a pattern against a variable name. unread is the result for
// an invalid pattern. Patterns that have only text, * and ? are matched without
// compiling. Most policies have no others.
func matchName(pattern, name string, unread bool) bool {
	if strings.ContainsAny(pattern, `{}[]\`) {
		g, err := glob.Compile(glob.Text, pattern)
		if err != nil {
			return unread
		}
		return g.Match(name)
	}
	return matchStars(pattern, name)
}

func matchStars(pattern, name string) bool {
	p, n, star, mark := 0, 0, -1, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, mark = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			mark++
			p, n = star+1, mark
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
