package resume

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case c.read.passed():
			return 0, os.ErrDeadlineExceeded
		case c.in.len() > 0:
			n := c.in.read(p)
			c.changed.Broadcast()
			return n, nil
		case c.peerDone:
			return 0, io.EOF
		case c.err != nil:
			return 0, c.err
		}
		c.changed.Wait()
	}
}

// Write implements [net.Conn]. It returns when the bytes are stored, and waits while too
// many are.
func (c *Conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for n := 0; ; {
		switch {
		case c.closed:
			return n, net.ErrClosed
		case c.peerDone:
			return n, io.ErrClosedPipe
		case c.err != nil:
			return n, c.err
		case c.write.passed():
			return n, os.ErrDeadlineExceeded
		case n == len(p):
			return n, nil
		}
		if room := maxStored - c.out.len(); room > 0 {
			more := min(room, len(p)-n)
			c.out.write(p[n : n+more])
			n += more
			c.changed.Broadcast()
			continue
		}
		c.changed.Wait()
	}
}

// Close implements [net.Conn]. What was written is still sent, over the streams that are
// carried.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.changed.Broadcast()
	return nil
}

// CloseFor is Close, and tells the other end why. It tells it again over each stream until the other end has closed the connection too.
func (c *Conn) CloseFor(reason string) {
	c.mu.Lock()
	if !c.closed {
		c.reason = reason[:min(len(reason), maxReason)]
	}
	c.mu.Unlock()
	_ = c.Close() // it may be closed
}

// Reason is why the other end closed the connection; empty: it has not, or did not say it.
func (c *Conn) Reason() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.peerDone {
		return ""
	}
	return c.said
}

// Wait returns when no further stream is of use: both ends have closed the connection, or it has failed. It fails when no stream
// has begun for a time. One Wait is used for a connection.
func (c *Conn) Wait(patience time.Duration) {
	late := time.AfterFunc(patience, c.loseNow)
	defer late.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.renew = func() { late.Reset(patience) }
	for c.err == nil && (!c.peerDone || !c.closed) {
		c.changed.Wait()
	}
}

// LocalAddr implements [net.Conn].
func (c *Conn) LocalAddr() net.Addr { return addr{} }

// RemoteAddr implements [net.Conn].
func (c *Conn) RemoteAddr() net.Addr { return addr{} }

// addr is the address of both ends.
type addr struct{}

func (addr) Network() string { return "resume" }

func (addr) String() string { return "resume" }

// deadline is a deadline of Read or Write.
type deadline struct {
	c     *Conn
	at    time.Time
	timer *time.Timer
}

// passed reports whether the deadline is over. c.mu is locked.
func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// set sets the deadline. c.mu is locked.
func (d *deadline) set(t time.Time) {
	if d.timer != nil {
		d.timer.Stop()
	}
	d.at = t
	if !t.IsZero() {
		d.timer = time.AfterFunc(time.Until(t), func() {
			d.c.mu.Lock()
			defer d.c.mu.Unlock()
			d.c.changed.Broadcast()
		})
	}
	d.c.changed.Broadcast()
}

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.read.set(t)
	return nil
}

// SetWriteDeadline implements [net.Conn].
func (c *Conn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.write.set(t)
	return nil
}
