package egress

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"agentsh/policy"
)

// localLife is how long an answer about the session itself counts.
const localLife = time.Hour

// local answers what programs ask about the session itself, without an event: which
// address localhost and its own name have, and which name a local address has. The C
// library asks for IPv6 addresses of names for which the hosts file has only IPv4 ones. A
// rule that permits a name comes first. See RFC 6761, 6.3.
func (p *Proxy) local(from origin, host policy.Host, kind dnsmessage.Type) (a *answer, code dnsmessage.RCode, known bool) {
	name := host.Name()
	if addr, reverse := reverseAddr(name); reverse {
		// Names of machines beside this one are not for others to know either.
		return nil, dnsmessage.RCodeNameError, addr.IsLoopback() || addr.IsPrivate() || addr.IsUnspecified() || addr.IsLinkLocalUnicast()
	}
	addrs := p.localAddrs(name)
	if addrs == nil || p.judge.host(from, destination{host: host}).Permits() {
		return nil, 0, false
	}
	if kind != dnsmessage.TypeA && kind != dnsmessage.TypeAAAA {
		addrs = nil
	}
	return &answer{addrs: addrs, until: time.Now().Add(localLife)}, dnsmessage.RCodeSuccess, true
}

var loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// localAddrs returns the addresses of a name of the session itself; none: it is of
// something else.
func (p *Proxy) localAddrs(name string) []netip.Addr {
	if name == p.opts.HostName {
		return []netip.Addr{loopback4}
	}
	if strings.HasSuffix(name, ".localhost") {
		name = "localhost"
	}
	addrs := p.judge.names.hosts.addrs(name)
	if slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.IsLoopback() }) {
		addrs = nil
	}
	if len(addrs) == 0 && name == "localhost" {
		return []netip.Addr{loopback4, netip.IPv6Loopback()}
	}
	return addrs
}

// reverseAddr returns the address whose name is asked for by a name in in-addr.arpa or
// ip6.arpa, if it is a whole one.
func reverseAddr(name string) (netip.Addr, bool) {
	if labels, ok := strings.CutSuffix(name, ".in-addr.arpa"); ok {
		parts := strings.Split(labels, ".")
		slices.Reverse(parts)
		addr, err := netip.ParseAddr(strings.Join(parts, "."))
		return addr, err == nil
	}
	labels, ok := strings.CutSuffix(name, ".ip6.arpa")
	if !ok {
		return netip.Addr{}, false
	}
	parts := strings.Split(labels, ".")
	slices.Reverse(parts)
	raw, err := hex.DecodeString(strings.Join(parts, ""))
	if err != nil || len(parts) != 32 || len(raw) != 16 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom16([16]byte(raw)), true
}
