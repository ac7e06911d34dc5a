package egress

import (
	"context"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// client is one connection that came from the session.
type client struct {
	p    *Proxy
	conn net.Conn // as accepted
	from origin
	ctx  context.Context // ends when the client is gone
	stop context.CancelFunc

	mu     sync.Mutex
	flows  map[destination]*flow
	handed bool // the web server ends it
	gone   bool
}

// origin is where a connection comes from: its process, and how it reached the
// proxy.
type origin struct {
	caller Caller
	via    string
}

// request is the request that the policy evaluates for a connection from here.
func (o origin) request(name string, addr netip.Addr, port uint16) *policy.NetworkRequest {
	return &policy.NetworkRequest{Domain: name, Addr: addr, Port: int(port), Protocol: "tcp", Binary: o.caller.Process.Exe}
}

// process is the process of the origin, or nil if it is not known.
func (o origin) process() *wire.Process {
	if o.caller.Process == (wire.Process{}) {
		return nil
	}
	process := o.caller.Process
	return &process
}

// event begins an event about a target.
func (o origin) event(target string) wire.Event {
	return wire.Event{
		Type: wire.EventNet, Command: o.caller.Command, Process: o.process(), Target: target, Mechanism: "proxy",
		Net: &wire.Net{Via: o.via},
	}
}

// destination is the host and port that a client names.
type destination struct {
	host policy.Host
	port uint16
}

func (d destination) String() string {
	return net.JoinHostPort(d.host.String(), portText(d.port))
}

func portText(port uint16) string { return strconv.Itoa(int(port)) }

// serveRedirected serves a connection that its program made to an address.
func (c *client) serveRedirected(to netip.AddrPort) {
	c.from.via = viaTransparent
	c.serve(opening{
		to: destination{policy.HostOf(to.Addr()), to.Port()}, conn: c.conn,
		accept: func() error { return nil }, refuse: func(*refusal) { c.reset() },
	})
}

// serve judges a destination and serves the connection to it, or refuses.
func (c *client) serve(o opening) {
	f, refused := c.open(o.to)
	if refused == nil {
		refused = c.tunnel(f, o)
	}
	if refused != nil {
		o.refuse(refused)
	}
}

// open judges a destination and begins a flow to it. It records what it returns.
func (c *client) open(to destination) (*flow, *refusal) {
	r, refused := c.p.judge.open(c.ctx, c.from, to)
	if refused == nil {
		var f *flow
		if f, refused = c.begin(r); refused == nil {
			return f, nil
		}
	}
	return nil, c.p.refuse(c.from, to.String(), refused)
}

// begin registers a flow and records its beginning.
func (c *client) begin(r route) (*flow, *refusal) {
	f := newFlow(c, r)
	c.p.open.addFlow(f)
	if !c.addFlow(f) {
		c.p.open.removeFlow(f)
		return nil, failed("the connection is gone")
	}
	if err := c.p.opts.Emit(f.event("begin")); err != nil {
		c.mu.Lock()
		delete(c.flows, r.to)
		c.mu.Unlock()
		c.p.open.removeFlow(f)
		return nil, against("audit", "the connection cannot be recorded: "+err.Error(), "")
	}
	return f, nil
}

// addFlow returns false if the client is gone.
func (c *client) addFlow(f *flow) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.gone {
		c.flows[f.to] = f
	}
	return !c.gone
}

// flowTo returns the client's flow to a destination, or nil, and how many flows
// it has.
func (c *client) flowTo(to destination) (*flow, int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flows[to], len(c.flows)
}

// leave ends a client when its goroutine is done, unless the web server serves it.
func (c *client) leave() {
	c.mu.Lock()
	handed := c.handed
	c.mu.Unlock()
	if !handed {
		c.end()
	}
}

// end closes everything that a client has open and records the ends of its flows.
// Later calls do nothing.
func (c *client) end() {
	c.mu.Lock()
	if c.gone {
		c.mu.Unlock()
		return
	}
	c.gone = true
	flows := c.flows
	c.flows = nil
	c.mu.Unlock()
	c.stop()
	for _, f := range flows {
		f.end()
	}
	_ = c.conn.Close() // last: when the session sees the end, the log has it
	c.p.open.removeClient(c)
}

// kill has the goroutine that serves the client end.
func (c *client) kill() {
	c.stop()
	_ = c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.flows {
		f.up.close()
	}
}

// reset closes the connection by a TCP reset, which its program sees as a refusal.
func (c *client) reset() {
	if t, ok := c.conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.conn.Close()
}

// limitTime bounds how long a client may take to say what it wants.
func (c *client) limitTime(conn net.Conn) { setReadTimeout(conn, c.p.opts.Limits.OpeningTimeout) }

func setReadTimeout(conn net.Conn, timeout time.Duration) {
	_ = conn.SetReadDeadline(time.Now().Add(timeout))
}

func clearReadTimeout(conn net.Conn) { _ = conn.SetReadDeadline(time.Time{}) }
