// Package egress is the proxy through which a session reaches the outside: HTTP,
// CONNECT and SOCKS5, a DNS server and a listener for redirected connections. It
// judges and records every connection, and every HTTP request of an inspected
// connection.
//
// The package opens no listeners. The caller opens them inside the session and
// passes them to [Proxy.ServeProxy], [Proxy.ServeTransparent] and
// [Proxy.ServeDNS].
//
// A connection passes these stages, and each hands values to the next:
//
//	accept    egress.go    a listener's connection becomes a client
//	identify  client.go    the process that connected: its origin
//	read      front.go     the destination that the client names: an opening
//	judge     judge.go     policy, names and credentials: a route, or a refusal
//	dial      upstream.go  the first address of the route that answers
//	relay     relay.go     bytes in both directions, once the first bytes agree
//	inspect   web.go       HTTP requests instead, each judged: an exchange
//
// A flow (flow.go) is a route in use: what is counted, listed and closed. dns.go
// answers names, and names.go remembers them for the judge. Calls go from
// egress.go and client.go to the stages; the judge calls none of them.
package egress

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/listen"
	"agentsh/internal/wire"
	"agentsh/policy"
)

// Options are what a [Proxy] works with. Policy and Emit are required; the zero
// value of everything else is the strict one.
type Options struct {
	// Policy is the policy in force. It is called for every decision, from
	// several goroutines; after it has changed call [Proxy.Recheck].
	Policy func() *policy.Policy
	// Emit writes an audit event. If it fails, the proxy refuses what the event is
	// about. It is called from several goroutines.
	Emit func(wire.Event) error
	// Approve asks a person about a connection or a request. Nil: nobody can
	// approve, so the proxy refuses.
	Approve func(context.Context, wire.Question) wire.Answer
	// Identify returns the process that made an accepted connection. Nil or an
	// error: the process is not known, and a rule that names programs permits
	// nothing.
	Identify func(net.Conn) (Caller, error)
	// IdentifyPacket is Identify for the source of a DNS query over UDP.
	IdentifyPacket func(from net.Addr) (Caller, error)
	// Resolvers are the name servers to ask; none: those of this machine, as its
	// configuration and hosts file say.
	Resolvers []netip.AddrPort
	// HostName is the host name of the session, which has the address 127.0.0.1; empty:
	// it has none.
	HostName string
	// Roots verify the servers of inspected connections; nil: those of this
	// machine.
	Roots *x509.CertPool
	// Dial connects to an address that the policy permits; nil: a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Credentials replace their placeholders in requests to their endpoints.
	Credentials []Credential
	// Bandwidth is the most bytes per second that pass, both directions
	// together; 0: unbounded.
	Bandwidth int64
	Limits    Limits
	// Log gets what the operator has to know; nil: nothing.
	Log *slog.Logger
}

// Limits bound the resources of one session's proxy. A zero field means the
// default that its comment names.
type Limits struct {
	Connections    int           // open at once, 4096, or fewer where RLIMIT_NOFILE is low
	Lookups        int           // names being resolved at once, 128
	HeaderBytes    int           // of one HTTP request, 64 KiB
	OpeningTimeout time.Duration // from accepting a connection to knowing what it carries, 30 s
	DialTimeout    time.Duration // for all addresses of one name, 30 s
}

// Caller is the process that made a connection.
type Caller struct {
	Command string // request id of the top-level command it belongs to; empty: not known
	Process wire.Process
}

// Proxy serves one session. It is safe for concurrent use; Close ends it.
type Proxy struct {
	opts   Options
	judge  *judge
	bucket *bucket // nil: unbounded
	ca     authority
	web    *web
	open   *registry

	ctx  context.Context // ends with the proxy
	stop context.CancelFunc

	renewing sync.Mutex // values of credentials are replaced one time after the other
}

// ErrClosed is returned by the Serve methods after [Proxy.Close].
var ErrClosed = errors.New("egress proxy is closed")

