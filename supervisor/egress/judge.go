package egress

import (
	"context"
	"net/netip"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// open judges a way to a destination. The flow is registered and its begin is
// recorded; a refusal is recorded too.
func (c *client) open(to destination) (*flow, *refusal) {
	f := &flow{client: c, to: to, name: to.host.Name(), approved: map[*policy.Rule]bool{}}
	var refused *refusal
	switch {
	case to.port == 0:
		refused = against("destination", "port 0 leads nowhere", "")
	case c.p.secrets.inName(to.host.Name()) != nil:
		refused = c.p.secrets.inName(to.host.Name()).misplaced("a host name")
	case f.name != "":
		refused = f.judgeName()
	default:
		refused = f.judgeAddress()
	}
	if refused == nil {
		refused = f.begin()
	}
	if refused != nil {
		return nil, c.refuse(to.String(), refused)
	}
	return f, nil
}

// judgeName judges a way to a name: whether it may be looked up, and then each
// of its addresses.
func (f *flow) judgeName() *refusal {
	p := f.client.p
	named := p.opts.Policy().EvaluateHost(&policy.HostRequest{Host: f.to.host, Binary: f.client.caller.Process.Exe})
	if refused := f.admit(named.Decision, named.Diagnostic, f.to.String()); refused != nil {
		return refused
	}
	addrs, err := p.names.lookup(f.client.ctx, f.name)
	if err != nil {
		return failed("look up %s: %v", f.name, err)
	}
	f.looked.Store(p.secrets.endpoint(f.to) || f.inspects(f.name, addrs))
	var first *refusal
	for _, a := range addrs {
		d, diag := f.evaluate(f.name, a)
		if refused := f.admit(d, diag, f.to.String()); refused != nil {
			if first == nil {
				first = refused
			}
			continue
		}
		f.addrs = append(f.addrs, a)
		f.take(d, diag)
	}
	if len(f.addrs) == 0 {
		return first
	}
	return nil
}

// judgeAddress judges a way to an address: it is allowed itself, or was
// answered for a name that is.
func (f *flow) judgeAddress() *refusal {
	p := f.client.p
	addr := f.to.host.Addr()
	f.addrs = []netip.Addr{addr}
	d := p.evaluateAddress(f.to, f.client.caller)
	f.names, f.direct = d.Names, d.Direct
	f.looked.Store(d.Inspected)
	if d.Forbidden() {
		return denied(d.Diagnostic)
	}
	f.take(d.Decision, d.Diagnostic)
	if d.Permits() {
		return nil
	}
	shown := f.to
	if d.Name != "" {
		shown.host, _ = policy.ParseHost(d.Name) // it is a name that was answered
		f.names = []string{d.Name}
	}
	f.direct = d.Name == ""
	return f.admit(d.Decision, d.Diagnostic, shown.String())
}

// evaluateAddress asks the policy about an address, with the names that it was
// answered for.
func (p *Proxy) evaluateAddress(to destination, caller Caller) policy.HostDecision {
	q := &policy.HostRequest{Host: to.host, Port: int(to.port), Binary: caller.Process.Exe, Inspected: p.secrets.endpoint(to)}
	for _, name := range p.names.of(to.host.Addr()) {
		host, err := policy.ParseHost(name)
		q.Names = append(q.Names, policy.HostName{Name: name, Inspected: err != nil || p.secrets.endpoint(destination{host, to.port})})
	}
	return p.opts.Policy().EvaluateHost(q)
}

// wants reports whether the requests of a way by this name are to be looked
// into.
func (f *flow) wants(name string) bool {
	to := f.to
	if name != "" {
		host, err := policy.ParseHost(name)
		if err != nil {
			return true
		}
		to.host = host
	}
	return f.client.p.secrets.endpoint(to) || f.inspects(name, f.addrs)
}

func (f *flow) inspects(name string, addrs []netip.Addr) bool {
	for _, a := range addrs {
		if f.client.p.opts.Policy().Inspects(f.client.request(name, a, f.to.port)) {
			return true
		}
	}
	return false
}

// evaluate decides about the connection as a whole.
func (f *flow) evaluate(name string, addr netip.Addr) (policy.Decision, policy.Diagnostic) {
	q := f.client.request(name, addr, f.to.port)
	if f.looked.Load() {
		q.Method = policy.Intercepted
	}
	return f.client.p.opts.Policy().Evaluate(q)
}

// take keeps the decision that a way goes ahead by: the first that permits.
func (f *flow) take(d policy.Decision, diag policy.Diagnostic) {
	if f.diag.Rule == "" {
		f.decision, f.diag = d, diag
	}
}

// admit carries a decision out: nil when it permits, or when a person does.
func (f *flow) admit(d policy.Decision, diag policy.Diagnostic, shown string) *refusal {
	switch {
	case d.Permits():
		return nil
	case d.Effect != policy.Approve:
		return denied(diag)
	case f.isApproved(d.Rule):
		return nil
	}
	if refused := f.client.ask(f.client.ctx, d, diag, "tcp "+shown); refused != nil {
		return refused
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.approved[d.Rule] = true
	return nil
}

// isApproved reports whether a person permitted the connection by a rule.
func (f *flow) isApproved(r *policy.Rule) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.approved[r]
}

// ask puts a question to a person. No answer is a denial.
func (c *client) ask(ctx context.Context, d policy.Decision, diag policy.Diagnostic, subject string) *refusal {
	refused := denied(diag)
	if c.p.opts.Approve == nil {
		return refused
	}
	q := wire.Question{Command: c.caller.Command, Kind: "net", Subject: subject, Rule: ruleAt(diag)}
	if d.Rule != nil {
		q.Message, q.TimeoutMS = d.Rule.Message, d.Rule.ApproveTimeout.Milliseconds()
	}
	if c.caller.Process != (wire.Process{}) {
		process := c.caller.Process
		q.Process = &process
	}
	answer := c.p.opts.Approve(ctx, q)
	if answer.Allow {
		return nil
	}
	if answer.Reason != "" {
		refused.diag.Hint = answer.Reason
	}
	return refused
}

// settle holds what a client says inside its connection, by TLS or in an HTTP
// request, against where it asked to go. An empty said is TLS without a name.
func (f *flow) settle(said string) *refusal {
	if said == "" {
		if f.direct {
			return nil
		}
		return against("agreement", "the TLS handshake names no server, so that it cannot be held against "+f.to.String(),
			"have the client send the server name (SNI), or allow the address by itself")
	}
	host, err := policy.ParseHost(said)
	switch {
	case err != nil:
		return against("agreement", "the connection to "+f.to.String()+" names a malformed host", "")
	case f.to.host.Name() != "" && host == f.to.host:
		return nil
	case f.to.host.Name() != "" || host.Name() == "" && (host != f.to.host || !f.direct):
		return against("agreement", "the connection is to "+f.to.String()+" but asks for "+host.String(), "connect to the host that is asked for")
	case host.Name() == "":
		return nil
	}
	return f.adopt(host)
}

// adopt makes the way of an address that of a name said on it, if that is one
// the address was answered for, or the address is allowed whatever its name.
func (f *flow) adopt(host policy.Host) *refusal {
	name := host.Name()
	known := false
	for _, n := range f.names {
		known = known || n == name
	}
	if !known && !f.direct {
		return against("agreement", "the connection is to "+f.to.String()+", which was not answered for "+name+" or is not allowed by it",
			"look the name up first, or connect through the proxy that HTTPS_PROXY names")
	}
	was := f.looked.Swap(f.wants(name))
	d, diag := f.evaluate(name, f.to.host.Addr())
	if refused := f.admit(d, diag, name+" ("+f.to.String()+")"); refused != nil {
		f.looked.Store(was)
		return refused
	}
	f.mu.Lock()
	f.name, f.decision, f.diag = name, d, diag
	f.mu.Unlock()
	return nil
}

// judgeRequest decides about one HTTP request on the way. Each meaning of it is
// judged for each address: the strictest answer holds.
func (f *flow) judgeRequest(ctx context.Context, meanings []meaning) (policy.Decision, policy.Diagnostic, *refusal) {
	pol := f.client.p.opts.Policy()
	var worst policy.Decision
	var diag policy.Diagnostic
	var meant meaning
	for i, m := range meanings {
		for j, a := range f.addrs {
			q := f.client.request(f.name, a, f.to.port)
			q.Method, q.Path = m.method, m.path
			d, g := pol.Evaluate(q)
			if i+j == 0 || strictness(d) > strictness(worst) {
				worst, diag, meant = d, g, m
			}
		}
	}
	if meant != meanings[0] && !worst.Permits() {
		diag.Message += "; by its headers or query the request is also " + meant.method + " " + meant.path
	}
	switch {
	case worst.Permits(), worst.Effect == policy.Approve && f.isApproved(worst.Rule):
		return worst, diag, nil
	case worst.Effect == policy.Approve:
		return worst, diag, f.client.ask(ctx, worst, diag, "tcp "+f.shown()+" "+meant.method+" "+meant.path)
	}
	return worst, diag, denied(diag)
}

// strictness orders decisions: permitted, to be asked about, denied.
func strictness(d policy.Decision) int {
	switch {
	case d.Permits():
		return 0
	case d.Effect == policy.Approve:
		return 1
	}
	return 2
}
