package syntax

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"agentsh/internal/lazy"
	"agentsh/policy"
	"agentsh/policy/glob"
)

// maxLinted is the maximum number of rules of a group that are compared in
// pairs.
const maxLinted = 3000

// linter collects warnings.
type linter struct {
	p        *policy.Policy
	vars     map[string]string
	problems policy.Problems
}

// Lint returns warnings about a policy that loads but is probably wrong:
//
//   - rules that can never match
//   - allow rules before deny rules for a part of the same requests
//   - argument patterns that are easy to bypass
//   - denied programs whose effect an allowed program has
//   - settings that have another meaning here than elsewhere
//
// Every problem is a warning with a Code.
func Lint(p *policy.Policy) []policy.Problem {
	l := &linter{p: p, vars: p.Vars()}
	for g := range policy.GroupCount {
		l.names(policy.Group(g))
		l.order(policy.Group(g))
	}
	l.openDirectories()
	l.arguments()
	l.reach()
	l.meaning()
	return l.problems.Sorted()
}

// warningCodes are the codes of warnings about single rules.
var warningCodes = []string{
	"allow-before-deny", "anchored-option", "args-hidden", "bundled-options", "by-name", "case", "env-narrows", "guarded", "nobody-asked",
	"one-argument", "open-directory", "operation-alias", "reachable", "same-name", "shadowed", "unanchored", "wide-domain",
}

// warn adds a warning about a rule, unless the rule accepts it.
func (l *linter) warn(rule *policy.Rule, code, hint, format string, args ...any) {
	if !slices.Contains(warningCodes, code) {
		panic("policy: warning " + code + " has no place in warningCodes")
	}
	if slices.Contains(rule.Accepted, code) {
		return
	}
	l.problems = append(l.problems, policy.Problem{
		Pos: rule.Pos, Severity: policy.SeverityWarning, Code: code, Hint: hint,
		Message: "rule " + rule.Name + ": " + fmt.Sprintf(format, args...),
	})
}

// names warns about two rules with the same name, because events do not
// distinguish them.
func (l *linter) names(g policy.Group) {
	seen := map[string]*policy.Rule{}
	for _, rule := range l.p.Rules(g) {
		if first := seen[rule.Name]; first != nil {
			l.warn(rule, "same-name", "rename one", "%s has the same name", first.Pos)
			continue
		}
		seen[rule.Name] = rule
	}
}

