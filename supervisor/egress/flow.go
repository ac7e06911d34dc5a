package egress

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy"
)

// flow is a route that a client uses: it is counted, listed and closed.
type flow struct {
	id      uint64 // set by the registry
	client  *client
	to      destination
	secured bool // TLS of the client ends at the proxy; set before requests are served
	started time.Time
	up      upstream

	sent     atomic.Int64 // bytes to the destination
	received atomic.Int64 // bytes from it

	mu        sync.Mutex
	route     route     // a connection to an address may name hosts in turn
	transport transport // nil before the first HTTP request
	ended     bool
	reason    string // why the flow ended
}

func newFlow(c *client, r route) *flow {
	return &flow{
		client: c, to: r.to, started: time.Now(), route: r,
		up: upstream{dialer: c.p.opts.Dial, timeout: c.p.opts.Limits.DialTimeout, conns: map[net.Conn]struct{}{}},
	}
}

// judged is the route in force.
func (f *flow) judged() route {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.route
}

// follow makes a route the one in force.
func (f *flow) follow(r route) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.route = r
}

// event begins an event about the flow as it is now.
func (f *flow) event(phase string) wire.Event {
	r := f.judged()
	e := f.client.from.event(r.target())
	e.Phase, e.Decision, e.Rule = phase, r.verdict.Effect.String(), ruleOf(r.verdict.diag)
	*e.Net = wire.Net{
		ID: f.id, Address: f.up.dialled(), Via: f.client.from.via, Inspected: r.inspected,
		Sent: f.sent.Load(), Received: f.received.Load(), Millis: time.Since(f.started).Milliseconds(),
	}
	return e
}

// describe is the flow in a list of connections.
func (f *flow) describe() wire.Connection {
	e := f.event("")
	return wire.Connection{Net: *e.Net, Target: e.Target, Command: e.Command, Process: e.Process, Rule: e.Rule, Started: f.started}
}

// end closes what the flow has open and records how much passed.
func (f *flow) end() {
	f.up.close()
	f.mu.Lock()
	ended := f.ended
	f.ended = true
	transport, reason := f.transport, f.reason
	f.mu.Unlock()
	if ended {
		return
	}
	if transport != nil {
		transport.CloseIdleConnections()
	}
	p := f.client.p
	p.open.removeFlow(f)
	e := f.event("end")
	e.Message = reason
	if f.up.unreached() {
		e.Op = wire.OpUnreachable
	}
	if err := p.opts.Emit(e); err != nil {
		p.opts.Log.Error("the end of a connection could not be recorded", "error", err)
	}
}

// fail notes the first reason why the flow ends, for its end event.
func (f *flow) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reason == "" {
		f.reason = err.Error()
	}
}

// recheck ends the flow if the policy in force does not permit it as it is.
func (f *flow) recheck() {
	f.mu.Lock()
	r, ended := f.route, f.ended
	f.mu.Unlock()
	if ended {
		return
	}
	if diag, ok := f.client.p.judge.recheck(f.client.from, r); !ok {
		f.withdraw(diag)
	}
}

// withdraw ends a flow that is no longer permitted.
func (f *flow) withdraw(diag policy.Diagnostic) {
	_ = f.client.p.refuse(f.client.from, f.to.String(), denied(diag))
	f.mu.Lock()
	f.reason = "ended: " + diag.Message
	f.mu.Unlock()
	f.client.kill()
}

// meter counts bytes of the flow and holds them to the session's bandwidth.
func (f *flow) meter(count *atomic.Int64) meter {
	return meter{f.client.ctx, f.client.p.bucket, count}
}
