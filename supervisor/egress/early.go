package egress

import (
	"net/netip"

	"agentsh/policy"
)

// Forbidden reports whether a connection to an address would be refused whatever
// is said on it, and records the refusal: the address is denied, by itself and
// by each name it was answered for. Whoever makes connections for others can say
// so at once, instead of ending them at the proxy.
func (p *Proxy) Forbidden(to netip.AddrPort, who Caller) bool {
	c := &client{p: p, caller: who, via: viaTransparent, ctx: p.ctx}
	addr := policy.HostOf(to.Addr()).Addr()
	f := &flow{client: c, to: destination{policy.HostOf(addr), to.Port()}, addrs: []netip.Addr{addr}}
	for _, name := range append(p.names.of(addr), "") {
		f.looked.Store(f.wants(name))
		if d, _ := f.evaluate(name, addr); d.Effect != policy.Deny {
			return false
		}
	}
	_, diag := f.evaluate("", addr)
	_ = c.refuse(f.to.String(), denied(diag)) // recorded; there is nobody to answer
	return true
}
