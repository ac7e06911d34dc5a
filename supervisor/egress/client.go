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
	p      *Proxy
	conn   net.Conn // as accepted
	caller Caller
	via    string
	ctx    context.Context // ends when the client is gone
	stop   context.CancelFunc

	mu     sync.Mutex
	flows  map[destination]*flow // the ways it has
	handed bool                  // the web server ends it
	gone   bool
}

// destination is where a client wants to go, as it said it.
type destination struct {
	host policy.Host
	port uint16
}

func (d destination) String() string {
	return net.JoinHostPort(d.host.String(), portText(d.port))
}

func portText(port uint16) string { return strconv.Itoa(int(port)) }

// admit registers a connection; nil: it is too late, or there are too many,
// which is recorded.
func (p *Proxy) admit(conn net.Conn) *client {
	p.mu.Lock()
	full := len(p.clients) >= p.opts.Limits.Connections
	closed := p.closed
	var c *client
	if !full && !closed {
		c = &client{p: p, conn: conn, flows: map[destination]*flow{}}
		c.ctx, c.stop = context.WithCancel(p.ctx)
		p.clients[c] = struct{}{}
	}
	p.mu.Unlock()
	if full && !closed {
		p.turnAway(conn)
	}
	return c
}

// turnAway records that a connection was refused unread. Who made it is not
// looked up: that would be work for whoever opens too many.
func (p *Proxy) turnAway(conn net.Conn) {
	_ = (&client{p: p, conn: conn}).refuse(
		"connection",
		against("connections", "there are "+strconv.Itoa(p.opts.Limits.Connections)+" connections open already", "close some first"),
	)
}

// exhausted records that a connection was refused for want of descriptors or
// memory.
func (p *Proxy) exhausted(conn net.Conn, err error) {
	_ = (&client{p: p, conn: conn}).refuse(
		"connection",
		against("descriptors", "there is no room for one more connection: "+err.Error(), "close some first"),
	)
}

// identify finds out which process connected.
func (c *client) identify() {
	if c.p.opts.Identify == nil {
		return
	}
	caller, err := c.p.opts.Identify(c.conn)
	if err != nil {
		c.p.opts.Log.Warn("who connected is not known", "error", err)
		return
	}
	c.caller = caller
}

// leave ends a client when its goroutine is done, unless it was handed to the
// web server.
func (c *client) leave() {
	c.mu.Lock()
	handed := c.handed
	c.mu.Unlock()
	if !handed {
		c.end()
	}
}

// end closes everything a client has and records its ways. Later calls do
// nothing.
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
	_ = c.conn.Close() // last: whoever sees the end finds it recorded
	c.p.mu.Lock()
	delete(c.p.clients, c)
	c.p.mu.Unlock()
}

// kill makes whoever serves the client end.
func (c *client) kill() {
	c.stop()
	_ = c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.flows {
		f.cut()
	}
}

// reset ends a connection in a way that its program sees as a refusal.
func (c *client) reset() {
	if t, ok := c.conn.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	_ = c.conn.Close()
}

// limitTime bounds how long a client may take to say what it wants.
func (c *client) limitTime(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(c.p.opts.Limits.OpeningTimeout))
}

func noLimit(conn net.Conn) { _ = conn.SetReadDeadline(time.Time{}) }

// request is what the policy is asked about a way of this client.
func (c *client) request(name string, addr netip.Addr, port uint16) *policy.NetworkRequest {
	return &policy.NetworkRequest{Domain: name, Addr: addr, Port: int(port), Protocol: "tcp", Binary: c.caller.Process.Exe}
}

// event begins an event about a target.
func (c *client) event(target string) wire.Event {
	e := wire.Event{Type: wire.EventNet, Command: c.caller.Command, Target: target, Mechanism: "proxy", Net: &wire.Net{Via: c.via}}
	if c.caller.Process != (wire.Process{}) {
		process := c.caller.Process
		e.Process = &process
	}
	return e
}

// serveDiverted serves a connection that was meant for an address.
func (c *client) serveDiverted(to netip.AddrPort) {
	c.via = viaTransparent
	f, refused := c.open(destination{policy.HostOf(to.Addr()), to.Port()})
	if refused == nil {
		refused = c.tunnel(f, c.conn, func() error { return nil })
	}
	if refused != nil {
		c.reset()
	}
}
