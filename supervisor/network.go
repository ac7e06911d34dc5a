package supervisor

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/supervisor/divert"
	"agentsh/supervisor/egress"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify"
)

// Ports of the session's own loopback, above those that the kernel hands out.
const (
	proxyPort  = 61080
	divertPort = 61081
	dnsPort    = 53
)

// caBundle is the file of authorities inside, of a session whose TLS is looked
// into.
const caBundle = startupDir + "/ca-bundle.pem"

// Egress is how a session reaches what its policy allows.
type Egress struct {
	Resolvers   []netip.AddrPort    // name servers that are asked; none: the machine's
	Roots       *x509.CertPool      // verify servers of intercepted connections; nil: the machine's
	Credentials []egress.Credential // swapped for their placeholders on the way out

	withoutDivert bool                                                                 // as on a kernel without nf_tables
	dial          func(ctx context.Context, network, address string) (net.Conn, error) // nil: to the machine's network
}

// network is the way out of a session.
type network struct {
	proxy   *egress.Proxy
	callers *callers
	shared  bool            // the network is the machine's
	carries bool            // connections are carried out for the programs
	sockets *divert.Sockets // nil: sockets cannot be looked up

	listening []net.Listener
	dnsUDP    []net.PacketConn
	dns       []net.Listener
	at4, at6  ends
	serving   sync.WaitGroup
}

// ends are the addresses of the listeners of one family; without one they are
// not valid.
type ends struct{ proxy, tcp, dns netip.AddrPort }

// openNetwork makes the session's way out, without listeners yet. A policy that
// says nothing about the network leaves loopback only, or the machine's.
func (s *Session) openNetwork() error {
	governed := s.cfg.Policy.Governs(policy.GroupNetwork) || len(s.cfg.Network.Egress.Credentials) > 0
	if err := s.boundBandwidth(governed); err != nil || !governed {
		return err
	}
	if (s.cfg.Network.Shared || s.plain()) && (launch.LandlockABI() < landlockNet || s.lost.has(lossLandlock)) {
		return errors.New(
			"network_rules in a network shared with the machine need Landlock's network rights (Linux 6.7): give the session a network of its own",
		)
	}
	n := &network{callers: newCallers(), shared: s.cfg.Network.Shared || s.plain()}
	out := s.cfg.Network.Egress
	options := egress.Options{
		Policy: s.networkPolicy, Approve: s.approvals.Ask, Emit: s.emit, Identify: n.identify, IdentifyPacket: n.identifyPacket,
		Resolvers: out.Resolvers, Roots: out.Roots, Credentials: out.Credentials, Dial: out.dial,
		Bandwidth: int64(s.cfg.Policy.Limits(nil).NetworkMbps) * 1e6 / 8, Log: s.cfg.Log,
	}
	var err error
	if n.proxy, err = egress.New(options); err != nil {
		return err
	}
	s.network = n
	return nil
}

// networkPolicy is the policy in force: until the session runs, its first one.
func (s *Session) networkPolicy() *policy.Policy {
	if s.rules.Load() == nil {
		return s.cfg.Policy
	}
	return s.policy()
}

// recheck judges what is open by the policy in force now.
func (n *network) recheck() {
	if n != nil {
		n.proxy.Recheck()
	}
}

// boundBandwidth refuses limits that the proxy cannot hold: of a network that it
// does not govern, and of one command.
func (s *Session) boundBandwidth(governed bool) error {
	if s.cfg.Network.Shared && !governed && s.cfg.Policy.Limits(nil).NetworkMbps > 0 {
		return errors.New("net_bandwidth_mbps cannot be held in a network shared with the machine without network_rules")
	}
	for _, rule := range s.cfg.Policy.Rules(policy.GroupCommand) {
		if rule.Limits != nil && rule.Limits.NetworkMbps > 0 {
			return fmt.Errorf(
				"%s: net_bandwidth_mbps of rule %s cannot be held: it is of the whole session, in resource_limits",
				rule.Pos,
				rule.Name,
			)
		}
	}
	return nil
}

// landlockNet is the first version of Landlock with network rights.
const landlockNet = 4

