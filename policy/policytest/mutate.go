package policytest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"agentsh/internal/strictyaml"
	"agentsh/policy"
	"agentsh/policy/syntax"
)

// Mutant is one small change of a policy.
type Mutant struct {
	Kind  string // deleted, inverted, reordered
	Group policy.Group
	Rule  string          // name of the rule that was changed
	Pos   policy.Position // of that rule

	Witness policy.Request // survivors: a request that the mutant decides differently
}

// String describes the mutant in one sentence.
func (m Mutant) String() string {
	switch m.Kind {
	case "reordered":
		return fmt.Sprintf("%s: rule %s tried after the next one", m.Pos, m.Rule)
	default:
		return fmt.Sprintf("%s: rule %s %s", m.Pos, m.Rule, m.Kind)
	}
}

// ErrFailing is the error of [Mutate] if a suite fails without a mutant.
var ErrFailing = errors.New("mutants are tried when every test passes")

// Mutation counts the mutants of a policy and lists those that no suite
// notices.
type Mutation struct {
	Mutants    int
	Survivors  []Mutant // decide some probe differently, and no case fails
	Equivalent int      // decide no probe differently, and no case fails
}

// Mutate deletes, inverts and reorders each rule in turn. It reports the
// mutants that no suite notices. A mutant that decides every probe like the
// policy is counted but not reported. Every suite must belong to p and pass:
// [ErrFailing].
func Mutate(p *policy.Policy, suites []*Suite) (Mutation, error) {
	if noticed(suites, p) {
		return Mutation{}, ErrFailing
	}
	probes, err := NewProbes(p)
	if err != nil {
		return Mutation{}, err
	}
	m := &mutator{policy: p, suites: suites, probes: probes, expected: map[policy.Group][]outcome{}}
	for s, source := range p.Sources() {
		root, err := parseSource(source)
		if err != nil {
			return Mutation{}, err
		}
		for _, g := range groups {
			if err := m.group(s, root, g); err != nil {
				return Mutation{}, err
			}
		}
	}
	return m.result, nil
}

// mutator is the state of one call of [Mutate].
type mutator struct {
	policy   *policy.Policy
	suites   []*Suite
	probes   Probes
	expected map[policy.Group][]outcome // what policy decides about probes
	result   Mutation
}

// group tries the mutants of one list of rules of source number s.
func (m *mutator) group(s int, root *strictyaml.Node, g policy.Group) error {
	list := strictyaml.Value(root, groupKeys[g])
	if list == nil {
		return nil
	}
	for i, rule := range list.Content {
		for _, c := range mutantsOf(list, i) {
			mutant := Mutant{Kind: c.kind, Group: g, Rule: ruleName(rule), Pos: position(m.policy.Sources()[s].Name, rule)}
			changed, err := reload(m.policy, s, root, list, c.list)
			if err != nil {
				return fmt.Errorf("%s: %w", mutant, err)
			}
			m.judge(mutant, changed)
		}
	}
	return nil
}

func (m *mutator) judge(mutant Mutant, changed *policy.Policy) {
	m.result.Mutants++
	if noticed(m.suites, changed) {
		return
	}
	probes := m.probes[mutant.Group]
	if m.expected[mutant.Group] == nil {
		m.expected[mutant.Group] = outcomes(m.policy, probes)
	}
	at := differs(changed, probes, m.expected[mutant.Group])
	if at < 0 {
		m.result.Equivalent++
		return
	}
	mutant.Witness = probes[at]
	m.result.Survivors = append(m.result.Survivors, mutant)
}

type change struct {
	kind string
	list []*strictyaml.Node
}

// mutantsOf returns the changes of one rule of a list.
func mutantsOf(list *strictyaml.Node, i int) []change {
	without := slices.Delete(slices.Clone(list.Content), i, i+1)
	inverted := slices.Clone(list.Content)
	inverted[i] = invert(list.Content[i])
	out := []change{{"deleted", without}, {"inverted", inverted}}
	if i+1 < len(list.Content) {
		swapped := slices.Clone(list.Content)
		swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
		out = append(out, change{"reordered", swapped})
	}
	return out
}

// invert turns a rule that lets requests through into one that denies them,
// and any other into one that allows them.
func invert(rule *strictyaml.Node) *strictyaml.Node {
	out := *rule
	out.Content = nil
	approve := strictyaml.Value(rule, "decision") != nil && strictyaml.Value(rule, "decision").Value == policy.Approve.String()
	for i := 0; i+1 < len(rule.Content); i += 2 {
		key, val := rule.Content[i], rule.Content[i+1]
		if key.Value == "redirect_to" || key.Value == "preserve_tree" || approve && key.Value == "timeout" {
			continue
		}
		if key.Value == "args" && (len(val.Content) == 0 || slices.ContainsFunc(val.Content, excepts)) {
			continue // no arguments, or any value but some: only one side may say it
		}
		if key.Value == "decision" {
			word := policy.Allow.String()
			if val.Value == policy.Allow.String() || val.Value == policy.Audit.String() {
				word = policy.Deny.String()
			}
			val = &strictyaml.Node{Kind: strictyaml.Scalar, Tag: "!!str", Value: word}
		}
		out.Content = append(out.Content, key, val)
	}
	return &out
}

// excepts reports a word pattern of any value but some.
func excepts(word *strictyaml.Node) bool { return strings.Contains(word.Value, "=!") }

func ruleName(rule *strictyaml.Node) string {
	if n := strictyaml.Value(rule, "name"); n != nil {
		return n.Value
	}
	return ""
}

func position(file string, n *strictyaml.Node) policy.Position {
	return policy.Position{File: file, Line: n.Line, Column: n.Column}
}

// reload loads p again with one list of rules of its source number s replaced.
func reload(p *policy.Policy, s int, root, list *strictyaml.Node, rules []*strictyaml.Node) (*policy.Policy, error) {
	kept := list.Content
	list.Content = rules
	text, err := strictyaml.Marshal(root)
	list.Content = kept
	if err != nil {
		return nil, err
	}
	sources := slices.Clone(p.Sources())
	sources[s].Data = text
	return syntax.Load(sources[0], syntax.Options{Vars: p.Vars(), ReadFile: func(name string) ([]byte, error) {
		for _, source := range sources {
			if source.Name == name {
				return source.Data, nil
			}
		}
		return nil, fmt.Errorf("%s is not a source of the policy", name)
	}})
}

func noticed(suites []*Suite, p *policy.Policy) bool {
	for _, s := range suites {
		for i := range s.Cases {
			if judge(&s.Cases[i], p).Problem != "" {
				return true
			}
		}
	}
	return false
}

// outcome is the part of a decision by which a caller can distinguish two
// decisions.
type outcome struct {
	effect   policy.Effect
	redirect string
}

func outcomeOf(p *policy.Policy, q policy.Request) outcome {
	d, _ := p.Evaluate(q)
	o := outcome{effect: d.Effect}
	if d.Effect == policy.Redirect && d.Rule != nil && d.Rule.Redirect != nil {
		o.redirect = fmt.Sprint(*d.Rule.Redirect)
	}
	return o
}

func outcomes(p *policy.Policy, probes []policy.Request) []outcome {
	out := make([]outcome, len(probes))
	for i, q := range probes {
		out[i] = outcomeOf(p, q)
	}
	return out
}

// differs is the first probe that p decides otherwise, or -1.
func differs(p *policy.Policy, probes []policy.Request, want []outcome) int {
	for i, q := range probes {
		if outcomeOf(p, q) != want[i] {
			return i
		}
	}
	return -1
}
