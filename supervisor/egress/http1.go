package egress

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// answerHeaderMost bounds the header of an answer, with the informational answers
// before it, in bytes.
const answerHeaderMost = 256 << 10

// http1Conn is one connection to a server.
type http1Conn struct {
	net.Conn
	of     *http1
	idle   *time.Timer // nil before the connection was idle
	reused bool

	// Of the request under way.
	in      *bufio.Reader // nil while there is none
	left    int64         // what may still be read
	started bool          // the answer has
	unwatch func() bool   // of the request's context
	wrote   atomic.Bool   // perhaps a part of the request
	failed  bool          // Conn.Write; of the sender until sent is closed
	err     error         // of sending; valid when sent is closed
	sent    chan struct{} // closed when sending ended
}

// sentTimeout is how long the sender of a request may need to end after its answer
// has ended. It may wait for a body that the server does not need.
const sentTimeout = 50 * time.Millisecond

// answerReaders have the buffers of answers. An open answer has one as long as it
// lasts, so they are small.
var answerReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 1<<10) }}

var requestWriters = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, 4<<10) }}

var (
	errHeaderLong = fmt.Errorf("the header of the answer has more than %d bytes", answerHeaderMost)
	errUnasked    = errors.New("the server switched to a protocol that the request did not ask for")
)

// Read reads for the answer. A header has a limit.
func (c *http1Conn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errHeaderLong
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	return n, err
}

func (c *http1Conn) Write(b []byte) (int, error) {
	before := c.wrote.Swap(true)
	n, err := c.Conn.Write(b)
	if err != nil {
		c.failed = true
		c.wrote.Store(before || n > 0)
	}
	return n, err
}

// exchange sends a request and reads the header of the answer. After an error the
// connection is closed.
func (c *http1Conn) exchange(r *http.Request) (*http.Response, error) {
	c.in = answerReaders.Get().(*bufio.Reader)
	c.in.Reset(c)
	c.left, c.started, c.sent = answerHeaderMost, false, make(chan struct{})
	c.wrote.Store(false)
	c.unwatch = context.AfterFunc(r.Context(), func() { _ = c.Close() })
	// An answer may begin before the request is sent. Without a body a goroutine is
	// needed as well: the stack that headers are written on ends with it.
	go c.send(r)
	res, err := c.answer(r)
	if err != nil {
		return nil, c.fail(r.Context(), err)
	}
	reusable := !res.Close && !r.Close && res.StatusCode >= 200
	switch {
	case res.StatusCode == http.StatusSwitchingProtocols:
		res.Body = &http1Upgraded{c.Conn, c.in}
	case res.Body == http.NoBody:
		c.release(reusable)
	default:
		res.Body = &http1Body{c: c, ctx: r.Context(), src: res.Body, reusable: reusable}
	}
	return res, nil
}

// send sends a request.
func (c *http1Conn) send(r *http.Request) {
	out := requestWriters.Get().(*bufio.Writer)
	out.Reset(c)
	err := r.Write(out)
	if err == nil {
		err = out.Flush()
	}
	out.Reset(nil)
	requestWriters.Put(out)
	c.err = err
	partial := err != nil && !c.failed
	close(c.sent)
	if partial {
		// The server must not take a part for the whole. If in contrast the server
		// stopped reading, its answer may be under way.
		_ = c.Close()
	}
}

// answer reads the header of the answer, and passes informational answers on.
func (c *http1Conn) answer(r *http.Request) (*http.Response, error) {
	if _, err := c.in.Peek(1); err != nil {
		return nil, fmt.Errorf("the server ended the connection before it answered: %w", err)
	}
	c.started = true
	trace := httptrace.ContextClientTrace(r.Context())
	for {
		res, err := http.ReadResponse(c.in, r)
		switch {
		case err != nil && c.left <= 0:
			return nil, errHeaderLong
		case err != nil:
			return nil, err
		}
		if res.StatusCode == http.StatusSwitchingProtocols && !asked(r, res) {
			return nil, errUnasked
		}
		if res.StatusCode < 100 || res.StatusCode > 199 || res.StatusCode == http.StatusSwitchingProtocols {
			c.left = math.MaxInt64
			return res, nil
		}
		if trace != nil && trace.Got1xxResponse != nil {
			if err := trace.Got1xxResponse(res.StatusCode, textproto.MIMEHeader(res.Header)); err != nil {
				return nil, err
			}
		}
	}
}

// asked reports whether a request asked for the protocol that its answer switches to.
// [httputil.ReverseProxy] takes two missing names for the same protocol, and what
// follows would not be inspected.
func asked(r *http.Request, res *http.Response) bool {
	to := r.Header.Get("Upgrade")
	return to != "" && strings.EqualFold(to, res.Header.Get("Upgrade"))
}

// fail closes the connection, and returns the reason behind an error of reading.
func (c *http1Conn) fail(ctx context.Context, err error) error {
	c.unwatch()
	_ = c.Close()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case <-c.sent:
		if c.err != nil && !c.failed {
			return c.err
		}
	default:
	}
	return err
}

// release ends the answer. The connection is used again if that is possible.
func (c *http1Conn) release(reusable bool) {
	reusable = reusable && c.in.Buffered() == 0
	c.in.Reset(nil)
	answerReaders.Put(c.in)
	c.in = nil
	select {
	case <-c.sent:
		reusable = reusable && c.err == nil
	case <-time.After(sentTimeout):
		reusable = false
	}
	if c.unwatch() && reusable {
		c.of.put(c)
	} else {
		_ = c.Close()
	}
}

// repeatable reports whether a request that failed may be sent on another
// connection: the server cannot have got it, or getting it twice changes nothing.
func (c *http1Conn) repeatable(r *http.Request) bool {
	if !c.reused || c.started || r.Context().Err() != nil || r.Body != nil && r.GetBody == nil {
		return false
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	return !c.wrote.Load() || r.Header.Get("Idempotency-Key") != "" || r.Header.Get("X-Idempotency-Key") != ""
}

// http1Body is the body of an answer.
type http1Body struct {
	c        *http1Conn
	ctx      context.Context
	src      io.Reader
	reusable bool  // the connection, after the body
	err      error // the end
}

func (b *http1Body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.src.Read(p)
	switch {
	case errors.Is(err, io.EOF):
		b.c.release(b.reusable)
	case err != nil:
		err = b.c.fail(b.ctx, err)
	}
	b.err = err
	return n, err
}

// Close closes the connection if the answer was not read to its end.
func (b *http1Body) Close() error {
	if b.err == nil {
		b.err = http.ErrBodyReadAfterClose
		_ = b.c.fail(b.ctx, b.err)
	}
	return nil
}

// http1Upgraded is a connection that speaks another protocol from here on.
type http1Upgraded struct {
	net.Conn
	in *bufio.Reader
}

func (u *http1Upgraded) Read(b []byte) (int, error) {
	if n := u.in.Buffered(); n > 0 {
		return u.in.Read(b[:min(n, len(b))])
	}
	return u.Conn.Read(b)
}

// CloseWrite ends what goes to the server.
func (u *http1Upgraded) CloseWrite() error { return endWrite(u.Conn) }