// networkSetup adds what the session's init has to do for its network.
func (s *Session) networkSetup(c *launch.Config) {
	switch {
	case s.network == nil:
		return
	case s.network.shared:
		c.Landlock.Net = unix.LANDLOCK_ACCESS_NET_CONNECT_TCP // those of the supervisor are not the session's
		return
	}
	for _, f := range []struct {
		name     string
		family   int
		optional bool
		setup    func(divert.Ports) (rules, route divert.Setup)
	}{{"4", unix.AF_INET, false, divert.IPv4}, {"6", unix.AF_INET6, true, divert.IPv6}} {
		for _, l := range []struct {
			tag        string
			kind, port int
		}{{"proxy", unix.SOCK_STREAM, proxyPort}, {"tcp", unix.SOCK_STREAM, divertPort}, {"dns", unix.SOCK_STREAM, dnsPort}, {"udp",
			unix.SOCK_DGRAM, dnsPort}} {
			c.Sockets = append(c.Sockets, launch.Socket{Tag: l.tag + f.name, Family: f.family, Type: l.kind, Port: l.port, Optional: f.optional})
		}
		if s.cfg.Network.Egress.withoutDivert {
			continue
		}
		rules, route := f.setup(divert.Ports{TCP: divertPort, DNS: dnsPort})
		c.Netlink = append(c.Netlink,
			launch.Netlink{Tag: "rules" + f.name, Protocol: rules.Protocol, Messages: rules.Messages, Acks: rules.Acks, Optional: true},
			launch.Netlink{Tag: "route" + f.name, Protocol: route.Protocol, Messages: route.Messages, Acks: route.Acks, Optional: true, After: true})
	}
	c.Sockets = append(
		c.Sockets,
		launch.Socket{Tag: "diag", Family: unix.AF_NETLINK, Type: unix.SOCK_RAW, Port: unix.NETLINK_SOCK_DIAG, Optional: true},
	)
}

// listen takes over the listeners of the session's namespace, or opens some on
// the machine's loopback. It comes after the init and before the loop.
func (s *Session) listen() error {
	n := s.network
	if n == nil {
		return nil
	}
	n.carries = n.shared || s.cfg.Network.Egress.withoutDivert
	for _, tag := range []string{"rules4", "route4"} {
		n.carries = n.carries || s.init.Missing(tag) != nil
	}
	if n.shared {
		return errors.Join(n.open("127.0.0.1", &n.at4), n.openSix())
	}
	if f := s.init.Socket("diag"); f != nil {
		var err error
		if n.sockets, err = divert.NewSockets(f); err != nil {
			return err
		}
	}
	return errors.Join(n.take(s.init, "4", "127.0.0.1", &n.at4), n.take(s.init, "6", "::1", &n.at6))
}

// take takes over the listeners of one family. A missing one was optional.
func (n *network) take(i *launch.Init, family, loopback string, at *ends) error {
	for _, l := range []struct {
		tag  string
		end  *netip.AddrPort
		into *[]net.Listener
	}{{"proxy", &at.proxy, &n.listening}, {"tcp", &at.tcp, &n.listening}, {"dns", &at.dns, &n.dns}} {
		f := i.Socket(l.tag + family)
		if f == nil {
			continue
		}
		listener, err := net.FileListener(f)
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("listener %s of the session: %w", l.tag, err)
		}
		*l.into, *l.end = append(*l.into, listener), plainAddr(listener.Addr())
	}
	f := i.Socket("udp" + family)
	if f == nil {
		return nil
	}
	conn, err := net.FilePacketConn(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("name server on %s of the session: %w", loopback, err)
	}
	n.dnsUDP = append(n.dnsUDP, conn)
	return nil
}

// open listens on the machine's loopback, for carried connections only.
func (n *network) open(loopback string, at *ends) error {
	for _, l := range []struct {
		end  *netip.AddrPort
		into *[]net.Listener
	}{{&at.proxy, &n.listening}, {&at.tcp, &n.listening}, {&at.dns, &n.dns}} {
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(loopback, "0"))
		if err != nil {
			return fmt.Errorf("listen for the session: %w", err)
		}
		*l.into, *l.end = append(*l.into, admitting{listener, n.callers}), plainAddr(listener.Addr())
	}
	return nil
}

// openSix is open for IPv6, which a machine need not have.
func (n *network) openSix() error {
	probe, err := new(net.ListenConfig).Listen(context.Background(), "tcp6", "[::1]:0")
	if err != nil {
		return nil
	}
	return errors.Join(probe.Close(), n.open("::1", &n.at6))
}

