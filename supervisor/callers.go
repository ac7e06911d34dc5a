package supervisor

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"

	"agentsh/supervisor/egress"
	"agentsh/supervisor/notify"
)

// maxCallers is how many connections a session remembers the callers of: those
// on their way, and those carried.
const maxCallers = 8192

// callers know which process made a connection. It is told of each connect(2)
// before that goes on.
type callers struct {
	mu sync.Mutex
	// by the number of the client's socket: connections that go their own way
	sockets recent[uint64, egress.Caller]
	// by the client's address: connections that were carried, until accepted, and then
	pending, accepted recent[netip.AddrPort, carried]
}

// carried is a connection that the supervisor made for a program.
type carried struct {
	to     netip.AddrPort // where the program wanted to go
	caller egress.Caller
}

func newCallers() *callers {
	return &callers{
		sockets:  newRecent[uint64, egress.Caller](),
		pending:  newRecent[netip.AddrPort, carried](),
		accepted: newRecent[netip.AddrPort, carried](),
	}
}

func callerOf(c notify.Connect) egress.Caller {
	return egress.Caller{Command: c.Command, Process: c.Process}
}

// connects notes a connection that goes its own way.
func (c *callers) connects(q notify.Connect) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sockets.set(q.Inode, callerOf(q))
}

// register notes a connection that the supervisor is about to make.
func (c *callers) register(q notify.Connect) func(netip.AddrPort) func() {
	return func(local netip.AddrPort) func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pending.set(local, carried{q.To, callerOf(q)})
		return func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.pending.remove(local)
		}
	}
}

// accept notes that a carried connection has arrived, and reports whether it is
// one.
func (c *callers) accept(conn net.Conn) bool {
	from := remote(conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	made, ok := c.pending.remove(from)
	if ok {
		c.accepted.set(from, made)
	}
	return ok
}

// carriedBy tells of a carried connection.
func (c *callers) carriedBy(conn net.Conn) (carried, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made, ok := c.accepted.get(remote(conn))
	return made, ok
}

// errNoCaller says that nobody is known to have made a connection.
var errNoCaller = errors.New("nobody is known to have made the connection")

// connected tells who made the connection of a socket.
func (c *callers) connected(inode uint64) (egress.Caller, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	caller, ok := c.sockets.get(inode)
	if !ok {
		return egress.Caller{}, fmt.Errorf("socket %d: %w", inode, errNoCaller)
	}
	return caller, nil
}

// remote is the address of a connection's other end, IPv4 as IPv4.
func remote(conn net.Conn) netip.AddrPort { return plainAddr(conn.RemoteAddr()) }

func plainAddr(a net.Addr) netip.AddrPort {
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

// remove takes a key out. Its place in the order stays, which makes a key that
// is set again leave earlier at the most.
func (r *recent[K, V]) remove(key K) (V, bool) {
	v, ok := r.values[key]
	delete(r.values, key)
	return v, ok
}

// admitting accepts carried connections only: the listener stands on loopback
// of the machine, where others can reach it.
type admitting struct {
	net.Listener
	callers *callers
}

func (a admitting) Accept() (net.Conn, error) {
	for {
		c, err := a.Listener.Accept()
		if err != nil || a.callers.accept(c) {
			return c, err
		}
		_ = c.Close()
	}
}
