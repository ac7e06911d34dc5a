package policytest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"agentsh/policy"
)

// Difference is a set of requests that two policies decide differently. One
// pair of rules decides all of them.
type Difference struct {
	Group      policy.Group
	Before     policy.Effect
	After      policy.Effect
	RuleBefore string // name, or "default"
	RuleAfter  string
	Requests   []policy.Request // at most [MaxExamples], the shortest first
	Count      int              // probes decided so
}

// MaxExamples bounds the requests that one [Difference] lists.
const MaxExamples = 5

// Kind returns "allowed", "denied" or "changed".
func (d Difference) Kind() string {
	before, after := policy.Decision{Effect: d.Before}.Permits(), policy.Decision{Effect: d.After}.Permits()
	switch {
	case !before && after:
		return "allowed"
	case d.Before != policy.Deny && d.After == policy.Deny:
		return "denied"
	}
	return "changed"
}

// Diff returns the requests that b decides differently from a. It tries the
// probes of both policies.
func Diff(a, b *policy.Policy) ([]Difference, error) {
	probes, err := NewProbes(a, b)
	if err != nil {
		return nil, err
	}
	var out []Difference
	for _, g := range groups {
		out = append(out, diffGroup(a, b, probes[g])...)
	}
	return out, nil
}

func diffGroup(a, b *policy.Policy, probes []policy.Request) []Difference {
	type pair struct {
		before, after outcome
		ruleA, ruleB  string
	}
	found := map[pair]*Difference{}
	var order []*Difference
	for _, q := range probes {
		oa, ob := outcomeOf(a, q), outcomeOf(b, q)
		if oa == ob {
			continue
		}
		key := pair{oa, ob, decidedBy(a, q), decidedBy(b, q)}
		d := found[key]
		if d == nil {
			d = &Difference{Group: GroupOf(q), Before: oa.effect, After: ob.effect, RuleBefore: key.ruleA, RuleAfter: key.ruleB}
			found[key] = d
			order = append(order, d)
		}
		d.Count++
		d.Requests = append(d.Requests, q)
	}
	out := make([]Difference, len(order))
	for i, d := range order {
		slices.SortStableFunc(d.Requests, func(x, y policy.Request) int { return cmp.Compare(len(Describe(x)), len(Describe(y))) })
		d.Requests = d.Requests[:min(len(d.Requests), MaxExamples)]
		out[i] = *d
	}
	return out
}

func decidedBy(p *policy.Policy, q policy.Request) string {
	if d, _ := p.Evaluate(q); d.Rule != nil {
		return d.Rule.Name
	}
	return "default"
}

// GroupOf returns the group of rules that decides a request.
func GroupOf(q policy.Request) policy.Group {
	switch q.(type) {
	case *policy.FileRequest:
		return policy.GroupFile
	case *policy.NetworkRequest:
		return policy.GroupNetwork
	case *policy.UnixSocketRequest:
		return policy.GroupUnixSocket
	case *policy.SignalRequest:
		return policy.GroupSignal
	}
	return policy.GroupCommand
}

// Describe describes a request on one line, for people.
func Describe(q policy.Request) string {
	switch q := q.(type) {
	case *policy.CommandRequest:
		return describeCommand(q)
	case *policy.FileRequest:
		return fmt.Sprintf("%s %s", q.Op, quoteWord(q.Path))
	case *policy.NetworkRequest:
		return describeNetwork(q)
	case *policy.UnixSocketRequest:
		return fmt.Sprintf("%s %s", q.Op, quoteWord(q.Path))
	case *policy.SignalRequest:
		text := fmt.Sprintf("signal %s to %s", SignalName(q.Signal), q.Target)
		if q.Name != "" {
			text += " " + quoteWord(q.Name)
		}
		return fmt.Sprintf("%s pid %d", text, q.PID)
	}
	return fmt.Sprintf("%v", q)
}

func describeCommand(q *policy.CommandRequest) string {
	words := make([]string, len(q.Argv))
	for i, w := range q.Argv {
		words[i] = quoteWord(w)
	}
	text := strings.Join(words, " ")
	if q.Parent != "" {
		text += fmt.Sprintf(" (below %s, depth %d)", quoteWord(q.Parent), q.Depth)
	}
	if q.Cwd != "" {
		text += " (in " + quoteWord(q.Cwd) + ")"
	}
	return text
}

func describeNetwork(q *policy.NetworkRequest) string {
	text := fmt.Sprintf("%s %s:%d", q.Protocol, q.Host(), q.Port)
	if q.Method != "" || q.Path != "" {
		text += " " + strings.TrimSpace(q.Method+" "+q.Path)
	}
	if q.Binary != "" {
		text += " by " + quoteWord(q.Binary)
	}
	return text
}

// SignalName returns the name of a signal, such as KILL for 9. It returns the
// number if the signal has no name.
func SignalName(n int) string {
	if name := unix.SignalName(unix.Signal(n)); name != "" {
		return strings.TrimPrefix(name, "SIG")
	}
	return fmt.Sprint(n)
}

// quoteWord quotes text that is not printable or could be misread.
func quoteWord(s string) string {
	plain := s != ""
	for _, c := range s {
		if c <= ' ' || c >= 0x7f || strings.ContainsRune(`"'\$`+"`", c) {
			plain = false
		}
	}
	if plain {
		return s
	}
	return fmt.Sprintf("%q", s)
}
