package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"agentsh/policy/glob"
)

// maxLinted is how many rules of a group are compared pair by pair.
const maxLinted = 3000

// linter collects warnings.
type linter struct {
	p        *Policy
	problems Problems
}

// Lint looks for what loads but is probably not meant: rules that are never
// reached, permits before denials, argument patterns with holes, denied
// programs whose effect an allowed one has, and settings that mean something
// else here than elsewhere. Every problem is a warning with a Code.
func Lint(p *Policy) []Problem {
	l := &linter{p: p}
	for g := range groupCount {
		l.names(Group(g))
		l.order(Group(g))
	}
	l.openDirectories()
	l.arguments()
	l.reach()
	l.meaning()
	return l.problems.sorted()
}

func (l *linter) warn(rule *Rule, code, hint, format string, args ...any) {
	l.problems = append(l.problems, Problem{
		Pos: rule.Pos, Severity: SeverityWarning, Code: code, Hint: hint,
		Message: "rule " + rule.Name + ": " + fmt.Sprintf(format, args...),
	})
}

// names warns of two rules of one name: events would not tell them apart.
func (l *linter) names(g Group) {
	seen := map[string]*Rule{}
	for _, rule := range l.p.groups[g].rules {
		if first := seen[rule.Name]; first != nil {
			l.warn(rule, "same-name", "rename one", "%s has the same name", first.Pos)
			continue
		}
		seen[rule.Name] = rule
	}
}

// order warns of rules that an earlier one keeps from ever matching, and of
// denials that an earlier permit takes a part away from.
func (l *linter) order(g Group) {
	rules := l.p.groups[g].rules
	if len(rules) > maxLinted {
		rules = rules[:maxLinted]
	}
	for i, rule := range rules {
		for _, earlier := range rules[:i] {
			if earlier.holds(rule) {
				l.warn(rule, "shadowed", "move it up or remove it", "never reached, since rule %s (%s) matches all it does", earlier.Name, earlier.Pos)
				break
			}
			if rule.Effect == Deny && earlier.Effect.permits() && earlier.meets(rule) && !rule.wholeGroup() {
				l.warn(
					rule,
					"allow-before-deny",
					"move the denial up",
					"rule %s (%s) comes first and permits part of what this denies",
					earlier.Name,
					earlier.Pos,
				)
				break
			}
		}
	}
}

// wholeGroup reports a closing rule that matches everything: permits before it
// are the point of it.
func (rule *Rule) wholeGroup() bool {
	switch {
	case rule.command != nil:
		return rule.command.everything
	case rule.file != nil:
		return slices.ContainsFunc(rule.file.paths, func(g *glob.Glob) bool { return g.Covers("/") })
	case rule.network != nil:
		return rule.network.any || slices.ContainsFunc(rule.network.cidrs, zeroBits)
	case rule.socket != nil:
		return slices.ContainsFunc(rule.socket.paths, func(g *glob.Glob) bool { return g.Covers("/") })
	}
	return rule.signal != nil && rule.signal.kind == "external"
}

// holds reports whether a rule certainly matches everything that later does.
func (rule *Rule) holds(later *Rule) bool {
	switch {
	case rule.command != nil:
		return rule.command.holds(later.command)
	case rule.file != nil:
		return later.file.ops&^rule.file.ops == 0 && globsHold(rule.file.paths, later.file.paths)
	case rule.network != nil:
		return rule.network.holds(later.network)
	case rule.socket != nil:
		return later.socket.ops&^rule.socket.ops == 0 && globsHold(rule.socket.paths, later.socket.paths) &&
			globsHold(rule.socket.abstract, later.socket.abstract)
	case rule.signal != nil:
		a, b := rule.signal, later.signal
		return b.signals&^a.signals == 0 && a.kind == b.kind && a.min == b.min && a.max == b.max &&
			(a.pattern == nil || b.pattern != nil && a.pattern.Contains(b.pattern))
	}
	return false
}

func globsHold(a, b []*glob.Glob) bool {
	for _, y := range b {
		if !slices.ContainsFunc(a, func(x *glob.Glob) bool { return x.Contains(y) }) {
			return false
		}
	}
	return true
}

// unconditional reports whether the program's name is all a rule asks for.
func (c *commandMatch) unconditional() bool {
	return len(c.patterns) == 0 && c.words == nil && c.depth == depthRange{0, -1} && len(c.parent) == 0 &&
		len(c.ancestor) == 0 && len(c.cwd) == 0 && c.tty == 0
}

func (c *commandMatch) holds(later *commandMatch) bool {
	if !c.unconditional() {
		return false
	}
	for _, y := range later.entries {
		if !slices.ContainsFunc(c.entries, func(x nameEntry) bool { return x.holds(y) }) {
			return false
		}
	}
	return true
}

