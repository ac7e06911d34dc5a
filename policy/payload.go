package policy

import "strings"

// multiCallNames are programs that implement many programs in one file. They
// select one by the name that they are called by.
var multiCallNames = []string{MultiCallWrapper, "toybox", "coreutils"}

// multiCall reports whether a path or name is that of a multi-call program.
func multiCall(program string) bool {
	name := base(program)
	for _, m := range multiCallNames {
		if strings.HasPrefix(name, m) && (len(name) == len(m) || name[len(m)] == '.' || name[len(m)] == '-') {
			return true
		}
	}
	return false
}

// MultiCallName reports whether a base name is that of a multi-call program
// such as busybox.
func MultiCallName(name string) bool { return multiCall(name) }

// multiCalled reports whether a multi-call program with this argv[0] reads its
// applet from argv[1]. busybox does so for every name that begins with its own.
func multiCalled(argv0 string) bool {
	for _, m := range multiCallNames {
		if strings.HasPrefix(argv0, m) {
			return true
		}
	}
	return false
}

// isMultiCall reports whether a program is a multi-call program, by its file
// name or its content.
func (pr *Program) isMultiCall() bool { return pr.MultiCall || multiCall(pr.Path) }

// appletName returns the applet that a multi-call program runs: the base name
// of argv[0] without the dash of a login shell.
func appletName(argv []string) string {
	if len(argv) == 0 {
		return ""
	}
	return strings.TrimPrefix(base(argv[0]), "-")
}

// DefaultTransparent returns the built-in wrappers whose payload is evaluated.
// The keys are results of [WrapperName]. The caller may change the map.
func DefaultTransparent() map[string]bool {
	names := make(map[string]bool, len(wrappers()))
	for name := range wrappers() {
		names[name] = true
	}
	return names
}

// wrapped returns the wrapper name of a program, or an empty string. It checks
// the file name, the content and the called name, because a copy of a wrapper
// is also a wrapper.
func (c *commandRules) wrapped(s *subject) string {
	if s.program.isMultiCall() {
		applet := appletName(s.argv)
		switch {
		case multiCalled(applet), len(s.argv) > 1 && strings.HasPrefix(s.argv[1], coreutilsProgram):
			return c.transparentName(MultiCallWrapper)
		case s.program.MultiCall && !c.transparent[applet]:
			// A copy may still have the called name of a wrapper, which is
			// checked below.
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

// guessed reports whether a program counts as a multi-call program only because
// of its called name. A rule may then deny its payload, but need not allow it.
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

// payload evaluates one payload by its name. A payload with an execve of its
// own is evaluated by its file at that time, so a rule can only deny it early
// here. An applet or a loader's program has no execve, so a rule must allow it
// here.
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
