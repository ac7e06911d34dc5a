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

// Reload replaces the session's policy from the sources of another one. See
// [Session.Reload].
func (o operation) Reload(ctx context.Context, r wire.Reload) (wire.Reloaded, error) {
	p, err := bootPolicy(wire.Bootstrap{Policy: r.Policy, Vars: o.vars})
	if err != nil {
		return wire.Reloaded{}, &wire.Error{Code: wire.CodeRefused, Message: err.Error()}
	}
	done, err := o.session.Reload(ctx, p)
	if err != nil {
		return done, &wire.Error{Code: wire.CodeRefused, Message: err.Error()}
	}
	return done, nil
}

// Reload replaces the policy of a running session. It refuses one that asks for
// what was settled when the session was made, naming each place, and then nothing
// has changed. Every decision, and every command with its variables, is made by
// one of both policies as a whole; what was decided before stays so.
func (s *Session) Reload(ctx context.Context, p *policy.Policy) (wire.Reloaded, error) {
	s.reloading.Lock()
	defer s.reloading.Unlock()
	old := s.policy()
	done := wire.Reloaded{Policy: p.Name(), From: old.Digest(), To: p.Digest()}
	if problems := s.settled(old, p); len(problems) > 0 {
		return done, problems
	}
	next, err := s.makeRules(p)
	if err != nil {
		return done, err
	}
	if err := s.files.Prepare(ctx, p); err != nil {
		return done, err
	}
	commit := func() error {
		event := wire.Event{
			Type:    wire.EventSession,
			Phase:   "policy_reloaded",
			Message: fmt.Sprintf("policy %s %s in place of %s %s", p.Name(), p.Digest(), old.Name(), old.Digest()),
		}
		if err := s.emit(event); err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		if err := s.files.Commit(ctx); err != nil {
			return err
		}
		s.rules.Store(next)
		return nil
	}
	if err := s.loop.Reload(next.notify(), commit); err != nil {
		s.end(fmt.Errorf("policy reload: %w", err)) // which policy the files follow is not known
		return done, err
	}
	s.network.Recheck()
	return done, nil
}

// settled are the places in which a policy asks for what a running session
// cannot change.
func (s *Session) settled(old, p *policy.Policy) policy.Problems {
	problems := p.Unsupported(func(key string) error {
		if held(key, s.group != nil || s.missing.Has(probe.Cgroup)) {
			return nil
		}
		return notHeld(key)
	})
	refuse := func(pos policy.Position, format string, args ...any) {
		problems = append(
			problems,
			policy.Problem{
				Pos:     pos,
				Message: fmt.Sprintf(format, args...) + " was settled when the session was made",
				Hint:    "make a new session for it",
			},
		)
	}
	for _, l := range changedLimits(old, p) {
		refuse(l.Pos, "%s", l.Key)
	}
	for _, g := range []policy.Group{policy.GroupSignal, policy.GroupNetwork, policy.GroupUnixSocket} {
		if old.Governs(g) != p.Governs(g) {
			refuse(groupPosition(p, g), "whether %s_rules hold", g)
		}
	}
	if old.Governs(policy.GroupSignal) {
		problem := view.UnjudgedSignal(p, groupPosition(p, policy.GroupSignal), s.signals, s.confinement.Signals(p))
		if problem != nil {
			problems = append(problems, *problem)
		}
	}
	if s.network != nil && p.InspectsAny() && !s.network.Intercepts() {
		refuse(groupPosition(p, policy.GroupNetwork), "whether requests are inspected")
	}
	if s.confined.Load() && p.Approvals().Via == "command" && old.Approvals().Via != "command" {
		refuse(settingPosition(p, "approvals.via"), "approvals.via: command, for which the supervisor must be able to execute a program,")
	}
	was, _ := old.GitGuard()
	if on, at := p.GitGuard(); on && !was {
		refuse(at, "git_guard, which knows no repository that was written before it,")
	}
	if !slices.Equal(old.ExecFrom(), p.ExecFrom()) {
		refuse(settingPosition(p, "exec_from"), "exec_from")
	}
	return append(problems, s.changedView(old, p)...)
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
func (s *Session) changedView(old, p *policy.Policy) policy.Problems {
	was, err := s.planned(old)
	if err != nil {
		return policy.Problems{{Pos: top(p), Message: err.Error()}}
	}
	is, err := s.planned(p)
	if err != nil {
		return policy.Problems{{Pos: top(p), Message: err.Error()}}
	}
	var out policy.Problems
	for place, how := range is {
		if was[place] != how {
			out = append(out, viewProblem(p, place, how, was[place]))
		}
		delete(was, place)
	}
	for place, how := range was {
		out = append(out, viewProblem(p, place, "hidden", how))
	}
	slices.SortFunc(out, func(a, b policy.Problem) int { return strings.Compare(a.Message, b.Message) })
	return out
}

func viewProblem(p *policy.Policy, place, is, was string) policy.Problem {
	pos := top(p)
	for _, op := range []policy.FileOp{policy.OpRead, policy.OpWrite} {
		if _, why := p.Evaluate(&policy.FileRequest{Path: place, Op: op}); why.Pos.Line > 0 {
			pos = why.Pos
		}
	}
	return policy.Problem{Pos: pos, Hint: "make a new session for it", Message: fmt.Sprintf(
		"%s would be %s and is %s: what commands see was settled when the session was made", place, is, cmp.Or(was, "hidden"))}
}

// planned is how each place of the view is shown under a policy.
func (s *Session) planned(p *policy.Policy) (map[string]string, error) {
	plan, err := s.confinement.Plan(p, func(string) (string, error) { return "", nil })
	if err != nil {
		return nil, err
	}
	return plan.Paths(), nil
}

// top is the beginning of a policy's main file.
func top(p *policy.Policy) policy.Position {
	return policy.Position{File: p.Sources()[0].Name, Line: 1, Column: 1}
}

// settingPosition is where a setting with a prefix is given, else the top.
func settingPosition(p *policy.Policy, prefix string) policy.Position {
	for _, s := range p.Settings() {
		if strings.HasPrefix(s.Key, prefix) {
			return s.Pos
		}
	}
	return top(p)
}

func groupPosition(p *policy.Policy, g policy.Group) policy.Position {
	if rules := p.Rules(g); len(rules) > 0 {
		return rules[0].Pos
	}
	return top(p)
}