// New returns a proxy without listeners.
func New(opts Options) (*Proxy, error) {
	if opts.Policy == nil || opts.Emit == nil {
		return nil, errors.New("egress: no policy or nowhere to record")
	}
	opts.setDefaults()
	hidden, err := newSecrets(opts.Credentials)
	if err != nil {
		return nil, fmt.Errorf("egress: %w", err)
	}
	opts.Limits.Connections = opts.fit()
	p := &Proxy{opts: opts, open: newRegistry(), judge: &judge{
		policy: opts.Policy, names: newNames(opts.Resolvers, opts.Limits.Lookups), approve: opts.Approve,
	}}
	p.judge.hidden.Store(&hidden)
	if err := p.ca.make(); err != nil {
		return nil, fmt.Errorf("egress: session authority: %w", err)
	}
	if opts.Bandwidth > 0 {
		p.bucket = newBucket(opts.Bandwidth)
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.web = p.newWeb()
	p.open.serving.Go(func() { _ = p.web.server.Serve(p.web.handover) }) // ends with Close
	return p, nil
}

func (o *Options) setDefaults() {
	set := func(v *int, to int) {
		if *v <= 0 {
			*v = to
		}
	}
	set(&o.Limits.Connections, 4096)
	set(&o.Limits.Lookups, 128)
	set(&o.Limits.HeaderBytes, 64<<10)
	if o.Limits.OpeningTimeout <= 0 {
		o.Limits.OpeningTimeout = 30 * time.Second
	}
	if o.Limits.DialTimeout <= 0 {
		o.Limits.DialTimeout = 30 * time.Second
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
}

// Descriptors: reserved stay free for the rest of the process. A connection needs
// perConnection, its own and one to its destination.
const (
	reserved      = 256
	perConnection = 2
)

// fit returns how many connections the process has descriptors for, at most
// Limits.Connections.
func (o *Options) fit() int {
	wanted := uint64(reserved + perConnection*o.Limits.Connections)
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil || have.Cur >= wanted {
		return o.Limits.Connections
	}
	room := max(int(have.Cur)-reserved, int(have.Cur)/2) / perConnection
	o.Log.Warn("fewer connections than usual: the process may have few descriptors",
		"descriptors", have.Cur, "connections", room, "usual", o.Limits.Connections,
		"hint", "start it with a higher limit: ulimit -n "+strconv.FormatUint(wanted, 10))
	return room
}

// ServeProxy answers HTTP, CONNECT and SOCKS5 on one listener until the listener
// or the proxy is closed. The first byte of a connection distinguishes the protocols
// apart. It closes the listener. After [Proxy.Close] it returns [ErrClosed].
func (p *Proxy) ServeProxy(l net.Listener) error {
	return p.accept(l, func(c *client) { c.serveProxy() })
}

// ServeTransparent answers connections that were redirected; original returns the
// destination that their program asked for. Otherwise it is like
// [Proxy.ServeProxy].
func (p *Proxy) ServeTransparent(l net.Listener, original func(net.Conn) (netip.AddrPort, error)) error {
	return p.accept(l, func(c *client) {
		to, err := original(c.conn)
		if err != nil {
			p.opts.Log.Warn("redirected connection", "error", err)
			c.reset()
			return
		}
		c.serveRedirected(to)
	})
}

// accept serves the connections of one listener.
func (p *Proxy) accept(l net.Listener, serve func(*client)) error {
	if !p.open.addListener(l) {
		return errors.Join(ErrClosed, l.Close())
	}
	defer p.open.removeListener(l)
	spared := &listen.Sparing{Listener: l, Refused: p.refuseExhausted}
	for {
		conn, err := spared.Accept()
		switch {
		case err == nil:
		case p.ctx.Err() != nil:
			return ErrClosed
		default:
			return err
		}
		c := p.admit(conn)
		if c == nil {
			_ = conn.Close()
			continue
		}
		p.open.serving.Go(func() {
			c.from.caller = p.identify(conn)
			serve(c)
			c.leave()
		})
	}
}

// admit registers a connection. It returns nil if the proxy is closed, or if
// there are too many connections, which it records. It does not look up the
// caller then: a program that opens too many would cause that work.
func (p *Proxy) admit(conn net.Conn) *client {
	c := &client{p: p, conn: conn, flows: map[destination]*flow{}}
	c.ctx, c.stop = context.WithCancel(p.ctx)
	added, full := p.open.addClient(c, p.opts.Limits.Connections)
	if added {
		return c
	}
	c.stop()
	if full {
		_ = p.refuse(origin{}, "connection", against("connections",
			"there are "+strconv.Itoa(p.opts.Limits.Connections)+" connections open already", "close some first"))
	}
	return nil
}

// refuseExhausted records that a connection was refused for want of descriptors
// or memory.
func (p *Proxy) refuseExhausted(_ net.Conn, err error) {
	_ = p.refuse(origin{}, "connection",
		against("descriptors", "there is no room for one more connection: "+err.Error(), "close some first"))
}

// identify returns the process that connected, as far as it is known.
func (p *Proxy) identify(conn net.Conn) Caller {
	if p.opts.Identify == nil {
		return Caller{}
	}
	caller, err := p.opts.Identify(conn)
	if err != nil {
		p.opts.Log.Warn("the process that connected is not known", "error", err)
	}
	return caller
}

// Forbidden reports whether every connection to an address is denied: by itself,
// and by each name that was resolved to it. It records the refusal. A caller that
// connects for a program can refuse at once, before the proxy does.
func (p *Proxy) Forbidden(to netip.AddrPort, caller Caller) bool {
	from, dest := origin{caller, viaTransparent}, destination{policy.HostOf(to.Addr()), to.Port()}
	d := p.judge.host(from, dest)
	if !d.Forbidden() {
		return false
	}
	_ = p.refuse(from, dest.String(), denied(d.Diagnostic))
	return true
}

// RefuseService records that a program asked for a service on the loopback of the
// machine, which no rule permits.
func (p *Proxy) RefuseService(to netip.AddrPort, caller Caller) {
	from, dest := origin{caller, viaTransparent}, destination{policy.HostOf(to.Addr()), to.Port()}
	d := p.judge.host(from, dest).Diagnostic
	if d.Pos == (policy.Position{}) { // no rule decided
		d.Hint = ServiceHint(to.Port())
	}
	_ = p.refuse(from, dest.String(), denied(d))
}

// ServiceHint says how a policy allows a service of the machine.
func ServiceHint(port uint16) string {
	rule := "{name: NAME, domains: [localhost], ports: [" + portText(port) + "], decision: allow}"
	return "a service of the machine listens there; to allow it: " + rule
}

// Permits reports whether some rule permits a connection to an address, or has a person
// asked. It records nothing: the connection is judged when it arrives.
func (p *Proxy) Permits(to netip.AddrPort, caller Caller) bool {
	d := p.judge.host(origin{caller, viaTransparent}, destination{policy.HostOf(to.Addr()), to.Port()})
	return !d.Forbidden()
}

// NamesPort reports whether the rule that permits a connection to an address has ports.
func (p *Proxy) NamesPort(to netip.AddrPort, caller Caller) bool {
	d := p.judge.host(origin{caller, viaTransparent}, destination{policy.HostOf(to.Addr()), to.Port()})
	return d.Rule != nil && len(d.Rule.Network.Ports) > 0
}

// Connections returns the connections that are open, oldest first.
func (p *Proxy) Connections() []wire.Connection {
	flows := p.open.openFlows()
	out := make([]wire.Connection, len(flows))
	for i, f := range flows {
		out[i] = f.describe()
	}
	return out
}

// Recheck judges every open connection by the policy in force now. It closes
// those that the policy does not permit, and those that it wants inspected and
// are not.
func (p *Proxy) Recheck() {
	for _, f := range p.open.openFlows() {
		f.recheck()
	}
}

// Intercepts reports whether the policy or a credential has the proxy inspect
// TLS. The session must then trust [Proxy.CA].
func (p *Proxy) Intercepts() bool {
	return len(p.judge.secrets().list) > 0 || p.opts.Policy().InspectsAny()
}

// CA returns the certificate of the session's own authority, in PEM. Its key
// exists in this process alone.
func (p *Proxy) CA() []byte { return slices.Clone(p.ca.pem) }

// Close ends every connection and listener and waits until nothing is left.
func (p *Proxy) Close() error {
	for _, c := range p.open.close(p.stop) {
		c.kill()
	}
	err := p.web.server.Close()
	p.open.serving.Wait()
	return err
}
