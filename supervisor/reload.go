package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/view"
)

// Reload replaces the policy of a running session. It refuses a policy that asks
// for what is fixed since the session was opened, with the position of each, and
// then changes nothing. Every decision, and every command with its variables, is
// made by one of the two policies as a whole. Earlier decisions stay.
func (s *Session) Reload(ctx context.Context, p *policy.Policy) (wire.Reloaded, error) {
	s.rules.reloading.Lock()
	defer s.rules.reloading.Unlock()
	old := s.rules.policy()
	done := wire.Reloaded{Policy: p.Name(), From: old.Digest(), To: p.Digest()}
	f := fixed{
		old: old, confined: s.confined, groups: s.groups != nil, restricted: s.restricted.Load(),
		uninspected: s.network != nil && !s.network.Intercepts(),
	}
	if problems := f.changedBy(p); len(problems) > 0 {
		return done, problems
	}
	next, err := makeRules(p, s.confined, s.deniedIn(s.loop.root, s.init.PID()), s.cfg.Environment.Inject)
	if err != nil {
		return done, err
	}
	if err := s.files.Prepare(ctx, p); err != nil {
		return done, err
	}
	commit := func() error {
		if err := s.journal.emit(reloadEvent(old, p)); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		if err := s.files.Commit(ctx); err != nil {
			return err
		}
		s.rules.Store(next)
		return nil
	}
	if err := s.loop.Reload(next.notify(), commit); err != nil {
		s.life.end(wire.CauseReload, err) // which policy the files follow is not known
		return done, err
	}
	s.approvals.Forget()
	s.network.Recheck()
	return done, nil
}

// reloadEvent records that a policy replaces another one.
func reloadEvent(old, p *policy.Policy) wire.Event {
	return wire.Event{
		Type:    wire.EventSession,
		Phase:   "policy_reloaded",
		Message: fmt.Sprintf("policy %s %s in place of %s %s", p.Name(), p.Digest(), old.Name(), old.Digest()),
	}
}

// fixed is what a running session cannot change.
type fixed struct {
	old         *policy.Policy
	confined    confined
	groups      bool // there are control groups
	restricted  bool // the supervisor can execute no program: see [Session.Confine]
	uninspected bool // the network is governed, and TLS is not inspected
}

// changedBy lists what a policy would change of it.
func (f fixed) changedBy(p *policy.Policy) policy.Problems {
	problems := p.Unsupported(func(key string) error {
		if Supports(key, f.groups || f.confined.missing.Has(probe.Cgroup)) {
			return nil
		}
		return unsupported(key)
	})
	refuse := func(pos policy.Position, format string, args ...any) {
		problems = append(
			problems,
			policy.Problem{
				Pos:     pos,
				Message: fmt.Sprintf(format, args...) + " is fixed since the session was opened",
				Hint:    "make a new session for it",
			},
		)
	}
	for _, l := range changedLimits(f.old, p) {
		refuse(l.Pos, "%s", l.Key)
	}
	for _, g := range []policy.Group{policy.GroupSignal, policy.GroupNetwork, policy.GroupUnixSocket} {
		if f.old.Governs(g) != p.Governs(g) {
			refuse(groupPosition(p, g), "whether %s_rules apply", g)
		}
	}
	if f.old.Governs(policy.GroupSignal) {
		problem := view.UnnotifiedSignal(p, groupPosition(p, policy.GroupSignal), f.confined.signals, f.confined.Signals(p))
		if problem != nil {
			problems = append(problems, *problem)
		}
	}
	if f.uninspected && p.InspectsAny() {
		refuse(groupPosition(p, policy.GroupNetwork), "whether requests are inspected")
	}
	if f.restricted && p.Approvals().Via == "command" && f.old.Approvals().Via != "command" {
		refuse(settingPosition(p, "approvals.via"), "approvals.via: command, for which the supervisor must be able to execute a program,")
	}
	was, _ := f.old.GitGuard()
	if on, at := p.GitGuard(); on && !was {
		refuse(at, "git_guard, which knows no repository that was written before it,")
	}
	if !slices.Equal(f.old.ExecFrom(), p.ExecFrom()) {
		refuse(settingPosition(p, "exec_from"), "exec_from")
	}
	return append(problems, changedView(f.confined, f.old, p)...)
}

