package egress

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tunnel carries a client's connection along a judged way. in is the client's
// connection with what was read of it already; opened tells the client that it
// may go on. A refusal that comes before that is returned, for the client to be
// told; later ones are recorded here and end the connection.
func (c *client) tunnel(f *flow, in net.Conn, opened func() error) *refusal {
	if f.looked.Load() {
		if err := opened(); err != nil {
			return nil
		}
		c.recorded(f, c.look(f, in))
		return nil
	}
	up, err := f.dial(c.ctx)
	if err != nil {
		f.fail(err)
		return failed("connect to %s: %v", f.shown(), err)
	}
	if err := opened(); err != nil {
		return nil
	}
	c.recorded(f, c.relay(f, in, up))
	return nil
}

// recorded writes down why an open connection is ended.
func (c *client) recorded(f *flow, refused *refusal) {
	if refused == nil {
		return
	}
	if refused.failure {
		f.fail(errors.New(refused.diag.Message))
		return
	}
	f.fail(errors.New("refused: " + refused.diag.Message))
	_ = c.refuse(f.to.String(), refused)
	c.reset()
}

// fail keeps why the destination could not be reached, for the end event.
func (f *flow) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.why == "" {
		f.why = err.Error()
	}
}

// relay carries bytes both ways. What the client sends first decides whether it
// is TLS, whose server name must agree, or HTTP, which is looked into.
func (c *client) relay(f *flow, in, up net.Conn) *refusal {
	server := &speaker{up: up}
	back := make(chan struct{})
	c.p.serving.Go(func() {
		defer close(back)
		if server.waits() {
			f.pump(c.conn, up, &f.received)
		}
	})
	stop := func() {
		_ = f.drop(up)
		<-back
	}
	s, err := sniff(c, in)
	if errors.Is(err, io.EOF) && len(s.seen) == 0 { // the client only listens
		closeWrite(up)
		<-back
		stop()
		return nil
	}
	if refused := c.permitTunnel(f, s, err); refused != nil {
		stop()
		return refused
	}
	// A name that only the handshake told may be one to look into.
	f.secured = s.kind == isTLS && f.looked.Load()
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
		return against("agreement", "the server of "+f.shown()+" spoke before a request that is to be looked into", "")
	}
	if server.silence() {
		<-back
		_ = up.SetReadDeadline(time.Time{})
		f.mu.Lock()
		f.spare = up
		f.mu.Unlock()
	} else {
		stop()
	}
	c.handWeb(f, s.conn(in))
	return nil
}

// speaker tells whether a server said something before its client was
// understood.
type speaker struct {
	up net.Conn

	mu       sync.Mutex
	heard    bool
	silenced bool
}

