package policy

// ruled returns the decision of a rule that does not deny.
func (p *Policy) ruled(q *NetworkRequest, rule *Rule) (Decision, Diagnostic) {
	d := Decision{Effect: rule.Effect, Rule: rule}
	if !d.Permits() {
		return d, p.explain(q, d, reason{})
	}
	return d, Diagnostic{Rule: rule.Name, Pos: rule.Pos, Message: rule.Message}
}

// Inspects reports whether decisions on a connection depend on its HTTP
// requests. The proxy must then inspect them. Method and Path of q are ignored.
func (p *Policy) Inspects(q *NetworkRequest) bool {
	to, why := q.destination()
	if why.text != "" {
		return false // denied, with any content
	}
	if p.network.inspects(to) {
		return true
	}
	inner, ok := embedded(to.addr)
	to.addr = inner
	return ok && p.network.inspects(to)
}

func (n *networkRules) inspects(to destination) bool {
	for _, rule := range n.rules {
		m := *rule.Network
		m.Methods, m.Paths = nil, nil
		if m.matches(&to, rule.Effect) {
			if len(rule.Network.Methods) == 0 && len(rule.Network.Paths) == 0 {
				return false
			}
			return true
		}
	}
	return false
}

// InspectsAny reports whether any rule has conditions on HTTP requests.
func (p *Policy) InspectsAny() bool {
	for _, rule := range p.network.rules {
		if len(rule.Network.Methods) > 0 || len(rule.Network.Paths) > 0 {
			return true
		}
	}
	return false
}
