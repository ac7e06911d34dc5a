package policy

import "strings"

// multiCallNames are programs that are many programs in one file and choose by
// the name they are called by.
var multiCallNames = []string{MultiCallWrapper, "toybox", "coreutils"}

// multiCall reports whether a program, by path or name, is a multi-call one.
func multiCall(program string) bool {
	name := base(program)
	for _, m := range multiCallNames {
		if strings.HasPrefix(name, m) && (len(name) == len(m) || name[len(m)] == '.' || name[len(m)] == '-') {
			return true
		}
	}
	return false
}

// MultiCallName reports whether a base name is that of a multi-call program.
func MultiCallName(name string) bool { return multiCall(name) }

// multiCalled reports whether a multi-call program that gets this argv[0] reads
// its applet from argv[1]: busybox does for every name that begins like its own.
func multiCalled(argv0 string) bool {
	for _, m := range multiCallNames {
		if strings.HasPrefix(argv0, m) {
			return true
		}
	}
	return false
}

// isMultiCall reports whether a program is a multi-call one, by its file's name or
// its content.
func (pr *Program) isMultiCall() bool { return pr.MultiCall || multiCall(pr.Path) }

// appletName is the applet a multi-call program acts as: the base of its
// argv[0], less the dash of a login shell.
func appletName(argv []string) string {
	if len(argv) == 0 {
		return ""
	}
	return strings.TrimPrefix(base(argv[0]), "-")
}

// DefaultTransparent returns the built-in wrappers whose payload is evaluated, as
// a set of the names that [WrapperName] returns. The caller may change it.
func DefaultTransparent() map[string]bool {
	names := make(map[string]bool, len(wrappers))
	for name := range wrappers {
		names[name] = true
	}
	return names
}

// wrapped returns the name of the wrapper a program is, empty when it is none.
// What the program's file is called counts, and so do its content and what it was
// called by, since a copy of a wrapper still wraps.
func (c *commandRules) wrapped(s *subject) string {
	if s.program.isMultiCall() {
		applet := appletName(s.argv)
		switch {
		case multiCalled(applet), len(s.argv) > 1 && strings.HasPrefix(s.argv[1], coreutilsProgram):
			return c.transparentName(MultiCallWrapper)
		case s.program.MultiCall && !c.transparent[applet]:
			// A copy: it may still be called like a wrapper, below.
		default:
			return c.transparentName(applet)
		}
	}
	if name := WrapperName(s.program.Path); c.transparent[name] && name != MultiCallWrapper {
		return name
	}
	if name := WrapperName(s.program.Called); c.transparent[name] && name != MultiCallWrapper {
		return name
	}
	if multiCalled(appletName(s.argv)) || multiCall(s.program.Called) {
		return c.transparentName(MultiCallWrapper)
	}
	return ""
}

func (c *commandRules) transparentName(name string) string {
	if c.transparent[name] {
		return name
	}
	return ""
}

// guessed reports whether a program is taken for a multi-call one only for what
// its caller named it: what it may run can then be refused for that, and need not
// be permitted.
func (s *subject) guessed(name string) bool {
	return name == MultiCallWrapper && !s.program.isMultiCall() && !multiCall(s.program.Called)
}

func inChain(q *CommandRequest, program string) bool {
	for i := range q.Chain {
		if q.Chain[i].Called == program {
			return true
		}
	}
	return false
}

// payload decides for one payload by its name alone. One that gets an execve
// of its own is evaluated then by its file: here a rule may only deny it early.
// An applet or a loader's program gets none, so it must be permitted here.
func (c *commandRules) payload(pl *Payload, q *CommandRequest) (Decision, reason) {
	s := subject{program: &Program{Called: pl.Program}, argv: pl.Argv, request: q}
	rule := c.first(calledName(&s), &s, false)
	if argv0 := appletName(pl.Argv); pl.InProcess && argv0 != pl.Program {
		rule = stricterRule(rule, c.first(argv0, &s, false))
	}
	why := reason{about: pl.Program}
	switch {
	case rule != nil && (!rule.Effect.Permits() || pl.Applet):
		return Decision{Effect: rule.Effect, Rule: rule}, why
	case pl.Applet:
		return Decision{Effect: c.other}, why
	case pl.InProcess:
		return Decision{}, reason{text: "the program given to the loader was not found", about: pl.Program}
	}
	return Decision{Effect: Allow}, why
}
