// Package resume makes one connection out of a sequence of streams. A stream may end
// at any byte: each end stores what the other has not acknowledged, and sends it again
// over the next stream. A connection without a stream for longer than its lease is lost.
//
// The end that dials begins each stream with the token and the number of bytes that it
// has received. The other end answers with its own number. Frames follow in both
// directions: data, acknowledgements, which are also sent at intervals to show that the
// stream is alive, and the end of the connection.
package resume

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// TokenSize is the size of a token, in bytes.
const TokenSize = 32

// NonceSize is the size of a nonce, in bytes.
const NonceSize = 32

// NextToken is the token of a further connection between the owners of a token. Whoever has
// the first one and knows the nonce can make it.
func NextToken(token, nonce []byte) []byte {
	h := hmac.New(sha256.New, token)
	_, _ = h.Write(nonce) // never fails, see hash.Hash
	return h.Sum(nil)
}

// Types of frames. A frame is its type and a number of 8 bytes, big endian.
const (
	frameData   = 'd' // the number of bytes, which follow
	frameAck    = 'a' // the number of bytes received since the beginning of the connection
	frameReason = 'r' // the number of bytes of why the sender closed the connection, which follow
	frameClose  = 'c' // the sender closed the connection
)

const (
	maxData   = 64 << 10  // bytes of one data frame
	maxStored = 4 << 20   // bytes that are not acknowledged; more wait in Write
	maxUnread = 1 << 20   // bytes that wait for Read; more wait in the stream
	ackAfter  = 256 << 10 // received bytes after which an acknowledgement is due
	maxReason = 16 << 10  // bytes of a reason
)

// Times of a stream.
const (
	pingInterval = 5 * time.Second
	deadAfter    = 15 * time.Second // without a frame
)

// ErrLost is wrapped by the errors of a connection that had no stream for too long.
var ErrLost = errors.New("the stream broke and did not come back")

// errProtocol is wrapped by the error of a peer that cannot be the one of this connection.
var errProtocol = errors.New("the other end breaks the protocol of streams")

// errUnused is the error of a stream that is no longer in use.
var errUnused = errors.New("the stream is no longer in use")

// Conn is one end of a connection. It is safe for concurrent use.
type Conn struct {
	token []byte
	lease time.Duration
	dials bool

	mu      sync.Mutex
	changed sync.Cond // signalled at every change below

	stream io.Closer   // the stream in use; nil: none
	unused bool        // another stream takes its place
	lost   *time.Timer // ends the connection; nil while there is a stream

	out       buffer // bytes that are not acknowledged
	base      uint64 // the offset of out in everything that was written
	sent      uint64 // the offset of what the stream gets next
	in        buffer // bytes that were not read
	got       uint64 // bytes received
	acked     uint64 // of these, acknowledged
	pinging   bool   // an acknowledgement is due whatever was received
	closed    bool   // by this end
	closeSent bool   // over the stream in use
	reason    string // why this end closed it
	peerDone  bool   // the peer closed the connection
	said      string // why the peer did
	err       error  // the connection has failed
	renew     func() // renews the patience of Wait; nil: nobody waits

	read, write deadline
}

// New makes an end without a stream. The lease begins now. The ends have the same token;
// one of them dials.
func New(token []byte, lease time.Duration, dials bool) *Conn {
	c := &Conn{token: token, lease: lease, dials: dials}
	c.changed.L = &c.mu
	c.read.c, c.write.c = c, c
	c.lost = time.AfterFunc(lease, c.loseNow)
	return c
}

func (c *Conn) loseNow() { c.Fail(ErrLost) }

// Fail ends the connection with an error.
func (c *Conn) Fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.err = err
	}
	if c.stream != nil {
		_ = c.stream.Close()
	}
	c.changed.Broadcast()
}

// Silent reports that no byte has arrived since the beginning of the connection.
func (c *Conn) Silent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got == 0
}

// Moved is the number of bytes that have arrived at either end.
func (c *Conn) Moved() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got + c.base
}

