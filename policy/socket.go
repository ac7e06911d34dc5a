package policy

import "agentsh/policy/glob"

// socketRules evaluates Unix socket requests.
type socketRules struct {
	rules    []*Rule
	paths    *glob.Set // absolute paths
	abstract *glob.Set // names with their @
	other    Effect    // where no rule matches
}

func newSocketRules(rules []*Rule, d Defaults) socketRules {
	var paths, abstract []glob.Numbered
	for i, rule := range rules {
		for _, g := range rule.Socket.Paths {
			paths = append(paths, glob.Numbered{Glob: g, ID: int32(i)})
		}
		for _, g := range rule.Socket.Abstract {
			abstract = append(abstract, glob.Numbered{Glob: g, ID: int32(i)})
		}
	}
	return socketRules{
		rules: rules, paths: glob.NewSet(glob.Path, paths), abstract: glob.NewSet(glob.Text, abstract), other: orDeny(d.UnixSocket),
	}
}

func (s *socketRules) decide(q *UnixSocketRequest) (Decision, reason) {
	if !cleanPath(q.Path) && (q.Path == "" || q.Path[0] != '@') {
		return Decision{}, reason{text: "the socket's path is not absolute and resolved"}
	}
	rules := s.rules
	among := s.paths
	if q.Path[0] == '@' {
		among = s.abstract
	}
	id := among.First(q.Path, none, func(id int32) bool { return rules[id].Socket.governs(q.Op, rules[id].Effect) })
	if id != none {
		return Decision{Effect: rules[id].Effect, Rule: rules[id]}, reason{}
	}
	return Decision{Effect: s.other}, reason{}
}

// SocketSelector has the conditions of a Unix socket rule.
type SocketSelector struct {
	Paths    []*glob.Glob // absolute paths
	Abstract []*glob.Glob // names with their @
	Ops      uint8        // bits by SocketOps
}

// SocketOps lists the operations on Unix sockets. Bit n of [SocketSelector.Ops]
// is operation n.
var SocketOps = []string{"connect", "bind", "listen", "sendto"}

// AllSocketOps is the set of every operation of [SocketOps].
const AllSocketOps = 1<<4 - 1

// governs reports whether the rule applies to an operation. An unknown
// operation matches deny rules and no allow rule.
func (s *SocketSelector) governs(op string, effect Effect) bool {
	for i, w := range SocketOps {
		if w == op {
			return s.Ops&(1<<i) != 0
		}
	}
	return !effect.Permits()
}