// waits waits until the server says something, and reports whether that is to
// be copied.
func (w *speaker) waits() bool {
	if t, ok := w.up.(*net.TCPConn); ok {
		if raw, err := t.SyscallConn(); err == nil {
			_, _ = waiting(raw) // who copies meets the error again
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

// silence ends waits without anything having been read from the server; false:
// that cannot be done, the connection is to be dropped.
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

// forward sends the client's bytes on: those that were looked at, then the rest.
func (c *client) forward(f *flow, in, up net.Conn, s sniffed) *refusal {
	if s.kind == isOpaque && len(c.p.secrets.list) > 0 {
		return f.scanned(up, s.conn(in))
	}
	c.p.bucket.take(c.ctx, len(s.seen))
	n, err := up.Write(s.seen)
	f.sent.Add(int64(n))
	if err != nil {
		_ = c.conn.Close()
		_ = up.Close()
		return nil
	}
	f.pump(up, plainConn(in), &f.sent)
	return nil
}

// permitTunnel holds what a client began to send against the way it is on.
func (c *client) permitTunnel(f *flow, s sniffed, err error) *refusal {
	switch {
	case err != nil:
		return failed("nothing to be understood came from the client: %v", err)
	case s.kind == isOpaque:
		return f.settleOpaque()
	case s.kind == isHTTP:
		return nil
	case s.hidden && !f.direct:
		return hiddenName(f)
	}
	return f.settle(s.server)
}

// settleOpaque gives a way by address the name it counts for, when what it
// carries tells none: the last one looked up whose requests nobody looks into.
func (f *flow) settleOpaque() *refusal {
	if f.to.host.Name() != "" || f.direct {
		return nil
	}
	for _, name := range f.names {
		if !f.wants(name) {
			f.mu.Lock()
			f.name = name
			f.mu.Unlock()
			return nil
		}
	}
	return against("looked into", "requests to "+f.to.String()+" are looked into, and this is neither TLS nor HTTP", "")
}

func hiddenName(f *flow) *refusal {
	return against("agreement", "the TLS handshake to "+f.shown()+" hides its server name", "turn Encrypted Client Hello off")
}

// look ends TLS here, or takes plain HTTP, and has each request judged.
func (c *client) look(f *flow, in net.Conn) *refusal {
	s, err := sniff(c, in)
	switch {
	case errors.Is(err, io.EOF) && len(s.seen) == 0:
		return nil
	case err != nil:
		return failed("nothing to be understood came from the client: %v", err)
	case s.kind == isOpaque:
		return against("looked into", "requests to "+f.shown()+" are looked into, and this is neither TLS nor HTTP", "")
	case s.kind == isHTTP:
		c.handWeb(f, s.conn(in))
		return nil
	case s.hidden:
		return hiddenName(f)
	}
	if refused := f.settle(s.server); refused != nil {
		return refused
	}
	f.secured = true
	c.handWeb(f, s.conn(in))
	return nil
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

// Bounds of what is copied at once, in bytes.
const (
	pumpBuffer = 16 << 10
	spliceFrom = 16 << 10 // less is read and written
	spliceMost = 1 << 20
)

var pumpBuffers = sync.Pool{New: func() any { b := make([]byte, pumpBuffer); return &b }}

// pump copies until src ends, then ends dst's side too; after an error both are
// closed. Connections of the kernel hold no buffer while nothing arrives.
func (f *flow) pump(dst, src net.Conn, count *atomic.Int64) {
	from, ok := src.(*net.TCPConn)
	to, ok2 := plainConn(dst).(*net.TCPConn)
	var err error
	if ok && ok2 {
		err = f.pumpTCP(to, from, count)
	} else {
		err = f.pumpAny(dst, src, count)
	}
	if errors.Is(err, io.EOF) {
		closeWrite(dst)
		return
	}
	_ = src.Close()
	_ = dst.Close()
}

func (f *flow) pumpTCP(dst, src *net.TCPConn, count *atomic.Int64) error {
	raw, err := src.SyscallConn()
	if err != nil {
		return err
	}
	for {
		n, err := waiting(raw)
		if err != nil {
			return err
		}
		if n < spliceFrom {
			if err := f.pass(dst, src, count); err != nil {
				return err
			}
			continue
		}
		n = min(n, spliceMost)
		f.client.p.bucket.take(f.client.ctx, n)
		done, err := io.CopyN(dst, src, int64(n)) // splice(2)
		count.Add(done)
		if err != nil {
			return err
		}
	}
}

// pass copies what one read gives.
func (f *flow) pass(dst io.Writer, src io.Reader, count *atomic.Int64) error {
	buf := pumpBuffers.Get().(*[]byte)
	defer pumpBuffers.Put(buf)
	n, err := src.Read(*buf)
	if n > 0 {
		f.client.p.bucket.take(f.client.ctx, n)
		m, werr := dst.Write((*buf)[:n])
		count.Add(int64(m))
		if werr != nil {
			return werr
		}
	}
	return err
}

func (f *flow) pumpAny(dst io.Writer, src io.Reader, count *atomic.Int64) error {
	for {
		if err := f.pass(dst, src, count); err != nil {
			return err
		}
	}
}

// waiting waits until a connection has bytes and returns how many, or io.EOF.
func waiting(raw syscall.RawConn) (int, error) {
	var n int
	var asked error
	err := raw.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, asked = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case asked == unix.EAGAIN || asked == unix.EINTR:
			return false
		case asked == nil && n == 0:
			asked = io.EOF
		case asked == nil:
			n, asked = unix.IoctlGetInt(int(fd), unix.TIOCINQ) // SIOCINQ, see tcp(7)
		}
		return true
	})
	return n, errors.Join(err, asked)
}