// Carry uses a stream until it ends. It returns true if the connection is over: it was
// closed by both ends, or has failed. The caller closes the stream. An earlier stream is
// no longer used.
func (c *Conn) Carry(s io.ReadWriteCloser) (over bool) {
	watch := time.AfterFunc(deadAfter, func() { _ = s.Close() })
	defer watch.Stop()
	in := bufio.NewReaderSize(s, maxData)
	if err := c.begin(s, in); err != nil {
		if errors.Is(err, errProtocol) && c.dials {
			c.Fail(err)
		}
		return c.over()
	}
	c.begun(s)
	var sending sync.WaitGroup
	sending.Go(func() { c.send(s) })
	tick := time.NewTicker(pingInterval)
	done := make(chan struct{})
	sending.Go(func() { c.ping(tick, done) })
	err := c.receive(in, watch)
	close(done)
	tick.Stop()
	if errors.Is(err, errProtocol) {
		c.Fail(err)
	}
	if !c.finished() {
		_ = s.Close() // ends a write
	}
	_ = c.leave(errUnused) // ends send
	sending.Wait()
	return c.over()
}

// begin exchanges the numbers of bytes that arrived, and makes s the stream in use.
func (c *Conn) begin(s io.WriteCloser, in io.Reader) error {
	var first [TokenSize + 8]byte
	if c.dials {
		got := c.take(s)
		copy(first[:], c.token)
		binary.BigEndian.PutUint64(first[TokenSize:], got)
		if _, err := s.Write(first[:]); err != nil {
			return c.leave(err)
		}
		if _, err := io.ReadFull(in, first[TokenSize:]); err != nil {
			return c.leave(err)
		}
		return c.leave(c.rewind(binary.BigEndian.Uint64(first[TokenSize:])))
	}
	if _, err := io.ReadFull(in, first[:]); err != nil {
		return err
	}
	if subtle.ConstantTimeCompare(first[:TokenSize], c.token) != 1 {
		return fmt.Errorf("%w: another token", errProtocol)
	}
	got := c.take(s)
	if err := c.rewind(binary.BigEndian.Uint64(first[TokenSize:])); err != nil {
		return c.leave(err)
	}
	_, err := s.Write(binary.BigEndian.AppendUint64(nil, got))
	return c.leave(err)
}

// take makes s the stream in use, after the end of an earlier one, and returns the number
// of bytes that were received.
func (c *Conn) take(s io.Closer) (got uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.stream != nil {
		_ = c.stream.Close()
		c.unused = true
		c.changed.Broadcast()
		c.changed.Wait()
	}
	c.stream, c.unused, c.closeSent, c.acked = s, false, false, c.got
	return c.got
}

// begun ends the time without a stream. A stream that ends before both numbers are exchanged is none.
func (c *Conn) begun(s io.Closer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream == s && c.lost != nil {
		c.lost.Stop()
		c.lost = nil
	}
	if c.renew != nil {
		c.renew()
	}
}

// leave gives the stream up after an error.
func (c *Conn) leave(err error) error {
	if err == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stream = nil
	if c.err == nil && c.lost == nil {
		c.lost = time.AfterFunc(c.lease, c.loseNow)
	}
	c.changed.Broadcast()
	return err
}

// rewind drops what the peer has received, and sends the rest again.
func (c *Conn) rewind(received uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.acknowledge(received); err != nil {
		return err
	}
	c.sent = received
	return nil
}

// acknowledge drops stored bytes. c.mu is locked.
func (c *Conn) acknowledge(received uint64) error {
	if received < c.base || received > c.base+uint64(c.out.len()) {
		return fmt.Errorf("%w: %d bytes acknowledged of %d to %d", errProtocol, received, c.base, c.base+uint64(c.out.len()))
	}
	c.out.drop(int(received - c.base)) //nolint:gosec // at most what is stored
	c.base = received
	c.sent = max(c.sent, received)
	c.changed.Broadcast()
	return nil
}

// ping makes an acknowledgement due at intervals.
func (c *Conn) ping(tick *time.Ticker, done <-chan struct{}) {
	for {
		select {
		case <-tick.C:
			c.mu.Lock()
			c.pinging = true
			c.changed.Broadcast()
			c.mu.Unlock()
		case <-done:
			return
		}
	}
}

