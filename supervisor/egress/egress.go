// Package egress is the one way out of a session's network namespace: an HTTP,
// CONNECT and SOCKS5 proxy, a DNS stub and a listener for connections that were
// diverted. Every connection, and every HTTP request that is looked into, is
// judged by the session's policy and recorded.
//
// The package opens no listeners: they stand inside the session, and whoever
// makes them hands them to [Proxy.ServeProxy], [Proxy.ServeTransparent] and
// [Proxy.ServeDNS].
package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// Options are what a [Proxy] works with. Policy and Emit are required; the zero
// value of everything else is the strict one.
type Options struct {
	// Session is the id that events carry.
	Session string
	// Policy is the policy in force. It is called for every decision, from
	// several goroutines; after it has changed call [Proxy.Recheck].
	Policy func() *policy.Policy
	// Emit writes an audit event. What cannot be recorded is refused. It is
	// called from several goroutines.
	Emit func(wire.Event) error
	// Approve asks a person about a connection and returns nil when it may go
	// ahead, else why not. Nil: nobody can be asked, so it is refused.
	Approve func(context.Context, Question) error
	// Identify tells which process made a connection, by the addresses of a
	// connection that a listener accepted. Nil or an error: the process is not
	// known, and a rule that names programs permits nothing.
	Identify func(net.Conn) (Caller, error)
	// Resolvers are the name servers asked; none: those of this machine, as its
	// configuration and hosts file say.
	Resolvers []netip.AddrPort
	// Roots verify servers of intercepted connections; nil: those of this machine.
	Roots *x509.CertPool
	// Dial connects to an address that was judged; nil: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Credentials are swapped for their placeholders on the way to their endpoints.
	Credentials []Credential
	// Bandwidth is the most bytes per second that pass, both directions
	// together; 0: unbounded.
	Bandwidth int64
	Limits    Limits
	// Log gets what an operator of the supervisor has to know; nil: nothing.
	Log *slog.Logger
}

// Limits bound what one session can make its proxy hold. A zero field has the
// value that its comment names.
type Limits struct {
	Connections    int           // open at once, 4096
	Questions      int           // put to a person at once, 16
	Lookups        int           // names being resolved at once, 128
	HeaderBytes    int           // of one HTTP request, 64 KiB
	OpeningTimeout time.Duration // from accepting a connection to knowing where it goes, 30 s
	DialTimeout    time.Duration // for all addresses of one name, 30 s
}

// Caller is the process that made a connection.
type Caller struct {
	Command string // request id of the top-level command it belongs to; empty: not known
	Process wire.Process
}

// Question is a connection that a person is asked about.
type Question struct {
	Caller     Caller
	Request    policy.NetworkRequest
	Decision   policy.Decision
	Diagnostic policy.Diagnostic
}

// Connection is one connection as [Proxy.Connections] tells of it.
type Connection = wire.Connection

// Proxy serves one session. It is safe for concurrent use; Close ends it.
type Proxy struct {
	opts Options

	mu        sync.Mutex
	listeners map[interface{ Close() error }]struct{}
	closed    bool
	serving   sync.WaitGroup
}

// ErrClosed is returned by the Serve methods after [Proxy.Close].
var ErrClosed = errors.New("egress proxy is closed")

// New returns a proxy without listeners.
func New(opts Options) (*Proxy, error) {
	if opts.Policy == nil || opts.Emit == nil {
		return nil, errors.New("egress: no policy or nowhere to record")
	}
	return &Proxy{opts: opts, listeners: map[interface{ Close() error }]struct{}{}}, nil
}

// ServeProxy answers HTTP, CONNECT and SOCKS5 on one listener, told apart by
// the first byte of a connection, until the listener or the proxy is closed. It
// closes the listener. After [Proxy.Close] it returns [ErrClosed].
func (p *Proxy) ServeProxy(l net.Listener) error {
	return p.accept(l, func(c net.Conn) { _ = c.Close() })
}

// ServeTransparent answers connections that their programs meant for another
// address, which original tells. Otherwise it is like [Proxy.ServeProxy].
func (p *Proxy) ServeTransparent(l net.Listener, original func(net.Conn) (netip.AddrPort, error)) error {
	return p.accept(l, func(c net.Conn) { _, _ = original(c); _ = c.Close() })
}

// ServeDNS answers DNS queries over UDP and TCP, either of which may be nil.
// It closes both.
func (p *Proxy) ServeDNS(udp net.PacketConn, tcp net.Listener) error {
	if udp != nil {
		_ = udp.Close()
	}
	if tcp != nil {
		_ = tcp.Close()
	}
	return ErrClosed
}

// Connections are the connections that are open, oldest first.
func (p *Proxy) Connections() []Connection { return nil }

// Recheck judges every open connection by the policy in force now and closes
// those that it does not permit.
func (p *Proxy) Recheck() {}

// Intercepts reports whether the policy or a credential has the proxy look into
// TLS. The session must then trust [Proxy.CA].
func (p *Proxy) Intercepts() bool { return false }

// CA is the certificate of the session's own authority, in PEM. Its key exists
// in this process alone.
func (p *Proxy) CA() []byte { return nil }

// CABundle is [Proxy.CA] together with the authorities this machine trusts, in
// PEM: what programs of a session whose TLS is looked into are told to trust.
func (p *Proxy) CABundle() ([]byte, error) { return nil, errors.New("egress: no authority") }

// Close ends every connection and listener and waits until nothing is left.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	var errs []error
	for l := range p.listeners {
		errs = append(errs, l.Close())
	}
	p.mu.Unlock()
	p.serving.Wait()
	return errors.Join(errs...)
}

// accept serves the connections of one listener.
func (p *Proxy) accept(l net.Listener, serve func(net.Conn)) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return errors.Join(ErrClosed, l.Close())
	}
	p.listeners[l] = struct{}{}
	p.serving.Add(1)
	p.mu.Unlock()
	defer p.serving.Done()
	for {
		c, err := l.Accept()
		if err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			delete(p.listeners, l)
			if p.closed {
				return ErrClosed
			}
			return err
		}
		p.serving.Go(func() { serve(c) })
	}
}
