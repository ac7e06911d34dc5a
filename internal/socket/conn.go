// Package socket has the streams between a controller and a listening place: Unix, TCP
// and AF_VSOCK sockets, and WebSockets. Beside its bytes, a stream carries messages for
// people. Except on a Unix socket, both ends must have the same [Key].
package socket

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Types of frames. A frame is its type, a number of 4 bytes, big endian, and as many bytes.
const (
	frameData    = 'd'
	frameMessage = 'm' // a part of a text for people
	frameEnd     = 'e' // the sender sends no more
)

const maxFrame = 64 << 10 // bytes after the head

// Conn is a stream. Its bytes are read and written as those of any connection. Safe for
// concurrent use.
type Conn struct {
	net.Conn          // the stream of frames
	in       net.Conn // the bytes that arrived
	messages io.Writer
	gone     chan struct{} // closed when nothing more arrives
	err      error         // of the stream of frames; set before gone is closed

	mu    sync.Mutex
	frame []byte // the buffer of writers
}

// newConn makes a stream of a connection. messages gets the messages of the other end; nil:
// none is accepted. A goroutine reads the connection until it ends or is closed.
func newConn(conn net.Conn, messages io.Writer) *Conn {
	near, far := net.Pipe()
	c := &Conn{Conn: conn, in: near, messages: messages, gone: make(chan struct{})}
	go func() {
		c.err = c.receive(far)
		_ = far.Close() // a pipe
		close(c.gone)
	}()
	return c
}

// receive passes what arrives on.
func (c *Conn) receive(to io.Writer) error {
	in := bufio.NewReaderSize(c.Conn, maxFrame)
	var head [5]byte
	data := make([]byte, maxFrame)
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return explain(err)
		}
		n := binary.BigEndian.Uint32(head[1:])
		if n > maxFrame {
			return fmt.Errorf("the other end sent a frame of %d bytes, at most %d: is it agentsh serve --listen?", n, maxFrame)
		}
		if _, err := io.ReadFull(in, data[:n]); err != nil {
			return err
		}
		var err error
		switch {
		case head[0] == frameData:
			_, err = to.Write(data[:n])
		case head[0] == frameMessage && c.messages != nil:
			_, err = c.messages.Write(data[:n])
		case head[0] == frameEnd:
			return io.EOF
		default:
			err = fmt.Errorf("the other end sent a frame of type %q: is it agentsh serve --listen, with the same use of a key?", head[0])
		}
		if err != nil {
			return err
		}
	}
}

// Read implements [net.Conn].
func (c *Conn) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	if errors.Is(err, io.EOF) {
		<-c.gone
		if c.err != nil && !errors.Is(c.err, net.ErrClosed) {
			err = c.err
		}
	}
	return n, err
}

// Write implements [net.Conn].
func (c *Conn) Write(p []byte) (int, error) { return c.write(frameData, p) }

func (c *Conn) write(kind byte, p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for done := 0; ; {
		part := p[done:min(len(p), done+maxFrame)]
		c.frame = binary.BigEndian.AppendUint32(append(c.frame[:0], kind), uint32(len(part)))
		c.frame = append(c.frame, part...)
		if _, err := c.Conn.Write(c.frame); err != nil {
			return done, err
		}
		if done += len(part); done == len(p) {
			return done, nil
		}
	}
}

// Messages is a writer of messages to the other end.
func (c *Conn) Messages() io.Writer { return messages{c} }

type messages struct{ c *Conn }

func (m messages) Write(p []byte) (int, error) { return m.c.write(frameMessage, p) }

// Gone is closed when nothing more arrives.
func (c *Conn) Gone() <-chan struct{} { return c.gone }

// Err is why nothing more arrives, after Gone is closed; nil: the other end ended the stream.
func (c *Conn) Err() error {
	if errors.Is(c.err, io.EOF) || errors.Is(c.err, net.ErrClosed) || errors.Is(c.err, io.ErrClosedPipe) {
		return nil
	}
	return c.err
}

// End tells the other end that this was all, and waits until it has closed the stream, or
// for a time. Closing at once could drop what is on its way. See tcp(7), SO_LINGER.
func (c *Conn) End(wait time.Duration) error {
	limit := time.NewTimer(wait)
	defer limit.Stop()
	_ = c.SetWriteDeadline(time.Now().Add(wait)) // the write below tells
	_, err := c.write(frameEnd, nil)
	_ = c.in.Close() // what still arrives ends the reader
	if err == nil {
		select {
		case <-c.gone:
		case <-limit.C:
		}
	}
	return errors.Join(err, c.Close())
}

// Close implements [net.Conn].
func (c *Conn) Close() error { return errors.Join(c.Conn.Close(), c.in.Close()) }

// SetDeadline implements [net.Conn].
func (c *Conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements [net.Conn].
func (c *Conn) SetReadDeadline(t time.Time) error {
	if err := c.in.SetReadDeadline(t); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	return nil // where nothing more arrives, no read waits
}
