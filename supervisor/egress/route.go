package egress

import (
	"net/netip"
	"sync"

	"agentsh/policy"
)

// verdict is a decision with its explanation.
type verdict struct {
	policy.Decision
	diag policy.Diagnostic
}

// route is a destination with what was decided about it. It is a value: what
// decides more about it returns another one.
type route struct {
	to        destination
	name      string       // host name that decisions are about; empty: none is known
	names     []string     // names that were resolved to the address and permit it
	direct    bool         // the address is permitted by itself
	addrs     []netip.Addr // judged; no others are dialled
	inspected bool         // its requests are inspected
	verdict   verdict      // the first that permits the connection
	approved  *approvals   // shared by all values of one connection
}

// newRoute is the route to a destination before anything is decided.
func newRoute(to destination) route {
	return route{to: to, name: to.host.Name(), approved: &approvals{rules: map[*policy.Rule]bool{}}}
}

// allow sets the verdict if it is the first that permits the connection.
func (r *route) allow(v verdict) {
	if r.verdict.diag.Rule == "" {
		r.verdict = v
	}
}

// named reports whether decisions are about another host than the client named.
func (r route) named() bool { return r.name != "" && r.name != r.to.host.Name() }

// target is the destination in events.
func (r route) target() string {
	if r.named() {
		return r.name + " at " + r.to.String()
	}
	return r.to.String()
}

// shown is the destination in messages.
func (r route) shown() string {
	if r.named() {
		return r.name + " (" + r.to.String() + ")"
	}
	return r.to.String()
}

// serverName is the name or address that the server's certificate must prove.
func (r route) serverName() string {
	if r.name != "" {
		return r.name
	}
	return r.to.host.String()
}

// approvals are the rules by which a person approved one connection.
type approvals struct {
	mu    sync.Mutex
	rules map[*policy.Rule]bool
}

func (a *approvals) add(r *policy.Rule) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rules[r] = true
}

func (a *approvals) has(r *policy.Rule) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.rules[r]
}

func (a *approvals) any() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.rules) > 0
}