// changedLimits are the limits of the session that differ. Those of one command
// apply to the next ones.
func changedLimits(old, p *policy.Policy) []policy.Setting {
	fixed := func(p *policy.Policy) policy.Limits {
		l := p.Limits(nil)
		l.CommandTimeout, l.OpenFiles = 0, 0
		return l
	}
	if fixed(old) != fixed(p) {
		return []policy.Setting{{Key: "resource_limits", Pos: settingPosition(p, "resource_limits.")}}
	}
	had := ruleLimits(old)
	for _, rule := range p.Rules(policy.GroupCommand) {
		if rule.Limits == nil {
			continue
		}
		for _, kind := range groupLimits(p.Limits(rule)).Kinds() {
			if !had[kind.String()] {
				return []policy.Setting{{Key: fmt.Sprintf("the %s limit of rule %s", kind, rule.Name), Pos: rule.Pos}}
			}
		}
	}
	return nil
}

// ruleLimits are the kinds of limits that a session under p has groups for.
func ruleLimits(p *policy.Policy) map[string]bool {
	out := map[string]bool{}
	note := func(l policy.Limits) {
		for _, kind := range groupLimits(l).Kinds() {
			out[kind.String()] = true
		}
	}
	note(p.Limits(nil))
	for _, rule := range p.Rules(policy.GroupCommand) {
		if rule.Limits != nil {
			note(p.Limits(rule))
		}
	}
	return out
}

// changedView are the paths that would be mounted in another way. Both policies
// are planned now, so that what others did to the machine's files does not count.
func changedView(c confined, old, p *policy.Policy) policy.Problems {
	was, err := planned(c, old)
	if err != nil {
		return policy.Problems{{Pos: policy.Top(p), Message: err.Error()}}
	}
	is, err := planned(c, p)
	if err != nil {
		return policy.Problems{{Pos: policy.Top(p), Message: err.Error()}}
	}
	var out policy.Problems
	for path, how := range is {
		if was[path] != how {
			out = append(out, viewProblem(p, path, how, was[path]))
		}
		delete(was, path)
	}
	for path, how := range was {
		out = append(out, viewProblem(p, path, "hidden", how))
	}
	slices.SortFunc(out, func(a, b policy.Problem) int { return strings.Compare(a.Message, b.Message) })
	return out
}

// viewProblem is the problem of a path that would be shown in another way.
func viewProblem(p *policy.Policy, path, is, was string) policy.Problem {
	pos := policy.Top(p)
	for _, op := range []policy.FileOp{policy.OpRead, policy.OpWrite} {
		if _, why := p.Evaluate(&policy.FileRequest{Path: path, Op: op}); why.Pos.Line > 0 {
			pos = why.Pos
		}
	}
	return policy.Problem{Pos: pos, Hint: "make a new session for it", Message: fmt.Sprintf(
		"%s would be %s and is %s: what commands see is fixed since the session was opened", path, is, cmp.Or(was, "hidden"))}
}

// planned is how each path is shown under a policy.
func planned(c confined, p *policy.Policy) (map[string]string, error) {
	plan, err := c.Plan(p, func(string) (string, error) { return "", nil })
	if err != nil {
		return nil, err
	}
	return plan.Paths(), nil
}

// settingPosition is where a setting with a prefix is given, else the top.
func settingPosition(p *policy.Policy, prefix string) policy.Position {
	for _, s := range p.Settings() {
		if strings.HasPrefix(s.Key, prefix) {
			return s.Pos
		}
	}
	return policy.Top(p)
}

func groupPosition(p *policy.Policy, g policy.Group) policy.Position {
	if rules := p.Rules(g); len(rules) > 0 {
		return rules[0].Pos
	}
	if at, given := p.Key(g.String()+"_rules", "defaults"); given {
		return at
	}
	return policy.Top(p)
}