// order warns about rules that can never match because of an earlier rule. It
// also warns about a deny rule if an earlier allow rule matches some of its
// requests. An allow rule that matches nothing else is an exception that was meant.
func (l *linter) order(g policy.Group) {
	rules := l.p.Rules(g)
	if len(rules) > maxLinted {
		rules = rules[:maxLinted]
	}
	for i, rule := range rules {
		for _, earlier := range rules[:i] {
			if covers(earlier, rule) {
				l.warn(rule, "shadowed", "move it up or remove it", "never reached, since rule %s (%s) matches all it does", earlier.Name, earlier.Pos)
				break
			}
			if rule.Effect == policy.Deny && earlier.Effect.Permits() && overlaps(earlier, rule) && !wholeGroup(rule) &&
				!covers(rule, earlier) {
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

// wholeGroup reports whether a rule matches every request of its group. Allow
// rules before such a rule are intended.
func wholeGroup(rule *policy.Rule) bool {
	switch {
	case rule.Command != nil:
		return rule.Command.AllPrograms
	case rule.File != nil:
		return slices.ContainsFunc(rule.File.Paths, func(g *glob.Glob) bool { return g.Covers("/") })
	case rule.Network != nil:
		return rule.Network.Any || slices.ContainsFunc(rule.Network.CIDRs, zeroBits)
	case rule.Socket != nil:
		return slices.ContainsFunc(rule.Socket.Paths, func(g *glob.Glob) bool { return g.Covers("/") })
	}
	return rule.Signal != nil && rule.Signal.Target == "external"
}

// covers reports whether rule certainly matches everything that later matches.
func covers(rule, later *policy.Rule) bool {
	switch {
	case rule.Command != nil:
		return commandCovers(rule.Command, later.Command)
	case rule.File != nil:
		return later.File.Ops&^rule.File.Ops == 0 && globsCover(rule.File.Paths, later.File.Paths)
	case rule.Network != nil:
		return networkCovers(rule.Network, later.Network)
	case rule.Socket != nil:
		return later.Socket.Ops&^rule.Socket.Ops == 0 && globsCover(rule.Socket.Paths, later.Socket.Paths) &&
			globsCover(rule.Socket.Abstract, later.Socket.Abstract)
	case rule.Signal != nil:
		a, b := rule.Signal, later.Signal
		return b.Signals&^a.Signals == 0 && a.Target == b.Target && a.MinPID == b.MinPID && a.MaxPID == b.MaxPID &&
			(a.Program == nil || b.Program != nil && a.Program.Contains(b.Program))
	}
	return false
}

func globsCover(a, b []*glob.Glob) bool {
	for _, y := range b {
		if !slices.ContainsFunc(a, func(x *glob.Glob) bool { return x.Contains(y) }) {
			return false
		}
	}
	return true
}

// unconditional reports whether the program's name is the only condition of a
// rule.
func unconditional(c *policy.CommandSelector) bool {
	return len(c.Patterns) == 0 && c.Args == nil && c.Depth == policy.DepthRange{Min: 0, Max: -1} && len(c.Parents) == 0 &&
		len(c.Ancestors) == 0 && len(c.Dirs) == 0 && c.Terminal == 0
}

func commandCovers(c, later *policy.CommandSelector) bool {
	if !unconditional(c) {
		return false
	}
	for _, y := range later.Programs {
		if !slices.ContainsFunc(c.Programs, func(x policy.ProgramName) bool { return nameCovers(x, y) }) {
			return false
		}
	}
	return true
}

// nameCovers reports whether an entry certainly matches everything that another
// matches.
func nameCovers(e, other policy.ProgramName) bool {
	if e.WholePath == other.WholePath {
		return e.Glob.Contains(other.Glob)
	}
	if e.WholePath {
		return false
	}
	literals, ok := other.Glob.Literals()
	return e.Glob.String() == "*" || ok && !slices.ContainsFunc(literals, func(l string) bool { return !e.Matches(l) })
}

func networkCovers(m, later *policy.NetworkSelector) bool {
	hosts := !m.HasDomains || m.Any || later.HasDomains && !later.Any && globsCover(m.Domains, later.Domains) && len(later.Addresses) == 0
	return hosts && len(m.CIDRs) == 0 && coversAll(m.Ports, later.Ports) && coversAll(m.Protocols, later.Protocols) &&
		coversAll(m.Methods, later.Methods) && len(m.Paths) == 0 && len(m.Binaries) == 0
}

// coversAll compares the values of two selectors. It reports whether a matches
// all that b matches: a is absent or contains every value of b.
func coversAll[T comparable](a, b []T) bool {
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

// overlaps reports whether an allow rule matches requests of a later deny rule.
// Conditions on arguments are a refinement, for which there is no warning.
func overlaps(rule, later *policy.Rule) bool {
	switch {
	case rule.Command != nil:
		if !unconditional(rule.Command) {
			return false
		}
		for _, x := range rule.Command.Programs {
			for _, y := range later.Command.Programs {
				if nameCovers(x, y) || nameCovers(y, x) {
					return true
				}
			}
		}
	case rule.File != nil:
		if rule.File.Ops&later.File.Ops == 0 {
			return false
		}
		for _, x := range rule.File.Paths {
			for _, y := range later.File.Paths {
				if globsOverlap(x, y) {
					return true
				}
			}
		}
	case rule.Network != nil:
		return networkCovers(rule.Network, later.Network)
	}
	return false
}

// globsOverlap reports whether some path certainly matches both patterns.
// Either one contains the other, or one is a tree and the other has a match
// inside it.
func globsOverlap(x, y *glob.Glob) bool {
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

// bundle matches short options that a pattern combines in one argument.
var bundle = lazy.Regexp(`-[a-zA-Z]{2,4}\b`)

// arguments warns about args_patterns that are known to be easy to bypass.
func (l *linter) arguments() {
	for _, rule := range l.p.Rules(policy.GroupCommand) {
		for i, source := range rule.Command.PatternTexts {
			if rule.Effect.Permits() {
				if !strings.HasPrefix(source, "^") || !strings.HasSuffix(source, "$") {
					l.warn(rule, "unanchored", "begin it with ^ and end it with $", "pattern %q permits whatever stands before or after it", source)
				}
				continue
			}
			l.bundles(rule, rule.Command.Patterns[i], source)
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

// bundles checks other spellings of bundled short options.
func (l *linter) bundles(rule *policy.Rule, re *regexp.Regexp, source string) {
	word := bundle().FindString(source)
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
		if all := anyPattern(rule, other); !all {
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

// anyPattern reports whether any pattern of the rule matches the arguments.
func anyPattern(rule *policy.Rule, text string) bool {
	for _, re := range rule.Command.Patterns {
		if re.MatchString(text) || re.MatchString("x "+text+" x") {
			return true
		}
	}
	return false
}
