package egress

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// tunnel serves an opening by a flow: it relays bytes, or has HTTP requests
// inspected. A refusal that comes before the client was told to continue is returned,
// so that the caller answers with it. Later ones end the connection and are
// recorded here.
func (c *client) tunnel(f *flow, o opening) *refusal {
	r := f.judged()
	if r.inspected {
		if err := o.accept(); err != nil {
			return nil //nolint:nilerr // the client is gone
		}
		c.endRefused(f, c.inspect(f, o.conn))
		return nil
	}
	up, err := f.up.dial(c.ctx, r)
	if err != nil {
		f.fail(err)
		return failed("connect to %s: %v", r.shown(), err)
	}
	if err := o.accept(); err != nil {
		return nil //nolint:nilerr // the client is gone
	}
	c.endRefused(f, c.relay(f, o.conn, up))
	return nil
}

// endRefused records why an open connection is ended.
func (c *client) endRefused(f *flow, refused *refusal) {
	if refused == nil {
		return
	}
	if refused.failure {
		f.fail(errors.New(refused.diag.Message))
		return
	}
	f.fail(errors.New("refused: " + refused.diag.Message))
	_ = c.p.refuse(c.from, f.to.String(), refused)
	c.reset()
}

// inspect has each request of a connection judged. If the client begins with TLS,
// that ends at the proxy.
func (c *client) inspect(f *flow, in net.Conn) *refusal {
	s, err := sniff(c.ctx, in, c.p.opts.Limits.OpeningTimeout)
	switch {
	case errors.Is(err, io.EOF) && len(s.seen) == 0:
		return nil
	case err != nil:
		return unreadable(err)
	case s.kind == isOpaque:
		return notInspectable(f.judged().shown())
	case s.kind == isHTTP:
		c.serveHTTP(f, s.conn(in))
		return nil
	case s.hidden:
		return hiddenName(f.judged())
	}
	next, refused := c.p.judge.agree(c.ctx, c.from, f.judged(), s.server)
	if refused != nil {
		return refused
	}
	f.follow(next)
	f.secured = true
	c.serveHTTP(f, s.conn(in))
	return nil
}

// relay copies bytes in both directions. First it reads what the client sends: a
// TLS server name must agree with the route, and HTTP is inspected.
func (c *client) relay(f *flow, in, up net.Conn) *refusal {
	server := &speaker{up: up}
	back := make(chan struct{})
	c.p.open.serving.Go(func() {
		defer close(back)
		if server.waits() {
			f.meter(&f.received).pump(c.conn, up)
		}
	})
	stop := func() {
		_ = f.up.drop(up)
		<-back
	}
	s, err := sniff(c.ctx, in, c.p.opts.Limits.OpeningTimeout)
	if errors.Is(err, io.EOF) && len(s.seen) == 0 { // the client only receives
		closeWrite(up)
		<-back
		stop()
		return nil
	}
	var refused *refusal
	if err != nil {
		refused = unreadable(err)
	} else {
		refused = c.agree(f, s)
	}
	if refused != nil {
		stop()
		return refused
	}
	// The name in the handshake may be one whose requests are inspected.
	f.secured = s.kind == isTLS && f.judged().inspected
	if s.kind != isHTTP && !f.secured {
		refused := c.forward(f, in, up, s)
		if refused == nil {
			<-back
		}
		stop()
		return refused
	}
	if server.spoke() {
		stop()
		return against("agreement", "the server of "+f.judged().shown()+" spoke before a request that must be inspected", "")
	}
	if server.silence() {
		<-back
		clearReadTimeout(up)
		f.up.save(up)
	} else {
		stop()
	}
	c.serveHTTP(f, s.conn(in))
	return nil
}

// agree compares what a client began to send with the flow's route, and has the
// flow follow what is decided.
func (c *client) agree(f *flow, s sniffed) *refusal {
	r := f.judged()
	var refused *refusal
	switch {
	case s.kind == isHTTP:
		return nil // each request is judged
	case s.kind == isOpaque:
		r, refused = c.p.judge.opaque(c.from, r)
	case s.hidden && !r.direct:
		return hiddenName(r)
	default:
		r, refused = c.p.judge.agree(c.ctx, c.from, r, s.server)
	}
	if refused == nil {
		f.follow(r)
	}
	return refused
}

// forward sends the client's bytes on: those that were read already, then the
// rest.
func (c *client) forward(f *flow, in, up net.Conn, s sniffed) *refusal {
	m := f.meter(&f.sent)
	if s.kind == isOpaque && len(c.p.judge.secrets().list) > 0 {
		return c.scan(f, up, s.conn(in))
	}
	m.wait(len(s.seen))
	n, err := up.Write(s.seen)
	m.add(n)
	if err != nil {
		_ = c.conn.Close()
		_ = up.Close()
		return nil
	}
	m.pump(up, plainConn(in))
	return nil
}

// unreadable is the failure of reading what a client sends first.
func unreadable(err error) *refusal {
	return failed("nothing that can be understood came from the client: %v", err)
}

func hiddenName(r route) *refusal {
	return against("agreement", "the TLS handshake to "+r.shown()+" hides its server name", "turn Encrypted Client Hello off")
}

// speaker reports whether a server sent something before its client was
// understood.
type speaker struct {
	up net.Conn

	mu       sync.Mutex
	heard    bool
	silenced bool
}

// waits waits until the server sends something, and reports whether that is to
// be copied.
func (w *speaker) waits() bool {
	if t, ok := w.up.(*net.TCPConn); ok {
		if raw, err := t.SyscallConn(); err == nil {
			_, _ = waitReadable(raw) // pump meets the error again
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = true
	return !w.silenced
}

func (w *speaker) spoke() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, tells := w.up.(*net.TCPConn)
	return w.heard && tells
}

// silence ends waits without reading from the server. It returns false if that is
// not possible: the connection must then be dropped.
func (w *speaker) silence() bool {
	if _, ok := w.up.(*net.TCPConn); !ok {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.heard {
		return false
	}
	w.silenced = true
	_ = w.up.SetReadDeadline(time.Unix(1, 0))
	return true
}

// plainConn is the connection below one whose read-ahead is used up.
func plainConn(c net.Conn) net.Conn {
	if r, ok := c.(*replayed); ok && len(r.seen) == 0 {
		return plainConn(r.Conn)
	}
	return c
}

func closeWrite(c net.Conn) { _ = endWrite(plainConn(c)) }

// endWrite ends one direction of a connection that has two.
func endWrite(c net.Conn) error {
	if w, ok := c.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return nil
}
