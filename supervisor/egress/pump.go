package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds of what is copied at once, in bytes.
const (
	pumpBuffer = 16 << 10
	spliceFrom = 16 << 10 // less is read and written
	spliceMost = 1 << 20
)

var pumpBuffers = sync.Pool{New: func() any { b := make([]byte, pumpBuffer); return &b }}

// meter counts the bytes of one direction and holds them to the session's
// bandwidth, until ctx ends.
type meter struct {
	ctx    context.Context
	bucket *bucket
	count  *atomic.Int64
}

// wait waits until n bytes may pass.
func (m meter) wait(n int) { m.bucket.take(m.ctx, n) }

func (m meter) add(n int) { m.count.Add(int64(n)) }

// pump copies until src ends, then ends dst's side too; after an error it closes
// both. Connections of the kernel hold no buffer while nothing arrives.
func (m meter) pump(dst, src net.Conn) {
	from, ok := src.(*net.TCPConn)
	to, ok2 := plainConn(dst).(*net.TCPConn)
	var err error
	if ok && ok2 {
		err = m.pumpTCP(to, from)
	} else {
		err = m.pumpAny(dst, src)
	}
	if errors.Is(err, io.EOF) {
		closeWrite(dst)
		return
	}
	_ = src.Close()
	_ = dst.Close()
}

func (m meter) pumpTCP(dst, src *net.TCPConn) error {
	raw, err := src.SyscallConn()
	if err != nil {
		return err
	}
	for {
		n, err := waitReadable(raw)
		if err != nil {
			return err
		}
		if n < spliceFrom {
			if err := m.pass(dst, src); err != nil {
				return err
			}
			continue
		}
		n = min(n, spliceMost)
		m.wait(n)
		done, err := io.CopyN(dst, src, int64(n)) // splice(2)
		m.count.Add(done)
		if err != nil {
			return err
		}
	}
}

func (m meter) pumpAny(dst io.Writer, src io.Reader) error {
	for {
		if err := m.pass(dst, src); err != nil {
			return err
		}
	}
}

// pass copies the result of one read.
func (m meter) pass(dst io.Writer, src io.Reader) error {
	buf := pumpBuffers.Get().(*[]byte)
	defer pumpBuffers.Put(buf)
	n, err := src.Read(*buf)
	if n > 0 {
		m.wait(n)
		written, werr := dst.Write((*buf)[:n])
		m.add(written)
		if werr != nil {
			return werr
		}
	}
	return err
}

// waitReadable waits until a connection has bytes. It returns how many, or io.EOF.
func waitReadable(raw syscall.RawConn) (int, error) {
	var n int
	var result error
	err := raw.Read(func(fd uintptr) bool {
		var one [1]byte
		n, _, result = unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		switch {
		case result == unix.EAGAIN || result == unix.EINTR:
			return false
		case result == nil && n == 0:
			result = io.EOF
		case result == nil:
			n, result = unix.IoctlGetInt(int(fd), unix.TIOCINQ) // SIOCINQ, see tcp(7)
		}
		return true
	})
	return n, errors.Join(err, result)
}

// counted is a connection to the destination of HTTP requests: its bytes are
// counted and held to the session's bandwidth.
type counted struct {
	net.Conn
	up             *upstream
	sent, received meter
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.received.add(n)
	c.received.wait(n)
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	c.sent.wait(len(b))
	c.sent.add(len(b)) // first: the answer may end the flow before this goroutine runs again
	n, err := c.Conn.Write(b)
	c.sent.add(n - len(b))
	return n, err
}

func (c *counted) Close() error { return c.up.drop(c.Conn) }

// CloseWrite ends what goes to the destination.
func (c *counted) CloseWrite() error { return endWrite(c.Conn) }
