package netns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"agentsh/supervisor/launch"
)

// Listen takes over the listeners that the init opened in the session's
// namespace, or opens listeners on the machine's loopback. Call it after the
// init has started and before the notification loop runs.
func (n *Network) Listen(i *launch.Init) error {
	if n == nil {
		return nil
	}
	n.emulated = n.shared || !n.redirect
	for _, tag := range []string{"rules4", "route4"} {
		n.emulated = n.emulated || i.Missing(tag) != nil
	}
	if n.shared {
		return errors.Join(n.open("127.0.0.1", &n.at4), n.openIPv6())
	}
	if f := i.Socket("diag"); f != nil {
		err := lookups()
		if err == nil {
			n.sockets, err = NewSockets(f)
		} else {
			n.log.Warn("no event and no rule knows which process made a connection", "error", err)
			err = f.Close()
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(n.adopt(i, "4", "127.0.0.1", &n.at4), n.adopt(i, "6", "::1", &n.at6))
}

// adopt takes over the listeners of one family. A listener that is missing was
// optional.
func (n *Network) adopt(i *launch.Init, family, loopback string, at *listenAddrs) error {
	for _, l := range []struct {
		tag  string
		addr *netip.AddrPort
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
		*l.into, *l.addr = append(*l.into, listener), tcpAddr(listener.Addr())
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

// open opens listeners on the machine's loopback, for emulated connections only.
func (n *Network) open(loopback string, at *listenAddrs) error {
	for _, l := range []struct {
		addr *netip.AddrPort
		into *[]net.Listener
	}{{&at.proxy, &n.listening}, {&at.tcp, &n.listening}, {&at.dns, &n.dns}} {
		listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", net.JoinHostPort(loopback, "0"))
		if err != nil {
			return fmt.Errorf("listen for the session: %w", err)
		}
		*l.into, *l.addr = append(*l.into, emulatedListener{listener, n.callers}), tcpAddr(listener.Addr())
	}
	return nil
}

// openIPv6 is open for IPv6. A machine need not have it.
func (n *Network) openIPv6() error {
	probe, err := new(net.ListenConfig).Listen(context.Background(), "tcp6", "[::1]:0")
	if err != nil {
		return nil //nolint:nilerr // there is no IPv6
	}
	return errors.Join(probe.Close(), n.open("::1", &n.at6))
}

// noting notes emulated connections that arrive at a listener of the session's
// namespace. Listeners of a shared network note them already.
func (n *Network) noting(l net.Listener) net.Listener {
	switch {
	case n.shared:
		return l
	case n.emulated:
		return emulatedListener{l, n.callers}
	}
	return redirectListener{l, n.callers}
}

// redirectListener accepts redirected connections and emulated ones.
type redirectListener struct {
	net.Listener
	callers *callers
}

func (l redirectListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && !redirected(c) {
		l.callers.accept(c)
	}
	return c, err
}

// emulatedListener accepts emulated connections and closes all others. In a
// shared network other processes of the machine can reach the listener.
type emulatedListener struct {
	net.Listener
	callers *callers
}

func (l emulatedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil || l.callers.accept(c) {
			return c, err
		}
		_ = c.Close()
	}
}
