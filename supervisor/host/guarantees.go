package host

import (
	"agentsh/internal/wire"
	"agentsh/supervisor"
	"agentsh/supervisor/probe"
)

// held is what decides about the guarantees of a session.
type held struct {
	missing probe.Missing
	shared  bool // the session has the machine's network
	by      bool // the place decides about it
	proxy   bool // rules or credentials govern its network
	scopes  bool // Landlock's scopes restrict it
}

// guarantees says for every group of rules whether a session holds it, and how.
func guarantees(s *supervisor.Session) []wire.Guarantee {
	return held{
		missing: s.Missing(), shared: s.Config().Network.Shared, by: s.Config().Network.By != "", proxy: s.Network() != nil,
		scopes: s.Missing().HasScopes(),
	}.groups()
}

// groups are the groups of [groupTable]. The group of the network is that of the session's.
func (h held) groups() []wire.Guarantee {
	var out []wire.Guarantee
	for _, g := range groupTable {
		by, how := g.by, g.how
		switch g.name {
		case sharedNetwork, withoutProxy:
			continue
		case wire.GroupNetwork:
			by, how = h.network(g)
		case wire.GroupCredentials:
			if h.by {
				by, how = h.network(g)
			}
		case wire.GroupLimits:
			if h.missing.Has(probe.Cgroup) {
				how = limitsWithoutGroups
			}
		default:
			if left, is := h.reduced(g.name); is {
				by, how = left.by, left.how
			} else if scoped[g.name] && h.scopes {
				how += scopesBeneath
			}
		}
		out = append(out, wire.Guarantee{Group: g.name, Held: by.holds(), How: how})
	}
	return out
}

// reduced is what is left of a group in the session; false: nothing of it is missing.
func (h held) reduced(name string) (reduced, bool) {
	for _, left := range reducedTable[name] {
		if h.missing.Has(left.mechanism) {
			return left, true
		}
	}
	return reduced{}, false
}

// network says what holds the network of the session.
func (h held) network(g group) (Enforcement, string) {
	switch {
	case h.by:
		return NotEnforced, "nothing: the place of the sandbox decides about its network"
	case h.missing.Has(probe.NestedCommands) && h.shared:
		return NotEnforced, "the machine's network is shared, and no call of a command is stopped"
	case h.shared && !h.proxy:
		return NotEnforced, "the machine's network is shared, and the policy has no network_rules"
	case h.missing.Has(probe.NestedCommands):
	case h.shared, h.proxy && h.missing.Has(probe.Namespaces):
		for _, s := range groupTable {
			if s.name == sharedNetwork {
				return s.by, s.how
			}
		}
	}
	if left, is := h.reduced(g.name); is {
		return left.by, left.how
	}
	return g.by, g.how
}