// serve answers on all listeners until the session closes.
func (s *Session) serveNetwork() {
	n := s.network
	if n == nil {
		return
	}
	run := func(what string, serve func() error) {
		n.serving.Go(func() {
			if err := serve(); err != nil && !errors.Is(err, egress.ErrClosed) {
				s.end(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	for _, l := range n.listening {
		if at := plainAddr(l.Addr()); at == n.at4.proxy || at == n.at6.proxy {
			run("proxy", func() error { return n.proxy.ServeProxy(l) })
		} else {
			run("diverted connections", func() error { return n.proxy.ServeTransparent(n.arriving(l), n.original) })
		}
	}
	for i := range max(len(n.dns), len(n.dnsUDP)) {
		var udp net.PacketConn
		var tcp net.Listener
		if i < len(n.dnsUDP) {
			udp = n.dnsUDP[i]
		}
		if i < len(n.dns) {
			tcp = n.dns[i]
		}
		run("name server", func() error { return n.proxy.ServeDNS(udp, tcp) })
	}
}

// arriving notes carried connections at a listener of the session's namespace;
// in a shared network they are noted already.
func (n *network) arriving(l net.Listener) net.Listener {
	if n.carries && !n.shared {
		return admitting{l, n.callers}
	}
	return l
}

// connect is told of each connection that a program is about to make. What
// cannot be permitted is refused now; where the namespace holds, that is a
// courtesy, as the proxy refuses it too.
func (n *network) connect(q notify.Connect) *notify.Carry {
	q.To = netip.AddrPortFrom(q.To.Addr().Unmap(), q.To.Port())
	local := !n.shared && (q.To.Addr().IsLoopback() || q.To.Addr().IsUnspecified())
	forbidden := func() bool {
		end := q.To.Port() == dnsPort || q.To == n.at4.proxy || q.To == n.at6.proxy
		return q.Stream && !local && !end && n.proxy.Forbidden(q.To, callerOf(q))
	}
	if !n.carries || local {
		if forbidden() {
			return &notify.Carry{Refused: unix.EACCES}
		}
		n.callers.connects(q)
		return nil
	}
	if forbidden() {
		return &notify.Carry{Refused: unix.EACCES}
	}
	carry := &notify.Carry{V4: n.at4.tcp, V6: n.at6.tcp, Register: n.callers.register(q)}
	switch {
	case q.To.Port() == dnsPort:
		carry.V4, carry.V6 = n.at4.dns, n.at6.dns
	case q.To == n.at4.proxy, q.To == n.at6.proxy:
		carry.V4, carry.V6 = n.at4.proxy, n.at6.proxy
	}
	return carry
}

// original is where a diverted connection was meant to go.
func (n *network) original(c net.Conn) (netip.AddrPort, error) {
	if n.carries {
		made, ok := n.callers.carriedBy(c)
		if !ok {
			return netip.AddrPort{}, errNoCaller
		}
		return made.to, nil
	}
	to, err := divert.Original(c)
	if err == nil && to == plainAddr(c.LocalAddr()) {
		err = errors.New("the connection was not diverted")
	}
	return to, err
}

// identify tells which process made a connection that a listener accepted.
func (n *network) identify(c net.Conn) (egress.Caller, error) {
	if made, ok := n.callers.carriedBy(c); ok {
		return made.caller, nil
	}
	if n.sockets == nil {
		return egress.Caller{}, errNoCaller
	}
	peer := plainAddr(c.LocalAddr())
	if peer.Port() == divertPort {
		to, err := n.original(c)
		if err != nil {
			return egress.Caller{}, err
		}
		peer = to
	}
	inode, err := n.sockets.TCP(remote(c), peer)
	if err != nil {
		return egress.Caller{}, err
	}
	return n.callers.connected(inode)
}

// identifyPacket tells which process asked the name server. Only a socket that
// was connected to it is known, as the C library's is.
func (n *network) identifyPacket(from net.Addr) (egress.Caller, error) {
	udp, ok := from.(*net.UDPAddr)
	if !ok || n.sockets == nil {
		return egress.Caller{}, errNoCaller
	}
	own := udp.AddrPort()
	own = netip.AddrPortFrom(own.Addr().Unmap(), own.Port())
	inode, err := n.sockets.UDP(own, netip.AddrPortFrom(own.Addr(), dnsPort))
	if err != nil {
		return egress.Caller{}, err
	}
	return n.callers.connected(inode)
}

// close ends every connection. It may be called for a session without one.
func (n *network) close() error {
	if n == nil {
		return nil
	}
	err := n.proxy.Close()
	for _, l := range append(n.listening, n.dns...) {
		_ = l.Close() // those that were served are closed already
	}
	for _, c := range n.dnsUDP {
		_ = c.Close()
	}
	n.serving.Wait()
	if n.sockets != nil {
		err = errors.Join(err, n.sockets.Close())
	}
	return err
}

// networkCalls are the calls about sockets that the session's filter stops.
func (s *Session) networkCalls() notify.Network {
	out := notify.Network{Sockets: s.cfg.Policy.Governs(policy.GroupUnixSocket), UID: s.who.uid, GID: s.who.gid}
	if s.network != nil {
		out.Connect, out.Shared = s.network.connect, s.network.shared
	}
	return out
}

// networkVars tell programs where the proxy and its authority are. Those that do
// not read them are diverted.
func (s *Session) networkVars() []env.Var {
	n := s.network
	if n == nil {
		return nil
	}
	var vars []env.Var
	proxy := "http://" + n.at4.proxy.String()
	for _, v := range []env.Var{{Name: "HTTP_PROXY", Value: proxy}, {Name: "HTTPS_PROXY", Value: proxy}, {Name: "ALL_PROXY", Value: proxy},
		{Name: "NO_PROXY", Value: "localhost,127.0.0.1,::1"}} {
		vars = append(vars, v, env.Var{Name: strings.ToLower(v.Name), Value: v.Value})
	}
	if !n.proxy.Intercepts() {
		return vars
	}
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "GIT_SSL_CAINFO",
		"PIP_CERT", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE", "DENO_CERT"} {
		vars = append(vars, env.Var{Name: name, Value: caBundle})
	}
	return vars
}
