package policy

// HostRequest checks whether a program may reach a host at all. It is evaluated
// early. For a name, addresses and port are not known yet. For an address, the
// connection has sent no bytes yet.
type HostRequest struct {
	Host      Host
	Names     []HostName // names that were resolved to the address; not used for a name
	Port      int        // of an address
	Binary    string     // path of the program that connects
	Inspected bool       // connections to the address itself are inspected even if no rule needs it
}

// HostName is a name that resolved to an address.
type HostName struct {
	Name      string
	Inspected bool // connections by this name are inspected even if no rule needs it
}

// HostDecision is the result of a [HostRequest].
type HostDecision struct {
	// Decision is selected in this order: the first name that is allowed; the
	// address itself if it is allowed; the first name or address that needs
	// approval. If there is none, every connection to the host is denied,
	// whatever it sends.
	Decision
	Diagnostic Diagnostic
	Name       string   // the name that Decision applies to; empty: the host as given
	Names      []string // all names by which the address is allowed
	Direct     bool     // the address itself is allowed
	Inspected  bool     // a connection to the address itself is inspected
}

// Forbidden reports whether every connection to the host is denied.
func (d *HostDecision) Forbidden() bool { return d.Effect == Deny }

// EvaluateHost decides whether a program may reach a host. The name server and
// the proxy call it before they resolve a name. The proxy and the handler of
// connect(2) call it before a connection to an address. A name is allowed if a
// rule could allow a connection by that name and no earlier rule denies
// everything to it. A rule that has only networks allows addresses, but not the
// lookup of names.
func (p *Policy) EvaluateHost(q *HostRequest) HostDecision {
	if !q.Host.addr.IsValid() {
		d, diag := p.lookup(q.Host, q.Binary)
		return HostDecision{Decision: d, Diagnostic: diag}
	}
	var first HostDecision // allowed or needs approval
	out := HostDecision{}
	consider := func(name string, inspected bool) bool {
		d, diag := p.evaluateAddress(q, name, inspected)
		if d.Permits() && !first.Permits() || d.Effect == Approve && first.Effect == Deny {
			first = HostDecision{Decision: d, Diagnostic: diag, Name: name}
		}
		out.Decision, out.Diagnostic = d, diag // the last one applies to the address itself
		return d.Permits()
	}
	for _, n := range q.Names {
		if consider(n.Name, n.Inspected || p.inspectsAddress(q, n.Name)) {
			out.Names = append(out.Names, n.Name)
		}
	}
	out.Inspected = q.Inspected || p.inspectsAddress(q, "")
	out.Direct = consider("", out.Inspected)
	if first.Effect != Deny {
		out.Decision, out.Diagnostic, out.Name = first.Decision, first.Diagnostic, first.Name
	}
	return out
}

func (p *Policy) evaluateAddress(q *HostRequest, name string, inspected bool) (Decision, Diagnostic) {
	request := q.connection(name)
	if inspected {
		request.Method = Intercepted
	}
	return p.Evaluate(request)
}

func (p *Policy) inspectsAddress(q *HostRequest, name string) bool {
	return p.Inspects(q.connection(name))
}

// connection returns the request of a TCP connection to the address by a name.
func (q *HostRequest) connection(name string) *NetworkRequest {
	return &NetworkRequest{Domain: name, Addr: q.Host.addr, Port: q.Port, Protocol: "tcp", Binary: q.Binary}
}

// lookup decides whether a name may be resolved. It can return Approve. A rule that asks
// about some addresses of a name asks when they are known, unless nothing else lets the name
// be looked up.
func (p *Policy) lookup(name Host, binary string) (Decision, Diagnostic) {
	q := &NetworkRequest{Domain: name.name, Binary: binary}
	if name.name == "" {
		return Decision{}, Diagnostic{Rule: "default", Message: "the host name is malformed"}
	}
	var asks *Rule
	for _, rule := range p.network.rules {
		m := rule.Network
		if m.HasDomains && !m.Any && !m.matchesDomain(name.name) {
			continue
		}
		if len(m.Binaries) > 0 && !matchesAny(m.Binaries, binary) && (binary != "" || rule.Effect != Deny) {
			continue
		}
		narrowed := len(m.CIDRs) > 0 || len(m.Ports) > 0 || len(m.Protocols) > 0 || len(m.Methods) > 0 || len(m.Paths) > 0
		switch {
		case rule.Effect == Deny && narrowed, rule.Effect != Deny && !m.HasDomains && len(m.CIDRs) > 0:
			continue
		case rule.Effect == Approve && narrowed:
			if asks == nil {
				asks = rule
			}
			continue
		case rule.Effect == Deny && asks != nil:
			return p.ruled(q, asks)
		case rule.Effect == Deny:
			d := Decision{Rule: rule}
			return d, p.explain(q, d, reason{})
		}
		return p.ruled(q, rule)
	}
	d := Decision{Effect: p.network.other}
	if d.Permits() {
		return d, Diagnostic{Rule: "default"}
	}
	if asks != nil {
		return p.ruled(q, asks)
	}
	return d, p.explain(q, d, reason{})
}
