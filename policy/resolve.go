package policy

// Resolvable decides whether a name may be looked up, before its addresses and
// the port are known: some rule could permit a connection to it by its name, and
// no rule denies everything about it first. Approve means that a person decides.
// A rule of networks alone permits addresses, not the lookup of names.
func (p *Policy) Resolvable(name Host, binary string) (Decision, Diagnostic) {
	q := &NetworkRequest{Domain: name.name, Binary: binary}
	if name.name == "" {
		return Decision{}, Diagnostic{Rule: "default", Message: "the host name is malformed"}
	}
	to := destination{NetworkRequest: q, domain: name.name}
	for _, rule := range p.groups[GroupNetwork].rules {
		m := rule.network
		if m.hosts && !m.any && !m.matchesDomain(name.name) {
			continue
		}
		if len(m.binaries) > 0 && !matchesAny(m.binaries, binary) && (binary != "" || rule.Effect != Deny) {
			continue
		}
		narrowed := len(m.cidrs) > 0 || len(m.ports) > 0 || len(m.protocols) > 0 || len(m.methods) > 0 || len(m.paths) > 0
		switch {
		case rule.Effect == Deny && narrowed, rule.Effect != Deny && !m.hosts && len(m.cidrs) > 0:
			continue
		case rule.Effect == Deny:
			d := Decision{Rule: rule}
			return d, p.explain(q, d, reason{})
		}
		return p.ruled(q, rule)
	}
	d := p.fallback(defaultNetwork)
	if d.Permits() {
		return d, Diagnostic{Rule: "default"}
	}
	return d, p.explain(to.NetworkRequest, d, reason{})
}

// ruled is the decision of a rule that does not deny.
func (p *Policy) ruled(q *NetworkRequest, rule *Rule) (Decision, Diagnostic) {
	d := Decision{Effect: rule.Effect, Rule: rule}
	if !d.Permits() {
		return d, p.explain(q, d, reason{})
	}
	return d, Diagnostic{Rule: rule.Name, Pos: rule.Pos, Message: rule.Message}
}

// Inspects reports whether what is decided about a connection depends on the
// HTTP requests on it: whoever carries it must look into them. The request's
// Method and Path are not read.
func (p *Policy) Inspects(q *NetworkRequest) bool {
	to, why := q.destination()
	if why.text != "" {
		return false // denied whatever it carries
	}
	if p.inspects(to) {
		return true
	}
	inner, ok := embedded(to.addr)
	to.addr = inner
	return ok && p.inspects(to)
}

func (p *Policy) inspects(to destination) bool {
	for _, rule := range p.groups[GroupNetwork].rules {
		m := *rule.network
		m.methods, m.paths = nil, nil
		if m.matches(&to, rule.Effect) {
			if len(rule.network.methods) == 0 && len(rule.network.paths) == 0 {
				return false
			}
			return true
		}
	}
	return false
}

// InspectsAny reports whether a rule of the policy is about HTTP requests.
func (p *Policy) InspectsAny() bool {
	for _, rule := range p.groups[GroupNetwork].rules {
		if len(rule.network.methods) > 0 || len(rule.network.paths) > 0 {
			return true
		}
	}
	return false
}
