package env

import (
	"fmt"
	"slices"
	"strings"

	"agentsh/policy/glob"
)

// Filter decides which variables of a request reach a command. env_policy and
// the env_* keys of a rule make one. Patterns are those of [glob.Text] and are
// case-sensitive. A pattern that cannot be compiled denies in a deny list, and
// allows nothing in an allow list.
type Filter struct {
	Source   string   // shown in reasons, for example "env_policy"
	Allow    []string // nil: everything but the built-in drop list
	Deny     []string // beats Allow
	MaxBytes int      // of "NAME=value" let through, in bytes; 0: not limited
	MaxKeys  int      // of variables let through; 0: not limited

	and []Filter // each must let a variable through as well
}

// Merge returns the stricter filter: it drops what f or g drops, and applies
// the smaller of each limit.
func (f Filter) Merge(g Filter) Filter {
	f.and = append(slices.Clone(f.and), g)
	return f
}

// Refuses returns why a variable of a request would be dropped, whatever its
// value. It is empty for an allowed name.
func (f Filter) Refuses(name string) string {
	_, reason := f.decide(name)
	return reason
}

// decide decides on one name of a request. Either rule allows it, or reason
// says why it is dropped.
func (f Filter) decide(name string) (rule, reason string) {
	if reason := fixedReason(name); reason != "" {
		return "", reason
	}
	if reason, denied := f.denies(name); denied {
		return "", reason
	}
	return f.allowsAll(name)
}

// allowsAll applies the allow lists of f and of every filter merged into it.
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

// allows applies one allow list. A lone * allows the same as no list: a
// variable of the drop list needs a pattern that names it.
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
		return "the filter"
	}
	return f.Source
}

// fits checks the limits of the filter.
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
// an unreadable pattern. A pattern with no other wildcards than * and ? is
// matched without compiling it.
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
