package egress

import (
	"net/netip"

	"agentsh/policy"
)

// Forbidden reports whether every connection to an address is denied: by itself,
// and by each name that it was answered for. It records the refusal. Whoever
// connects for others can refuse at once, before the proxy does.
func (p *Proxy) Forbidden(to netip.AddrPort, caller Caller) bool {
	d := p.evaluateAddress(destination{policy.HostOf(to.Addr()), to.Port()}, caller)
	if !d.Forbidden() {
		return false
	}
	c := &client{p: p, caller: caller, via: viaTransparent, ctx: p.ctx}
	_ = c.refuse(destination{policy.HostOf(to.Addr()), to.Port()}.String(), denied(d.Diagnostic)) // recorded; there is nobody to answer
	return true
}