// send writes frames to a stream as long as it is in use.
func (c *Conn) send(s io.WriteCloser) {
	frame := make([]byte, 0, 9+maxData)
	for {
		frame = c.next(s, frame[:0])
		if len(frame) == 0 {
			return
		}
		if _, err := s.Write(frame); err != nil {
			_ = s.Close() // ends receive
			return
		}
	}
}

// next waits for the next frame; none: the stream is no longer in use.
func (c *Conn) next(s io.Closer, frame []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch left := c.base + uint64(c.out.len()) - c.sent; {
		case c.stream != s:
			return nil
		case c.pinging || c.got-c.acked >= ackAfter:
			c.pinging, c.acked = false, c.got
			return binary.BigEndian.AppendUint64(append(frame, frameAck), c.got)
		case left > 0:
			data := c.out.from(int(c.sent - c.base)) //nolint:gosec // at most what is stored
			data = data[:min(len(data), maxData)]
			c.sent += uint64(len(data))
			frame = binary.BigEndian.AppendUint64(append(frame, frameData), uint64(len(data)))
			return append(frame, data...)
		case c.closed && !c.closeSent:
			c.closeSent = true
			c.changed.Broadcast()
			if c.reason != "" {
				frame = binary.BigEndian.AppendUint64(append(frame, frameReason), uint64(len(c.reason)))
				frame = append(frame, c.reason...)
			}
			return binary.BigEndian.AppendUint64(append(frame, frameClose), 0)
		}
		c.changed.Wait()
	}
}

// receive reads frames until the stream ends, or both ends have closed the connection.
func (c *Conn) receive(in io.Reader, watch *time.Timer) error {
	var head [9]byte
	data := make([]byte, maxData)
	for {
		if c.finished() {
			return nil
		}
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		watch.Reset(deadAfter)
		n := binary.BigEndian.Uint64(head[1:])
		switch head[0] {
		case frameAck:
			c.mu.Lock()
			err := c.acknowledge(n)
			c.mu.Unlock()
			if err != nil {
				return err
			}
		case frameClose:
			if err := c.awaitClose(watch); err != nil {
				return err
			}
		case frameReason:
			if n > maxReason {
				return fmt.Errorf("%w: a reason of %d bytes", errProtocol, n)
			}
			if _, err := io.ReadFull(in, data[:n]); err != nil {
				return err
			}
			c.mu.Lock()
			c.said = string(data[:n])
			c.mu.Unlock()
		case frameData:
			if n == 0 || n > maxData {
				return fmt.Errorf("%w: a frame of %d bytes", errProtocol, n)
			}
			if _, err := io.ReadFull(in, data[:n]); err != nil {
				return err
			}
			if err := c.store(data[:n], watch); err != nil {
				return err
			}
		default:
			return fmt.Errorf("%w: frame %q", errProtocol, head[0])
		}
	}
}

// awaitClose waits until this end is closed, too, and has said so.
func (c *Conn) awaitClose(watch *time.Timer) error {
	watch.Stop()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.peerDone = true
	c.changed.Broadcast()
	for !c.closed || !c.closeSent {
		if c.unused || c.err != nil {
			return errUnused
		}
		c.changed.Wait()
	}
	watch.Reset(deadAfter)
	return nil
}

// store appends received bytes. It waits for room, in which time the stream is not dead.
func (c *Conn) store(data []byte, watch *time.Timer) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in.len() >= maxUnread {
		watch.Stop()
		for c.in.len() >= maxUnread && !c.closed {
			if c.unused || c.err != nil {
				return errUnused
			}
			c.changed.Wait()
		}
		watch.Reset(deadAfter)
	}
	c.got += uint64(len(data))
	if !c.closed {
		c.in.write(data)
	}
	c.changed.Broadcast()
	return nil
}

// finished reports whether both ends have closed the connection and know it.
func (c *Conn) finished() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peerDone && c.closed && c.closeSent
}

// over reports whether no further stream is of use.
func (c *Conn) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil || c.peerDone && c.closed
}
