// Package netns is the network of one session: a namespace with loopback only,
// and listeners inside it from which the supervisor's proxy serves connections.
//
// Every address is made local to the namespace, so that connect(2) finds a
// route. nf_tables then redirects what is not meant for loopback: TCP to one
// listener, DNS to another. It drops everything else that would leave, which
// sendto(2) reports as EPERM. Where the machine has no nf_tables, or the session
// no namespace, the supervisor emulates connect(2): it connects a duplicate of
// the program's socket to the listener.
//
// [Open] makes the proxy, [Network.Setup] tells the session's init what to
// prepare, [Network.Listen] takes the listeners over, and [Network.Serve] serves
// them. From then on notifications arrive at [Network.Connect] (connect.go), and
// connections at the proxy. Both ask callers.go which process connected.
// redirect.go, netlink.go, send.go, original.go, lookup.go and unixsockets.go talk
// to the kernel and call nothing of the rest.
package netns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/egress"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/probe/trial"
)

// Ports of the session's own loopback. proxyPort and redirectPort are above the
// ports that the kernel gives to clients.
const (
	proxyPort    = 61080
	redirectPort = 61081
	dnsPort      = 53
)

// SessionPorts are the ports to which a session redirects connections.
var SessionPorts = Ports{TCP: redirectPort, DNS: dnsPort}

