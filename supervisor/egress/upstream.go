package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// dialer connects to an address of the outside.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// upstream holds the connections of one flow to its destination.
type upstream struct {
	dialer  dialer
	timeout time.Duration // for all addresses of one dial

	mu      sync.Mutex
	address string // last dialled, as IP:port
	failed  bool   // no address answered the last time
	conns   map[net.Conn]struct{}
	spare   net.Conn // dialled and not used yet
	closed  bool
}

var errClosed = errors.New("the connection was ended")

// dial connects to the first address of a route that answers. It returns the
// spare connection if there is one.
func (u *upstream) dial(ctx context.Context, r route) (net.Conn, error) {
	u.mu.Lock()
	spare := u.spare
	u.spare = nil
	u.mu.Unlock()
	if spare != nil {
		return spare, nil
	}
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	var last error
	for i, a := range r.addrs {
		part := ctx
		if left := len(r.addrs) - i; left > 1 {
			deadline, _ := ctx.Deadline()
			shorter, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(left))
			defer cancel()
			part = shorter
		}
		to := netip.AddrPortFrom(a, r.to.port).String()
		conn, err := u.dialer(part, "tcp", to)
		if err == nil {
			return u.add(conn, to)
		}
		last = err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.failed = !u.closed
	return nil, last
}

// add registers a connection to an address.
func (u *upstream) add(conn net.Conn, address string) (net.Conn, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		_ = conn.Close()
		return nil, errClosed
	}
	u.address = address
	u.conns[conn] = struct{}{}
	return conn, nil
}

// save puts a connection aside for the next dial.
func (u *upstream) save(conn net.Conn) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.spare = conn
}

// drop closes one connection.
func (u *upstream) drop(conn net.Conn) error {
	u.mu.Lock()
	delete(u.conns, conn)
	u.mu.Unlock()
	return conn.Close()
}

// dialled is the address that was dialled last, as IP:port.
func (u *upstream) dialled() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.address
}

// unreached reports whether no connection was made, as no address answered.
func (u *upstream) unreached() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.failed && u.address == ""
}

// close closes all connections. Later dials fail.
func (u *upstream) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for c := range u.conns {
		_ = c.Close()
	}
}
