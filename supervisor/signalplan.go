package supervisor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/seccomp"
)

// insideTargets are what a process of the session can be to a sender in its pid
// namespace; firstTarget is what the session's own first processes are.
var insideTargets = []string{"self", "children", "descendants", "siblings", "session", "parent"}

const firstTarget = "system"

// signalPlan says which signals the filter notifies. Where the kernel keeps
// signals inside, those that the policy allows to every process are not.
func signalPlan(p *policy.Policy, missing lacks) seccomp.Signals {
	plain := missing.has(lossNamespaces)
	plan := seccomp.Signals{Inside: !plain && !missing.has(lossScopes)}
	switch {
	case plain, p.Governs(policy.GroupSignal) && !plan.Inside:
		plan.Judged = seccomp.EverySignal()
	case p.Governs(policy.GroupSignal):
		for n := range plan.Judged {
			_, plan.Judged[n] = judging(p, n, insideTargets...)
			_, plan.First[n] = judging(p, n, firstTarget)
		}
	}
	return plan
}

// judging reports whether a policy decides by process on a signal to one of the
// targets, and the rule that does; nil: its default.
func judging(p *policy.Policy, number int, targets ...string) (*policy.Rule, bool) {
	for _, target := range targets {
		if allowed, rule := p.AllowsSignal(number, target); !allowed {
			return rule, true
		}
	}
	return nil, false
}

// unjudged is the problem of a policy that wants signals judged which the
// session's filter lets pass; nil: it has none.
func unjudged(p *policy.Policy, filter, want seccomp.Signals) *policy.Problem {
	for _, c := range []struct {
		have, want seccomp.SignalSet
		targets    []string
	}{{filter.Judged, want.Judged, insideTargets}, {filter.First, want.First, []string{firstTarget}}} {
		number, lacks := c.have.Lacks(c.want)
		if !lacks {
			continue
		}
		pos, what := groupPosition(p, policy.GroupSignal), "the default of signals"
		if rule, _ := judging(p, number, c.targets...); rule != nil {
			pos, what = rule.Pos, "rule "+rule.Name
		}
		name := unix.SignalName(unix.Signal(number))
		if name == "" {
			name = fmt.Sprintf("signal %d", number)
		}
		return &policy.Problem{
			Pos: pos,
			Message: fmt.Sprintf(
				"%s decides on %s, which this session lets pass unseen: it was allowed to every process when the session was made",
				what,
				name,
			),
			Hint: "make a new session for it",
		}
	}
	return nil
}
