package policytest

import (
	"fmt"
	"path"
	"strings"

	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/policy/syntax"
)

// Result is the outcome of one case.
type Result struct {
	Case       *Case
	Effect     policy.Effect
	Rule       *policy.Rule // nil: the default applied
	Diagnostic policy.Diagnostic
	Problem    string // why the case fails; empty when it passes
}

// Report is the outcome of one suite.
type Report struct {
	Suite   *Suite
	Policy  *policy.Policy
	Results []Result
}

// ReadFile reads a file that a suite or policy names.
type ReadFile func(name string) ([]byte, error)

// LoadPolicy loads the policy of a suite.
func LoadPolicy(s *Suite, read ReadFile) (*policy.Policy, error) {
	name := s.Policy
	if !path.IsAbs(name) {
		name = path.Join(path.Dir(s.File), name)
	}
	data, err := read(name)
	if err != nil {
		return nil, fmt.Errorf("%s: policy: %w", s.File, err)
	}
	return syntax.Load(policy.Source{Name: name, Data: data}, syntax.Options{Vars: s.Vars, ReadFile: read})
}

// ResolveCommands completes the commands of a suite by the files of this machine. Cases
// that say themselves what the program is stay as they are.
func (s *Suite) ResolveCommands(resolve Resolve) {
	for i := range s.Cases {
		c := &s.Cases[i]
		switch q, ok := c.Request.(*policy.CommandRequest); {
		case !c.Plain:
		case c.Variable != nil:
			resolve(c.Variable.Command)
		case ok:
			resolve(q)
		}
	}
}

// Run evaluates every case of a suite under a policy.
func Run(s *Suite, p *policy.Policy) Report {
	report := Report{Suite: s, Policy: p, Results: make([]Result, len(s.Cases))}
	for i := range s.Cases {
		report.Results[i] = judge(&s.Cases[i], p)
	}
	return report
}

// Failed counts the cases that do not pass.
func (r Report) Failed() int {
	n := 0
	for i := range r.Results {
		if r.Results[i].Problem != "" {
			n++
		}
	}
	return n
}

func judge(c *Case, p *policy.Policy) Result {
	result := Result{Case: c}
	switch {
	case c.Repository != nil:
		result.Effect, result.Rule, result.Diagnostic = c.Repository.judge(p)
	case c.Variable != nil:
		result.Effect, result.Diagnostic = reaches(c.Variable, p)
	default:
		var d policy.Decision
		d, result.Diagnostic = p.Evaluate(c.Request)
		result.Effect, result.Rule = d.Effect, d.Rule
	}
	if result.Problem = c.Want.compare(result); result.Problem != "" && c.Plain {
		result.Problem += c.found()
	}
	return result
}

// found says which file a program is on this machine, if that is not the name as written.
func (c *Case) found() string {
	q, ok := c.Request.(*policy.CommandRequest)
	if !ok && c.Variable != nil {
		q, ok = c.Variable.Command, true
	}
	if !ok || q.Path == Command(q.Argv).Path && len(q.Chain) == 0 {
		return ""
	}
	text := fmt.Sprintf("; here %s is %s", q.Argv[0], q.Path)
	for i := range q.Chain {
		text += ", run by " + q.Chain[i].Path
	}
	return text
}

// reaches reports whether a variable of the request reaches the command.
func reaches(v *Variable, p *policy.Policy) (policy.Effect, policy.Diagnostic) {
	var rule *policy.Rule
	if len(v.Command.Argv) > 0 {
		d, diagnostic := p.Evaluate(v.Command)
		if d.Effect == policy.Deny {
			return d.Effect, diagnostic
		}
		rule = d.Rule
	}
	result, err := env.Build(env.Layers{
		Request: []string{v.Name + "=value"},
		Filter:  p.EnvFilter(rule),
		Inject:  []env.Inject{{Source: "policy", Vars: p.EnvInject()}},
	})
	switch {
	case err != nil:
		return policy.Deny, policy.Diagnostic{Rule: "default", Message: err.Error()}
	case len(result.Dropped) > 0:
		return policy.Deny, policy.Diagnostic{Rule: "default", Message: result.Dropped[0].Reason}
	}
	return policy.Allow, policy.Diagnostic{Rule: "default", Message: "reaches the command"}
}

// passes reports whether a variable of a request passes a filter.
func passes(name string, f env.Filter) bool {
	f.MaxBytes, f.MaxKeys = 0, 0
	r, err := env.Build(env.Layers{Request: []string{name + "=x"}, Filter: f})
	return err == nil && len(r.Env) == 1
}

// compare says what is not as expected.
func (w Want) compare(r Result) string {
	name := "default"
	if r.Rule != nil {
		name = r.Rule.Name
	}
	at := ""
	if r.Rule != nil {
		at = " at " + r.Rule.Pos.String()
	}
	switch {
	case r.Effect != w.Effect:
		return fmt.Sprintf("decision is %s by rule %s%s, expected %s", r.Effect, name, at, w.Effect)
	case w.Rule != "" && w.Rule != name:
		return fmt.Sprintf("decided by rule %s%s, expected rule %s", name, at, w.Rule)
	case !strings.Contains(r.Diagnostic.Message, w.Message):
		return fmt.Sprintf("message is %q, expected %q in it", r.Diagnostic.Message, w.Message)
	}
	return ""
}

// groups are all rule groups in the order people are shown them.
var groups = []policy.Group{
	policy.GroupCommand, policy.GroupFile, policy.GroupNetwork, policy.GroupUnixSocket, policy.GroupSignal,
}

// Coverage lists the rules of a policy that some case reached.
type Coverage struct {
	Rules  int
	Missed []*policy.Rule // in file order within each group
}

// Percent returns the share of rules reached, rounded down; 100 if there are no
// rules.
func (c Coverage) Percent() int {
	if c.Rules == 0 {
		return 100
	}
	return (c.Rules - len(c.Missed)) * 100 / c.Rules
}

// Cover merges the reports about one policy.
func Cover(reports ...Report) Coverage {
	hit := map[string]bool{}
	for _, report := range reports {
		for i := range report.Results {
			if rule := report.Results[i].Rule; rule != nil {
				hit[ruleKey(rule)] = true
			}
		}
	}
	var c Coverage
	if len(reports) == 0 {
		return c
	}
	for _, g := range groups {
		for _, rule := range reports[0].Policy.Rules(g) {
			c.Rules++
			if !hit[ruleKey(rule)] {
				c.Missed = append(c.Missed, rule)
			}
		}
	}
	return c
}

// ruleKey identifies a rule within one policy.
func ruleKey(r *policy.Rule) string { return r.Pos.String() }
