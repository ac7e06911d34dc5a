package egress

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// flow is a client's way to one destination, judged. What is above mu is set
// before the flow serves anything, except that one HTTP connection to an address
// may name its hosts in turn.
type flow struct {
	id      uint64
	client  *client
	to      destination
	names   []string // names the address was answered for, permitted
	direct  bool     // the address is permitted by itself
	addrs   []netip.Addr
	looked  atomic.Bool // its requests are looked into
	secured bool        // by TLS that ends here
	started time.Time

	sent     atomic.Int64
	received atomic.Int64

	mu       sync.Mutex
	approved map[*policy.Rule]bool // by a person, for the whole connection
	name     string                // of the destination, as far as one is known
	decision policy.Decision
	diag     policy.Diagnostic
	address  string // last dialled
	conns    map[net.Conn]struct{}
	spare    net.Conn // dialled and not used yet
	carrier  *http.Transport
	cutOff   bool
	ended    bool
	why      string // it was cut
}

// begin registers a flow and records that it goes ahead.
func (f *flow) begin() *refusal {
	c := f.client
	f.started, f.conns = time.Now(), map[net.Conn]struct{}{}
	c.p.mu.Lock()
	c.p.next++
	f.id = c.p.next
	c.p.flows[f.id] = f
	c.p.mu.Unlock()
	c.mu.Lock()
	gone := c.gone
	if !gone {
		c.flows[f.to] = f
	}
	c.mu.Unlock()
	if gone {
		f.forget()
		return failed("the connection is gone")
	}
	e := f.event("begin")
	if err := c.p.opts.Emit(e); err != nil {
		c.mu.Lock()
		delete(c.flows, f.to)
		c.mu.Unlock()
		f.forget()
		return against("audit", "the connection cannot be recorded: "+err.Error(), "")
	}
	return nil
}

func (f *flow) forget() {
	f.client.p.mu.Lock()
	delete(f.client.p.flows, f.id)
	f.client.p.mu.Unlock()
}

// event begins an event about the flow as it is now.
func (f *flow) event(phase string) wire.Event {
	e := f.client.event(f.to.String())
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.name != "" && f.name != f.to.host.Name() {
		e.Target = f.name + " at " + e.Target
	}
	e.Phase, e.Decision, e.Rule = phase, f.decision.Effect.String(), ruleAt(f.diag)
	*e.Net = f.tell()
	return e
}

// tell is what there is to count. mu is held.
func (f *flow) tell() wire.Net {
	return wire.Net{
		ID: f.id, Address: f.address, Via: f.client.via, Looked: f.looked.Load(),
		Sent: f.sent.Load(), Received: f.received.Load(), Millis: time.Since(f.started).Milliseconds(),
	}
}

// describe is the flow for those who list connections.
func (f *flow) describe() wire.Connection {
	e := f.event("")
	return wire.Connection{Net: *e.Net, Target: e.Target, Command: e.Command, Process: e.Process, Rule: e.Rule, Started: f.started}
}

// shown is the destination as a person reads it.
func (f *flow) shown() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.name != "" && f.name != f.to.host.Name() {
		return f.name + " (" + f.to.String() + ")"
	}
	return f.to.String()
}

// end closes what the flow has open and records how much passed.
func (f *flow) end() {
	f.cut()
	f.mu.Lock()
	ended := f.ended
	f.ended = true
	carrier, why := f.carrier, f.why
	f.mu.Unlock()
	if ended {
		return
	}
	if carrier != nil {
		carrier.CloseIdleConnections()
	}
	f.forget()
	e := f.event("end")
	e.Message = why
	if err := f.client.p.opts.Emit(e); err != nil {
		f.client.p.opts.Log.Error("the end of a connection could not be recorded", "error", err)
	}
}

// cut closes the connections to the destination and lets no more be made.
func (f *flow) cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cutOff = true
	for c := range f.conns {
		_ = c.Close()
	}
}

var errCut = errors.New("the connection was ended")

// dial connects to the first address that answers. Only judged addresses are
// tried.
func (f *flow) dial(ctx context.Context) (net.Conn, error) {
	f.mu.Lock()
	spare := f.spare
	f.spare = nil
	f.mu.Unlock()
	if spare != nil {
		return spare, nil
	}
	ctx, cancel := context.WithTimeout(ctx, f.client.p.opts.Limits.DialTimeout)
	defer cancel()
	var last error
	for i, a := range f.addrs {
		part := ctx
		if left := len(f.addrs) - i; left > 1 {
			deadline, _ := ctx.Deadline()
			shorter, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
			defer cancel()
			part = shorter
		}
		to := netip.AddrPortFrom(a, f.to.port).String()
		conn, err := f.client.p.opts.Dial(part, "tcp", to)
		if err == nil {
			return f.adoptConn(conn, to)
		}
		last = err
	}
	return nil, last
}

// adoptConn registers a connection to the destination.
func (f *flow) adoptConn(conn net.Conn, to string) (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.cutOff {
		_ = conn.Close()
		return nil, errCut
	}
	f.address = to
	f.conns[conn] = struct{}{}
	return conn, nil
}

// drop closes a connection to the destination.
func (f *flow) drop(conn net.Conn) error {
	f.mu.Lock()
	delete(f.conns, conn)
	f.mu.Unlock()
	return conn.Close()
}

// recheck ends the flow if the policy of now does not let it go on as it is.
func (f *flow) recheck() {
	f.mu.Lock()
	name, ended, asked := f.name, f.ended, len(f.approved) > 0
	f.mu.Unlock()
	if ended {
		return
	}
	pol := f.client.p.opts.Policy()
	for _, a := range f.addrs {
		q := f.client.request(name, a, f.to.port)
		if !f.looked.Load() && pol.Inspects(q) {
			f.withdraw(
				policy.Diagnostic{
					Rule:    "reload",
					Message: "the policy in force now wants the requests to " + f.shown() + " looked into",
					Hint:    "connect again",
				},
			)
			return
		}
		if f.looked.Load() {
			q.Method = policy.Intercepted
		}
		d, diag := pol.Evaluate(q)
		if !d.Permits() && (d.Effect != policy.Approve || !asked) {
			f.withdraw(diag)
			return
		}
	}
}

// withdraw ends a connection that is no longer permitted.
func (f *flow) withdraw(diag policy.Diagnostic) {
	_ = f.client.refuse(f.to.String(), denied(diag))
	f.mu.Lock()
	f.why = "ended: " + diag.Message
	f.mu.Unlock()
	f.client.kill()
}

// counted is a connection to a destination of HTTP requests: its bytes are
// counted and held to the session's bandwidth.
type counted struct {
	net.Conn
	f *flow
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.f.received.Add(int64(n))
	c.f.client.p.bucket.take(c.f.client.ctx, n)
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	c.f.client.p.bucket.take(c.f.client.ctx, len(b))
	n, err := c.Conn.Write(b)
	c.f.sent.Add(int64(n))
	return n, err
}

func (c *counted) Close() error { return c.f.drop(c.Conn) }

// CloseWrite ends what goes to the destination.
func (c *counted) CloseWrite() error { return endWrite(c.Conn) }
