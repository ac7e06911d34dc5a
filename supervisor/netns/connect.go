package netns

import (
	"errors"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/egress"
	"agentsh/supervisor/notify"
)

// Connect answers the notification of a connect(2). It returns nil if the call
// may go on as the program made it. A destination that no rule can permit is
// refused now, so that the program reads EACCES; the proxy would refuse it too.
func (n *Network) Connect(q notify.Connect) *notify.Destination {
	q.To = netip.AddrPortFrom(q.To.Addr().Unmap(), q.To.Port())
	own := q.To.Addr().IsLoopback() || q.To.Addr().IsUnspecified()
	local := own && !n.shared
	if local && q.Stream && n.outside(&q) {
		return &notify.Destination{V4: n.at4.tcp, V6: n.at6.tcp, Register: n.callers.emulate(q)}
	}
	service := q.To.Port() == dnsPort || q.To == n.at4.proxy || q.To == n.at6.proxy
	if q.Stream && !local && !service && n.proxy.Forbidden(q.To, callerOf(q)) {
		return &notify.Destination{Errno: unix.EACCES}
	}
	if !n.emulated || local {
		n.callers.note(q)
		return nil
	}
	if own && q.Stream && !service && n.absent(q.To, callerOf(q)) {
		return &notify.Destination{Errno: unix.ECONNREFUSED}
	}
	to := &notify.Destination{V4: n.at4.tcp, V6: n.at6.tcp, Register: n.callers.emulate(q)}
	switch {
	case q.To.Port() == dnsPort:
		to.V4, to.V6 = n.at4.dns, n.at6.dns
	case q.To == n.at4.proxy, q.To == n.at6.proxy:
		to.V4, to.V6 = n.at4.proxy, n.at6.proxy
	}
	return to
}

// outside reports whether a connection to the session's own loopback is for a service
// of the machine: a rule permits that, and no program of the session listens there. It
// replaces the address that stands for any by the one of loopback. A service that no rule
// permits is not there for the session, and the refusal is recorded.
func (n *Network) outside(q *notify.Connect) bool {
	to := loopbackOf(q.To)
	if n.sockets == nil || n.sockets.listens(to) {
		return false
	}
	if n.proxy.Permits(to, callerOf(*q)) {
		q.To = to
		return !n.absent(to, callerOf(*q))
	}
	if listening, err := machineListens(to); listening && err == nil {
		n.proxy.RefuseService(to, callerOf(*q))
	}
	return false
}

// absent reports whether the machine has no service at an address of loopback that a rule
// permits: the program reads ECONNREFUSED, as it would outside, and tries the next address
// of localhost. A service that a rule names by its port may be at 127.0.0.1 without a
// listener, as translated addresses are.
func (n *Network) absent(to netip.AddrPort, caller egress.Caller) bool {
	to = loopbackOf(to)
	if listening, err := machineListens(to); err != nil || listening {
		return false
	}
	if to.Addr().Is6() || !n.proxy.NamesPort(to, caller) {
		return true
	}
	other, err := machineListens(netip.AddrPortFrom(netip.IPv6Loopback(), to.Port()))
	return err == nil && other
}

// loopbackOf replaces the address that stands for any by the one of loopback.
func loopbackOf(to netip.AddrPort) netip.AddrPort {
	switch to.Addr() {
	case netip.IPv4Unspecified():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port())
	case netip.IPv6Unspecified():
		return netip.AddrPortFrom(netip.IPv6Loopback(), to.Port())
	}
	return to
}

// emulatedBy returns what is known of an emulated connection. Where nf_tables redirects,
// only those to services of the machine are emulated. Their listener gets redirected ones
// too, and a program can give both the same port.
func (n *Network) emulatedBy(c net.Conn) (emulated, bool) {
	if !n.emulated && (tcpAddr(c.LocalAddr()).Port() != redirectPort || redirected(c)) {
		return emulated{}, false
	}
	return n.callers.emulatedBy(c)
}

// redirected reports whether nf_tables redirected an accepted connection.
func redirected(c net.Conn) bool {
	to, err := Original(c)
	return err == nil && to != tcpAddr(c.LocalAddr())
}

// original returns the destination that the program asked for.
func (n *Network) original(c net.Conn) (netip.AddrPort, error) {
	if e, ok := n.emulatedBy(c); ok {
		return e.to, nil
	}
	if n.emulated {
		return netip.AddrPort{}, errNoCaller
	}
	to, err := Original(c)
	if err == nil && to == tcpAddr(c.LocalAddr()) {
		err = errors.New("the connection was not redirected")
	}
	return to, err
}

// identify returns the process that made an accepted connection.
func (n *Network) identify(c net.Conn) (egress.Caller, error) {
	if e, ok := n.emulatedBy(c); ok {
		return e.caller, nil
	}
	if n.sockets == nil {
		return egress.Caller{}, errNoCaller
	}
	peer := tcpAddr(c.LocalAddr())
	if peer.Port() == redirectPort {
		to, err := n.original(c)
		if err != nil {
			return egress.Caller{}, err
		}
		peer = to
	}
	inode, err := n.sockets.TCP(tcpAddr(c.RemoteAddr()), peer)
	if err != nil {
		return egress.Caller{}, err
	}
	return n.callers.ofSocket(inode)
}

// identifyPacket returns the process that asked the name server over UDP. It
// finds only connected sockets, which the C library uses.
func (n *Network) identifyPacket(from net.Addr) (egress.Caller, error) {
	udp, ok := from.(*net.UDPAddr)
	if !ok || n.sockets == nil {
		return egress.Caller{}, errNoCaller
	}
	local := udp.AddrPort()
	local = netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	inode, err := n.sockets.UDP(local, netip.AddrPortFrom(local.Addr(), dnsPort))
	if err != nil {
		return egress.Caller{}, err
	}
	return n.callers.ofSocket(inode)
}
