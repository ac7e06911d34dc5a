package netns

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"agentsh/supervisor/egress"
	"agentsh/supervisor/notify"
)

// maxCallers bounds each of the maps of a session's callers.
const maxCallers = 8192

// callers remembers which process made a connection. It is informed of each
// connect(2) before the call goes on.
type callers struct {
	mu sync.Mutex
	// by inode of the client's socket: connections that the kernel makes
	sockets recent[uint64, egress.Caller]
	// by address of the client: emulated connections before and after accept
	pending, accepted recent[netip.AddrPort, emulated]
}

// emulated is a connection that the supervisor made for a program.
type emulated struct {
	to     netip.AddrPort // the destination that the program asked for
	caller egress.Caller
}

func newCallers() *callers {
	return &callers{
		sockets:  newRecent[uint64, egress.Caller](),
		pending:  newRecent[netip.AddrPort, emulated](),
		accepted: newRecent[netip.AddrPort, emulated](),
	}
}

func callerOf(c notify.Connect) egress.Caller {
	return egress.Caller{Command: c.Command, Process: c.Process}
}

// note remembers the caller of a connection that the kernel makes.
func (c *callers) note(q notify.Connect) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sockets.set(q.Inode, callerOf(q))
}

// emulate returns a function to be called with the local address of a connection
// before the supervisor makes it. The function that this returns forgets it.
func (c *callers) emulate(q notify.Connect) func(netip.AddrPort) func() {
	return func(local netip.AddrPort) func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pending.set(local, emulated{q.To, callerOf(q)})
		return func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.pending.remove(local)
		}
	}
}

// accept reports whether an accepted connection is emulated, and notes that it
// has arrived.
func (c *callers) accept(conn net.Conn) bool {
	from := tcpAddr(conn.RemoteAddr())
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.pending.remove(from)
	if ok {
		c.accepted.set(from, e)
	} else {
		c.accepted.remove(from) // an earlier connection from that port
	}
	return ok
}

// emulatedBy returns what is known of an emulated connection.
func (c *callers) emulatedBy(conn net.Conn) (emulated, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.accepted.get(tcpAddr(conn.RemoteAddr()))
}

// errNoCaller says that the process of a connection is not known.
var errNoCaller = errors.New("the process that made the connection is not known")

// ofSocket returns the process that connected a socket.
func (c *callers) ofSocket(inode uint64) (egress.Caller, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	caller, ok := c.sockets.get(inode)
	if !ok {
		return egress.Caller{}, fmt.Errorf("socket %d: %w", inode, errNoCaller)
	}
	return caller, nil
}

// tcpAddr is the address of one end of a TCP connection, IPv4 as IPv4. It is not
// valid for other connections.
func tcpAddr(a net.Addr) netip.AddrPort {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
}

// recent is a map of the last maxCallers keys that were set.
type recent[K comparable, V any] struct {
	values map[K]V
	order  []K // ring
	next   int
}

func newRecent[K comparable, V any]() recent[K, V] { return recent[K, V]{values: map[K]V{}} }

func (r *recent[K, V]) get(key K) (V, bool) {
	v, ok := r.values[key]
	return v, ok
}

func (r *recent[K, V]) set(key K, value V) {
	_, known := r.values[key]
	r.values[key] = value
	switch {
	case known:
	case len(r.order) < maxCallers:
		r.order = append(r.order, key)
	default:
		delete(r.values, r.order[r.next])
		r.order[r.next] = key
		r.next = (r.next + 1) % maxCallers
	}
}

// remove removes a key from the map, but not from the order. A key that is set
// again may therefore be dropped early.
func (r *recent[K, V]) remove(key K) (V, bool) {
	v, ok := r.values[key]
	delete(r.values, key)
	return v, ok
}
