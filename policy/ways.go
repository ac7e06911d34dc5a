package policy

import "net/netip"

// Way is a set of destinations that a policy may allow.
type Way struct {
	Network netip.Prefix // zero: every public address, as names may lead there
	Guarded bool         // Network is zero: addresses that are [Guarded], too
	Ports   []PortRange  // empty: all
}

// Ways returns the destinations that connections of a session may have. It is for what
// enforces addresses and ports alone, around a session: rules decide about less. names
// reports whether a session looks up names.
func (p *Policy) Ways() (ways []Way, names bool) {
	if orDeny(p.def.Defaults.Network) != Deny {
		return []Way{{Guarded: true}}, true
	}
	for _, rule := range p.def.Rules[GroupNetwork] {
		if rule.Effect == Deny {
			continue
		}
		m := rule.Network
		names = names || m.Any || len(m.Domains) > 0
		for _, n := range m.Addresses {
			ways = append(ways, Way{Network: n, Ports: m.Ports})
		}
		for _, n := range m.CIDRs {
			ways = append(ways, Way{Network: n, Ports: m.Ports})
		}
		if len(m.CIDRs) == 0 && (m.Any || len(m.Domains) > 0 || !m.HasDomains) {
			ways = append(ways, Way{Ports: m.Ports})
		}
	}
	return ways, names
}