// Outside is how sessions reach what their policies allow.
type Outside struct {
	egress.Settings
	Credentials []egress.Credential // replace their placeholders in requests

	// NoRedirect emulates connections as on a kernel without nf_tables.
	NoRedirect bool
	// Dial connects to an address that the policy permits; nil: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Config describes the network of one session. Policy, Emit and Log are required.
type Config struct {
	Outside     Outside
	Policy      func() *policy.Policy // the policy in force
	Emit        func(wire.Event) error
	Approve     func(context.Context, wire.Question) wire.Answer // nil: nobody can approve
	Share       bool                                             // the operator shares the machine's network
	NoNamespace bool                                             // the session has no network namespace
	NoLandlock  bool                                             // Landlock does not confine the session
	Log         *slog.Logger
}

// shared reports whether the session is in the machine's network.
func (c *Config) shared() bool { return c.Share || c.NoNamespace }

// Network is the network of a session. It is safe for concurrent use. All of its
// methods may be called on nil, which is the network of a session whose policy
// does not govern it.
type Network struct {
	proxy    *egress.Proxy
	callers  *callers
	shared   bool     // the network is the machine's
	redirect bool     // nf_tables may be used
	emulated bool     // the supervisor connects for the programs; set by Listen
	sockets  *Sockets // nil: sockets cannot be looked up
	log      *slog.Logger

	listening []net.Listener // of the proxy and of redirected connections
	dnsUDP    []net.PacketConn
	dns       []net.Listener
	at4, at6  listenAddrs
	serving   sync.WaitGroup
}

// listenAddrs are the addresses of the listeners of one family. An address is
// not valid if there is no listener.
type listenAddrs struct{ proxy, tcp, dns netip.AddrPort }

// Open makes the network of a session, without listeners yet. It returns nil if
// neither the policy nor a credential governs the network: the session then has
// loopback only, or the machine's network. [Network.Close] ends it.
func Open(cfg Config) (*Network, error) {
	p := cfg.Policy()
	governed := p.Governs(policy.GroupNetwork) || len(cfg.Outside.Credentials) > 0
	if err := checkBandwidth(p, cfg.Share, governed); err != nil || !governed {
		return nil, err
	}
	if cfg.NoNamespace && !cfg.Share && launch.LandlockABI() < trial.LandlockNet {
		return nil, nil // the filter refuses all sockets, which is stricter than any rule
	}
	if cfg.shared() && (cfg.NoLandlock || launch.LandlockABI() < trial.LandlockNet) {
		return nil, errors.New(
			"network_rules in a network shared with the machine need Landlock's network rights (Linux 6.7): give the session a network of its own",
		)
	}
	n := &Network{callers: newCallers(), shared: cfg.shared(), redirect: !cfg.Outside.NoRedirect, log: cfg.Log}
	var err error
	n.proxy, err = egress.New(egress.Options{
		Policy: cfg.Policy, Approve: cfg.Approve, Emit: cfg.Emit, Identify: n.identify, IdentifyPacket: n.identifyPacket,
		Resolvers: cfg.Outside.Resolvers, Roots: cfg.Outside.Roots, Credentials: cfg.Outside.Credentials, Dial: cfg.Outside.Dial,
		HostName: layout.HostName, Bandwidth: int64(p.Limits(nil).NetworkMbps) * 1e6 / 8, Log: cfg.Log,
	})
	if err != nil {
		return nil, err
	}
	return n, nil
}

// checkBandwidth refuses bandwidth limits that the proxy cannot enforce: those of
// a network that it does not govern, and those of one command.
func checkBandwidth(p *policy.Policy, share, governed bool) error {
	if share && !governed && p.Limits(nil).NetworkMbps > 0 {
		return errors.New("net_bandwidth_mbps cannot be enforced in a network shared with the machine without network_rules")
	}
	for _, rule := range p.Rules(policy.GroupCommand) {
		if rule.Limits != nil && rule.Limits.NetworkMbps > 0 {
			return fmt.Errorf(
				"%s: net_bandwidth_mbps of rule %s cannot be enforced: it is of the whole session, in resource_limits",
				rule.Pos,
				rule.Name,
			)
		}
	}
	return nil
}

// Shared reports whether the session is in the machine's network and the policy
// governs that.
func (n *Network) Shared() bool { return n != nil && n.shared }

// Setup adds to the configuration of the session's init: the sockets that it
// opens, the netlink messages that it sends, and the rights that Landlock takes
// away.
func (n *Network) Setup(c *launch.Config) {
	switch {
	case n == nil:
		return
	case n.shared:
		c.Landlock.Net = unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
		return
	}
	for _, f := range []struct {
		name     string
		family   int
		optional bool
		redirect func(Ports) (rules, route Batch)
	}{{"4", unix.AF_INET, false, RedirectIPv4}, {"6", unix.AF_INET6, true, RedirectIPv6}} {
		for _, l := range []struct {
			tag        string
			kind, port int
		}{
			{"proxy", unix.SOCK_STREAM, proxyPort},
			{"tcp", unix.SOCK_STREAM, redirectPort},
			{"dns", unix.SOCK_STREAM, dnsPort},
			{"udp", unix.SOCK_DGRAM, dnsPort},
		} {
			socket := launch.Socket{Tag: l.tag + f.name, Family: f.family, Type: l.kind, Port: l.port, Optional: f.optional}
			c.Network.Sockets = append(c.Network.Sockets, socket)
		}
		if !n.redirect {
			continue
		}
		rules, route := f.redirect(SessionPorts)
		c.Network.Netlink = append(c.Network.Netlink,
			launch.Netlink{Tag: "rules" + f.name, Protocol: rules.Protocol, Messages: rules.Messages, Acks: rules.Acks, Optional: true},
			launch.Netlink{Tag: "route" + f.name, Protocol: route.Protocol, Messages: route.Messages, Acks: route.Acks, Optional: true, After: true})
	}
	c.Network.Sockets = append(
		c.Network.Sockets,
		launch.Socket{Tag: "diag", Family: unix.AF_NETLINK, Type: unix.SOCK_RAW, Port: unix.NETLINK_SOCK_DIAG, Optional: true},
	)
}

// Serve answers on all listeners until Close. It returns at once; failed is
// called from another goroutine when a listener fails.
func (n *Network) Serve(failed func(error)) {
	if n == nil {
		return
	}
	run := func(what string, serve func() error) {
		n.serving.Go(func() {
			if err := serve(); err != nil && !errors.Is(err, egress.ErrClosed) {
				failed(fmt.Errorf("%s: %w", what, err))
			}
		})
	}
	for _, l := range n.listening {
		if at := tcpAddr(l.Addr()); at == n.at4.proxy || at == n.at6.proxy {
			run("proxy", func() error { return n.proxy.ServeProxy(l) })
		} else {
			run("redirected connections", func() error { return n.proxy.ServeTransparent(n.noting(l), n.original) })
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

// Renew replaces the values of credentials. See [egress.Proxy.Renew].
func (n *Network) Renew(values []wire.CredentialValue) error {
	if n == nil || n.proxy == nil {
		return errors.New("the session has no proxy, and so no credentials")
	}
	return n.proxy.Renew(values)
}

// Connections returns the connections that are open, oldest first.
func (n *Network) Connections() []wire.Connection {
	if n == nil {
		return nil
	}
	return n.proxy.Connections()
}

// Recheck judges open connections by the policy in force now and closes those
// that it denies.
func (n *Network) Recheck() {
	if n != nil {
		n.proxy.Recheck()
	}
}

// Close ends every connection and waits for them.
func (n *Network) Close() error {
	if n == nil {
		return nil
	}
	err := n.proxy.Close()
	for _, l := range append(n.listening, n.dns...) {
		_ = l.Close() // the proxy has closed those that it served
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
