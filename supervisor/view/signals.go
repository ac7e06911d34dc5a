package view

import (
	"fmt"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/seccomp"
)

// insideTargets are the relations of a process of the session to a sender in its
// pid namespace. firstTarget is that of the session init and its helpers.
var insideTargets = []string{"self", "children", "descendants", "siblings", "session", "parent"}

const firstTarget = "system"

// restricting reports whether a policy does not allow a signal to one of the
// targets whatever the process, and the rule that restricts it; nil: the default.
func restricting(p *policy.Policy, number int, targets ...string) (*policy.Rule, bool) {
	for _, target := range targets {
		if allowed, rule := p.AllowsSignal(number, target); !allowed {
			return rule, true
		}
	}
	return nil, false
}

// UnnotifiedSignal reports a signal that a policy decides on and that the filter of
// a running session does not notify; nil: there is none. at is the position of
// the policy's default.
func UnnotifiedSignal(p *policy.Policy, at policy.Position, filter, want seccomp.Signals) *policy.Problem {
	for _, c := range []struct {
		have, want seccomp.SignalSet
		targets    []string
	}{{filter.Evaluated, want.Evaluated, insideTargets}, {filter.First, want.First, []string{firstTarget}}} {
		number, missing := c.have.Missing(c.want)
		if !missing {
			continue
		}
		pos, what := at, "the default of signals"
		if rule, _ := restricting(p, number, c.targets...); rule != nil {
			pos, what = rule.Pos, "rule "+rule.Name
		}
		name := unix.SignalName(unix.Signal(number))
		if name == "" {
			name = fmt.Sprintf("signal %d", number)
		}
		return &policy.Problem{
			Pos: pos,
			Message: fmt.Sprintf(
				"%s decides on %s, which the filter of this session does not notify: it was allowed to every process when the session was opened",
				what,
				name,
			),
			Hint: "make a new session for it",
		}
	}
	return nil
}
