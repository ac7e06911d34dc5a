package egress

import (
	"context"
	"net/netip"
	"sync/atomic"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// judge decides about destinations and requests: by the policy in force, by what
// the name server answered, and by the credentials. It records nothing.
type judge struct {
	policy  func() *policy.Policy
	names   *names
	hidden  atomic.Pointer[secrets]
	approve func(context.Context, wire.Question) wire.Answer // nil: nobody can approve
}

// secrets are the credentials with their values of now.
func (j *judge) secrets() *secrets { return j.hidden.Load() }

// values are what is searched for in answers now.
func (j *judge) values() *needles { return j.secrets().values }

// open decides about a connection to a destination.
func (j *judge) open(ctx context.Context, from origin, to destination) (route, *refusal) {
	if to.port == 0 {
		return route{}, against("destination", "port 0 leads nowhere", "")
	}
	if s := j.secrets().inName(to.host.Name()); s != nil {
		return route{}, s.misplaced("a host name")
	}
	d := j.host(from, to)
	switch {
	case d.Forbidden():
		return route{}, denied(d.Diagnostic)
	case to.host.Name() != "":
		return j.openName(ctx, from, newRoute(to), d)
	}
	return j.openAddress(ctx, from, newRoute(to), d)
}

// host asks the policy about a host before anything else is known: about an
// address with the names that were resolved to it.
func (j *judge) host(from origin, to destination) policy.HostDecision {
	q := &policy.HostRequest{
		Host: to.host, Port: int(to.port), Binary: from.caller.Process.Exe, Inspected: j.secrets().endpoint(to),
	}
	if to.host.Name() != "" {
		return j.policy().EvaluateHost(q)
	}
	for _, name := range j.names.of(to.host.Addr()) {
		host, err := policy.ParseHost(name)
		inspected := err != nil || j.secrets().endpoint(destination{host, to.port})
		q.Names = append(q.Names, policy.HostName{Name: name, Inspected: inspected})
	}
	return j.policy().EvaluateHost(q)
}

// openName resolves a name that may be resolved, and decides about each of its
// addresses.
func (j *judge) openName(ctx context.Context, from origin, r route, d policy.HostDecision) (route, *refusal) {
	shown := r.to.String()
	if refused := j.permit(ctx, from, r.approved, verdict{d.Decision, d.Diagnostic}, shown); refused != nil {
		return r, refused
	}
	addrs, err := j.names.lookup(ctx, r.name)
	if err != nil {
		return r, unresolved(d, r.name, err)
	}
	r.inspected = j.secrets().endpoint(r.to) || j.inspects(from, r.name, addrs, r.to.port)
	var first *refusal
	for _, a := range addrs {
		v := j.evaluate(from, r, r.name, a)
		if refused := j.permit(ctx, from, r.approved, v, shown); refused != nil {
			if first == nil {
				first = refused
			}
			continue
		}
		r.addrs = append(r.addrs, a)
		r.allow(v)
	}
	if len(r.addrs) == 0 {
		return r, first
	}
	return r, nil
}

// openAddress decides about an address that some rule permits, or that a person
// must approve: by itself or by a name that was resolved to it.
func (j *judge) openAddress(ctx context.Context, from origin, r route, d policy.HostDecision) (route, *refusal) {
	v := verdict{d.Decision, d.Diagnostic}
	r.addrs, r.inspected, r.verdict = []netip.Addr{r.to.host.Addr()}, d.Inspected, v
	if d.Permits() {
		r.names, r.direct = d.Names, d.Direct
		return r, nil
	}
	shown := r.to
	if r.direct = d.Name == ""; !r.direct {
		shown.host, _ = policy.ParseHost(d.Name) // the name server answered it
		r.names = []string{d.Name}
	}
	return r, j.permit(ctx, from, r.approved, v, shown.String())
}

// evaluate decides about the connection as a whole.
func (j *judge) evaluate(from origin, r route, name string, addr netip.Addr) verdict {
	q := from.request(name, addr, r.to.port)
	if r.inspected {
		q.Method = policy.Intercepted
	}
	d, diag := j.policy().Evaluate(q)
	return verdict{d, diag}
}

// permit returns nil if a verdict permits, or if a person approves the
// connection, which it notes in approved.
func (j *judge) permit(ctx context.Context, from origin, approved *approvals, v verdict, shown string) *refusal {
	switch {
	case v.Permits():
		return nil
	case v.Effect != policy.Approve:
		return denied(v.diag)
	case approved.has(v.Rule):
		return nil
	}
	if refused := j.ask(ctx, from, v, "tcp "+shown); refused != nil {
		return refused
	}
	approved.add(v.Rule)
	return nil
}

// ask has a person decide. No answer is a denial.
func (j *judge) ask(ctx context.Context, from origin, v verdict, subject string) *refusal {
	refused := denied(v.diag)
	if j.approve == nil {
		return refused
	}
	q := wire.Question{Command: from.caller.Command, Kind: wire.AskNet, Rule: ruleOf(v.diag), Process: from.process()}
	q.Subject = wire.Name(subject)
	if v.Rule != nil {
		q.Message, q.TimeoutMS = v.Rule.Message, v.Rule.ApproveTimeout.Milliseconds()
	}
	answer := j.approve(ctx, q)
	if answer.Allow {
		return nil
	}
	if answer.Reason != "" {
		refused.diag.Hint = answer.Reason
	}
	refused.diag.Hint = answer.Hint(refused.diag.Hint)
	return refused
}

// wants reports whether the requests of a route by a name must be inspected.
func (j *judge) wants(from origin, r route, name string) bool {
	to := r.to
	if name != "" {
		host, err := policy.ParseHost(name)
		if err != nil {
			return true
		}
		to.host = host
	}
	return j.secrets().endpoint(to) || j.inspects(from, name, r.addrs, to.port)
}

// inspects reports whether a rule is about the requests to one of the addresses.
func (j *judge) inspects(from origin, name string, addrs []netip.Addr, port uint16) bool {
	for _, a := range addrs {
		if j.policy().Inspects(from.request(name, a, port)) {
			return true
		}
	}
	return false
}

// agree compares the host that a client names inside its connection, by TLS or in
// an HTTP request, with the destination. An empty said is TLS without a name. For
// a connection to an address it returns the route by the name.
func (j *judge) agree(ctx context.Context, from origin, r route, said string) (route, *refusal) {
	if said == "" {
		if r.direct {
			return r, nil
		}
		return r, against("agreement", "the TLS handshake names no server, so that it cannot be compared with "+r.to.String(),
			"have the client send the server name (SNI), or allow the address by itself")
	}
	host, err := policy.ParseHost(said)
	switch {
	case err != nil:
		return r, against("agreement", "the connection to "+r.to.String()+" names a malformed host", "")
	case r.to.host.Name() != "" && host == r.to.host:
		return r, nil
	case r.to.host.Name() != "" || host.Name() == "" && (host != r.to.host || !r.direct):
		return r, against("agreement", "the connection is to "+r.to.String()+" but asks for "+host.String(),
			"connect to the host that is asked for")
	case host.Name() == "":
		return r, nil
	}
	return j.byName(ctx, from, r, host.Name())
}

// byName decides about a connection to an address by a name. It must have been
// resolved to the address, or the address must be permitted by itself.
func (j *judge) byName(ctx context.Context, from origin, r route, name string) (route, *refusal) {
	known := r.direct
	for _, n := range r.names {
		known = known || n == name
	}
	if !known {
		return r, against("agreement", "the connection is to "+r.to.String()+", which was not answered for "+name+" or is not allowed by it",
			"look the name up first, or connect through the proxy that HTTPS_PROXY names")
	}
	next := r
	next.inspected = j.wants(from, r, name)
	v := j.evaluate(from, next, name, r.to.host.Addr())
	if refused := j.permit(ctx, from, r.approved, v, name+" ("+r.to.String()+")"); refused != nil {
		return r, refused
	}
	next.name, next.verdict = name, v
	return next, nil
}

// opaque decides about a connection that names no host, as it is neither TLS nor
// HTTP. It counts as one by the name that was resolved last and is not inspected.
func (j *judge) opaque(from origin, r route) (route, *refusal) {
	if r.to.host.Name() != "" || r.direct {
		return r, nil
	}
	for _, name := range r.names {
		if !j.wants(from, r, name) {
			r.name = name
			return r, nil
		}
	}
	return r, notInspectable(r.to.String())
}

// notInspectable refuses a connection that must be inspected and cannot be.
func notInspectable(shown string) *refusal {
	return against("inspection", "requests to "+shown+" are inspected, and this is neither TLS nor HTTP", "")
}

// request decides about one HTTP request. Each meaning is evaluated for each
// address; the strictest verdict holds.
func (j *judge) request(ctx context.Context, from origin, r route, meanings []meaning) (verdict, *refusal) {
	pol := j.policy()
	var worst verdict
	var meant meaning
	for i, m := range meanings {
		for k, a := range r.addrs {
			q := from.request(r.name, a, r.to.port)
			q.Method, q.Path = m.method, m.path
			d, diag := pol.Evaluate(q)
			if i+k == 0 || strictness(d) > strictness(worst.Decision) {
				worst, meant = verdict{d, diag}, m
			}
		}
	}
	if meant != meanings[0] && !worst.Permits() {
		worst.diag.Message += "; by its headers or query the request is also " + meant.method + " " + meant.path
	}
	switch {
	case worst.Permits(), worst.Effect == policy.Approve && r.approved.has(worst.Rule):
		return worst, nil
	case worst.Effect == policy.Approve:
		return worst, j.ask(ctx, from, worst, "tcp "+r.shown()+" "+meant.method+" "+meant.path)
	}
	return worst, denied(worst.diag)
}

// strictness orders decisions: permitted, to be approved, denied.
func strictness(d policy.Decision) int {
	switch {
	case d.Permits():
		return 0
	case d.Effect == policy.Approve:
		return 1
	}
	return 2
}

// recheck reports whether the policy in force permits an open connection as it
// is, and if not, why.
func (j *judge) recheck(from origin, r route) (policy.Diagnostic, bool) {
	pol := j.policy()
	for _, a := range r.addrs {
		q := from.request(r.name, a, r.to.port)
		if !r.inspected && pol.Inspects(q) {
			return policy.Diagnostic{
				Rule:    "reload",
				Message: "the policy in force now inspects the requests to " + r.shown(),
				Hint:    "connect again",
			}, false
		}
		if r.inspected {
			q.Method = policy.Intercepted
		}
		d, diag := pol.Evaluate(q)
		if !d.Permits() && (d.Effect != policy.Approve || !r.approved.any()) {
			return diag, false
		}
	}
	return policy.Diagnostic{}, true
}
