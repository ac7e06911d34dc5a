package channel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// answerWait is the time that the peer has to answer the opening of a channel, a
// request on it or its closing. It does not depend on what a command or a file
// operation does: the peer's SSH library answers. A peer that exceeds it is broken, and
// the connection is closed. It is longer where [Keepalive.Dead] is.
const answerWait = 60 * time.Second

var errCut = errors.New("the channel was closed")

// link is an open channel. Package ssh ends a read, a write or a request only when the
// peer answers. An operation of a link also ends when this side cuts the link.
type link struct {
	ch     ssh.Channel
	client *Client
	out    *pump
	err    *pump
	turn   chan struct{} // full while a request waits for its answer
	cut    chan struct{} // closed by close
	ended  chan struct{} // closed when the peer has closed the channel and every request was handled
	once   sync.Once
}

// open opens a channel with its first message. handle is called with each request of
// the peer; nil ignores them.
func (c *Client) open(ctx context.Context, kind string, first any, handle func(*ssh.Request)) (*link, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r, ok := first.(interface{ IsText() bool }); ok && !r.IsText() && c.hello.Version.Minor < 2 {
		return nil, &wire.Error{Code: wire.CodeUnsupported, Message: "an argument, variable or directory of the command is no UTF-8: " +
			"the agentsh of this sandbox is too old for that, install the newest"}
	}
	extra, frame, err := firstMessage(first)
	if err != nil {
		return nil, err
	}
	type opened struct {
		l   *link
		err error
	}
	done := make(chan opened, 1)
	go func() { // ends with the peer's answer or with the connection
		limit := time.AfterFunc(c.answerWait, func() { c.giveUp("the opening of a channel") })
		defer limit.Stop()
		ch, reqs, err := c.conn.OpenChannel(kind, extra)
		if err != nil {
			done <- opened{nil, c.cause(err)}
			return
		}
		l := newLink(c, ch, reqs, handle)
		if frame != nil {
			err = writeRawFrame(ch, frame)
		}
		done <- opened{l, err}
	}()
	select {
	case o := <-done:
		if o.err == nil {
			return o.l, nil
		}
		if o.l != nil {
			o.l.close()
		}
		return nil, c.cause(o.err)
	case <-ctx.Done():
		go func() { // ends like the one above
			if o := <-done; o.l != nil {
				o.l.close()
			}
		}()
		return nil, ctx.Err()
	}
}

func newLink(c *Client, ch ssh.Channel, reqs <-chan *ssh.Request, handle func(*ssh.Request)) *link {
	l := &link{ch: ch, client: c, turn: make(chan struct{}, 1), cut: make(chan struct{}), ended: make(chan struct{})}
	l.out, l.err = &pump{r: ch, cut: l.cut}, &pump{r: ch.Stderr(), cut: l.cut}
	go func() { // ends with the channel or with the connection
		defer close(l.ended)
		for r := range reqs {
			if handle != nil {
				handle(r)
			} else if r.WantReply {
				_ = r.Reply(false, nil)
			}
		}
	}()
	return l
}

// Read reads the data of the channel.
func (l *link) Read(p []byte) (int, error) { return l.out.Read(p) }

// request sends a request and waits for its answer. If the peer has closed the channel,
// the error is io.EOF.
func (l *link) request(name string, payload []byte) (bool, error) {
	type answer struct {
		ok  bool
		err error
	}
	done := make(chan answer, 1)
	select {
	case l.turn <- struct{}{}:
	case <-l.ended:
		return false, io.EOF
	case <-l.cut:
		return false, io.EOF
	}
	go func() { // ends with the peer's answer or with the channel
		limit := time.AfterFunc(l.client.answerWait, func() { l.client.giveUp("a request") })
		defer limit.Stop()
		ok, err := l.ch.SendRequest(name, true, payload)
		<-l.turn
		done <- answer{ok, err}
	}()
	select {
	case a := <-done:
		return a.ok, a.err
	case <-l.ended:
		return false, io.EOF
	case <-l.cut:
		return false, io.EOF
	}
}

// close cuts the link and closes the channel. It does not wait for the peer.
func (l *link) close() {
	l.once.Do(func() {
		close(l.cut)
		go func() { // ends with the peer's answer or with the connection
			limit := time.AfterFunc(l.client.answerWait, func() { l.client.giveUp("the closing of a channel") })
			defer limit.Stop()
			if err := l.ch.Close(); err == nil {
				<-l.ended
			}
		}()
	})
}

// waitEnd waits until the peer has closed the channel, after the end of its data.
func (l *link) waitEnd(ctx context.Context) error {
	limit := time.AfterFunc(l.client.answerWait, func() { l.client.giveUp("the end of a stream") })
	defer limit.Stop()
	select {
	case <-l.ended:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// closeAfter closes the link when ctx ends. The caller calls stop.
func (l *link) closeAfter(ctx context.Context) (stop func() bool) {
	return context.AfterFunc(ctx, l.close)
}

// pump reads a stream of a channel in a goroutine, so that a Read can end before the
// peer sends anything.
type pump struct {
	r    io.Reader
	cut  <-chan struct{}
	want chan struct{} // nil until the first Read
	got  chan pumped
	rest []byte
	err  error
}

type pumped struct {
	data []byte
	err  error
}

// Read reads the stream. Only one Read may run at a time.
func (p *pump) Read(b []byte) (int, error) {
	if len(p.rest) == 0 {
		if p.err == nil {
			p.fill()
		}
		if len(p.rest) == 0 {
			return 0, p.err
		}
	}
	n := copy(b, p.rest)
	p.rest = p.rest[n:]
	return n, nil
}

// fill waits for the next data, an error or the cut.
func (p *pump) fill() {
	select {
	case <-p.cut:
		p.err = errCut
		return
	default:
	}
	if p.want == nil {
		p.want, p.got = make(chan struct{}, 1), make(chan pumped, 1)
		go p.run()
	}
	p.want <- struct{}{} // never blocks: the previous one was answered
	select {
	case m := <-p.got:
		p.rest, p.err = m.data, m.err
	case <-p.cut:
		p.err = errCut
	}
}

// run reads once for each value of want. It ends with the stream or with the cut.
func (p *pump) run() {
	buf := buffers.Get().(*[copyBuffer]byte)
	for {
		select {
		case <-p.want:
		case <-p.cut: // the last data may not be read yet, so the buffer is not used again
			return
		}
		n, err := p.r.Read(buf[:])
		if err != nil && n == 0 {
			buffers.Put(buf)
		}
		p.got <- pumped{buf[:n], err}
		if err != nil {
			return
		}
	}
}

// giveUp closes the connection to a peer that does not answer.
func (c *Client) giveUp(what string) {
	err := fmt.Errorf("%s was not answered within %s: %w", what, c.answerWait, ErrDead)
	c.gaveUp.CompareAndSwap(nil, &err)
	_ = c.conn.Close() // ends every wait
}
