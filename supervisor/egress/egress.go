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
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
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
	// Emit writes an audit event. What cannot be recorded is refused. It is
	// called from several goroutines.
	Emit func(wire.Event) error
	// Approve asks a person about a connection or a request. Nil: nobody can be
	// asked, so it is refused.
	Approve func(context.Context, wire.Question) wire.Answer
	// Identify tells which process made a connection that a listener accepted.
	// Nil or an error: the process is not known, and a rule that names programs
	// permits nothing.
	Identify func(net.Conn) (Caller, error)
	// IdentifyPacket is Identify for the source of a DNS query over UDP.
	IdentifyPacket func(from net.Addr) (Caller, error)
	// Resolvers are the name servers asked; none: those of this machine, as its
	// configuration and hosts file say.
	Resolvers []netip.AddrPort
	// Roots verify servers of connections that are looked into; nil: those of
	// this machine.
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
	opts    Options
	names   *names
	secrets secrets
	bucket  *bucket // nil: unbounded
	ca      authority
	web     *http.Server
	shown   *tls.Config // to clients whose TLS ends here
	handed  *handover

	ctx  context.Context // ends with the proxy
	stop context.CancelFunc

	mu      sync.Mutex
	closers map[io.Closer]struct{} // listeners
	clients map[*client]struct{}
	flows   map[uint64]*flow
	next    uint64
	closed  bool
	serving sync.WaitGroup
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
	p := &Proxy{
		opts: opts, secrets: hidden, names: newNames(opts.Resolvers, opts.Limits.Lookups),
		closers: map[io.Closer]struct{}{}, clients: map[*client]struct{}{}, flows: map[uint64]*flow{},
	}
	if err := p.ca.make(); err != nil {
		return nil, fmt.Errorf("egress: session authority: %w", err)
	}
	if opts.Bandwidth > 0 {
		p.bucket = newBucket(opts.Bandwidth)
	}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.handed = newHandover()
	p.web = p.newWeb()
	p.serving.Go(func() { _ = p.web.Serve(p.handed) }) // ends with Close
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

// reserved is how many descriptors are left to the rest of the process, and
// perConnection how many a connection takes: its own and one to its destination.
const (
	reserved      = 256
	perConnection = 2
)

// fit is how many connections there may be so that the process has descriptors
// for them.
func (o *Options) fit() int {
	var have unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &have); err != nil || have.Cur >= uint64(reserved+perConnection*o.Limits.Connections) {
		return o.Limits.Connections
	}
	room := max(int(have.Cur)-reserved, int(have.Cur)/2) / perConnection
	o.Log.Warn(
		"fewer connections than usual: the process may have few descriptors",
		"descriptors",
		have.Cur,
		"connections",
		room,
		"usual",
		o.Limits.Connections,
		"hint",
		"start it with a higher limit: ulimit -n "+strconv.Itoa(reserved+perConnection*o.Limits.Connections),
	)
	return room
}

// ServeProxy answers HTTP, CONNECT and SOCKS5 on one listener, told apart by
// the first byte of a connection, until the listener or the proxy is closed. It
// closes the listener. After [Proxy.Close] it returns [ErrClosed].
func (p *Proxy) ServeProxy(l net.Listener) error {
	return p.accept(l, func(c *client) { c.serveProxy() })
}

// ServeTransparent answers connections that their programs meant for another
// address, which original tells. Otherwise it is like [Proxy.ServeProxy].
func (p *Proxy) ServeTransparent(l net.Listener, original func(net.Conn) (netip.AddrPort, error)) error {
	return p.accept(l, func(c *client) {
		to, err := original(c.conn)
		if err != nil {
			p.opts.Log.Warn("diverted connection", "error", err)
			c.reset()
			return
		}
		c.serveDiverted(to)
	})
}

// accept serves the connections of one listener.
func (p *Proxy) accept(l net.Listener, serve func(*client)) error {
	if !p.hold(l) {
		return errors.Join(ErrClosed, l.Close())
	}
	defer p.release(l)
	spared := &listen.Sparing{Listener: l, Refused: p.exhausted}
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
		p.serving.Go(func() {
			c.identify()
			serve(c)
			c.leave()
		})
	}
}

// hold registers what Close closes; false: it is too late.
func (p *Proxy) hold(c io.Closer) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.closers[c] = struct{}{}
	p.serving.Add(1)
	return true
}

func (p *Proxy) release(c io.Closer) {
	p.mu.Lock()
	delete(p.closers, c)
	p.mu.Unlock()
	_ = c.Close() // Close may have been faster
	p.serving.Done()
}

// Connections are the connections that are open, oldest first.
func (p *Proxy) Connections() []wire.Connection {
	p.mu.Lock()
	list := make([]*flow, 0, len(p.flows))
	for _, f := range p.flows {
		list = append(list, f)
	}
	p.mu.Unlock()
	slices.SortFunc(list, func(a, b *flow) int { return int(a.id) - int(b.id) })
	out := make([]wire.Connection, len(list))
	for i, f := range list {
		out[i] = f.describe()
	}
	return out
}

// Recheck judges every open connection by the policy in force now and closes
// those that it does not permit, or whose requests it wants looked into.
func (p *Proxy) Recheck() {
	p.mu.Lock()
	list := make([]*flow, 0, len(p.flows))
	for _, f := range p.flows {
		list = append(list, f)
	}
	p.mu.Unlock()
	for _, f := range list {
		f.recheck()
	}
}

// Intercepts reports whether the policy or a credential has the proxy look into
// TLS. The session must then trust [Proxy.CA].
func (p *Proxy) Intercepts() bool {
	return len(p.secrets.list) > 0 || p.opts.Policy().InspectsAny()
}

// CA is the certificate of the session's own authority, in PEM. Its key exists
// in this process alone.
func (p *Proxy) CA() []byte { return slices.Clone(p.ca.pem) }

// Close ends every connection and listener and waits until nothing is left.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.stop()
	for c := range p.closers {
		_ = c.Close() // its Serve method closes it too
	}
	clients := make([]*client, 0, len(p.clients))
	for c := range p.clients {
		clients = append(clients, c)
	}
	p.mu.Unlock()
	for _, c := range clients {
		c.kill()
	}
	err := p.web.Close()
	p.serving.Wait()
	return err
}