// holds reports whether an entry certainly names all that another does.
func (e nameEntry) holds(other nameEntry) bool {
	if e.path == other.path {
		return e.glob.Contains(other.glob)
	}
	if e.path {
		return false
	}
	literals, ok := other.glob.Literals()
	return e.glob.String() == "*" || ok && !slices.ContainsFunc(literals, func(l string) bool { return !e.matches(l) })
}

func (m *networkMatch) holds(later *networkMatch) bool {
	hosts := !m.hosts || m.any || later.hosts && !later.any && globsHold(m.domains, later.domains) && len(later.addresses) == 0
	return hosts && len(m.cidrs) == 0 && holdsAll(m.ports, later.ports) && holdsAll(m.protocols, later.protocols) &&
		holdsAll(m.methods, later.methods) && len(m.paths) == 0 && len(m.binaries) == 0
}

// holdsAll reports whether a selector that is absent or has all of another's
// values matches all that the other does.
func holdsAll[T comparable](a, b []T) bool {
	if len(a) == 0 {
		return true
	}
	for _, x := range b {
		if !slices.Contains(a, x) {
			return false
		}
	}
	return len(b) > 0
}

// meets reports whether a permit takes requests that a later denial is about.
// Conditions on arguments make it a refinement, which is not warned of.
func (rule *Rule) meets(later *Rule) bool {
	switch {
	case rule.command != nil:
		if !rule.command.unconditional() {
			return false
		}
		for _, x := range rule.command.entries {
			for _, y := range later.command.entries {
				if x.holds(y) || y.holds(x) {
					return true
				}
			}
		}
	case rule.file != nil:
		if rule.file.ops&later.file.ops == 0 {
			return false
		}
		for _, x := range rule.file.paths {
			for _, y := range later.file.paths {
				if globsMeet(x, y) {
					return true
				}
			}
		}
	case rule.network != nil:
		return rule.network.holds(later.network)
	}
	return false
}

// globsMeet reports whether some path certainly matches both: one holds the
// other, or one is a tree that the other reaches into.
func globsMeet(x, y *glob.Glob) bool {
	if x.Contains(y) || y.Contains(x) {
		return true
	}
	for _, dir := range x.Dirs() {
		if x.Covers(dir) && len(y.Below(dir)) > 0 {
			return true
		}
	}
	for _, dir := range y.Dirs() {
		if y.Covers(dir) && len(x.Below(dir)) > 0 {
			return true
		}
	}
	return false
}

// bundle finds short options written together in a pattern.
var bundle = regexp.MustCompile(`-[a-zA-Z]{2,4}\b`)

// arguments warns of args_patterns with well-known holes.
func (l *linter) arguments() {
	for _, rule := range l.p.groups[GroupCommand].rules {
		for i, source := range rule.command.sources {
			if rule.Effect.permits() {
				if !strings.HasPrefix(source, "^") || !strings.HasSuffix(source, "$") {
					l.warn(rule, "unanchored", "begin it with ^ and end it with $", "pattern %q permits whatever stands before or after it", source)
				}
				continue
			}
			l.bundles(rule, rule.command.patterns[i], source)
			if strings.HasPrefix(source, "^-") {
				l.warn(
					rule,
					"anchored-option",
					"use args, which finds options anywhere",
					"pattern %q only sees the option as the first argument",
					source,
				)
			}
		}
	}
}

// bundles tries the other spellings of bundled short options.
func (l *linter) bundles(rule *Rule, re *regexp.Regexp, source string) {
	word := bundle.FindString(source)
	at := strings.Index(source, word)
	if word == "" || at > 0 && source[at-1] == '-' {
		return
	}
	if !re.MatchString(word) && !re.MatchString("x "+word+" x") {
		return
	}
	letters := strings.Split(word[1:], "")
	reversed := slices.Clone(letters)
	slices.Reverse(reversed)
	var missed []string
	for _, other := range []string{"-" + strings.Join(letters, " -"), "-" + strings.Join(reversed, "")} {
		if all := l.p.refusesArgs(rule, other); !all {
			missed = append(missed, fmt.Sprintf("%q", other))
		}
	}
	if len(missed) > 0 {
		l.warn(
			rule,
			"bundled-options",
			`write args: ["-`+strings.Join(letters, `", "-`)+`"], which knows every spelling`,
			"pattern %q misses %s",
			source,
			strings.Join(missed, " and "),
		)
	}
}

// refusesArgs reports whether any pattern of the rule matches the arguments.
func (p *Policy) refusesArgs(rule *Rule, text string) bool {
	for _, re := range rule.command.patterns {
		if re.MatchString(text) || re.MatchString("x "+text+" x") {
			return true
		}
	}
	return false
}
