package egress

import (
	"errors"
	"io"
	"net"
	"slices"
)

// finder finds placeholders in a stream, also where one reaches over two pieces.
type finder struct {
	secrets *secrets
	tail    []byte // end of the earlier pieces, shorter than a placeholder
}

// find searches the next piece.
func (f *finder) find(piece []byte) *secret {
	keep := f.secrets.longest - 1
	border := slices.Concat(f.tail, piece[:min(len(piece), keep)])
	if s := f.secrets.in(border); s != nil {
		return s
	}
	if s := f.secrets.in(piece); s != nil {
		return s
	}
	if len(piece) >= keep {
		f.tail = append(f.tail[:0], piece[len(piece)-keep:]...)
		return nil
	}
	f.tail = append(f.tail[:0], border[max(len(border)-keep, 0):]...)
	return nil
}

// watchedBody is the body of a request. A placeholder in it passes unchanged: it
// has no value elsewhere, and an agent program repeats the output of commands in
// each of its later requests. It is recorded once for each request.
type watchedBody struct {
	io.ReadCloser
	x      *exchange
	finder finder
	found  bool // and recorded
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.found {
		return n, err
	}
	if s := b.finder.find(p[:n]); s != nil {
		b.found = true
		b.x.f.recordPlaceholder(s)
	}
	return n, err
}

// recordPlaceholder records that a placeholder passed unchanged.
func (f *flow) recordPlaceholder(s *secret) {
	e := f.event("request")
	e.Net.Sent, e.Net.Received, e.Net.Millis = 0, 0, 0
	e.Message = "the placeholder of the credential " + s.Name +
		" stands in the body of a request to " + f.judged().shown() + ", and was not swapped"
	if err := f.client.p.opts.Emit(e); err != nil {
		f.client.p.opts.Log.Error("a placeholder in a body could not be recorded", "error", err)
	}
}

// scan copies what is neither TLS nor HTTP until it finds a placeholder.
func (c *client) scan(f *flow, up net.Conn, in io.Reader) *refusal {
	m := f.meter(&f.sent)
	look := finder{secrets: c.p.judge.secrets()}
	buf := pumpBuffers.Get().(*[]byte)
	defer pumpBuffers.Put(buf)
	for {
		n, err := in.Read(*buf)
		if s := look.find((*buf)[:n]); s != nil {
			return s.misplaced("what is sent to " + f.judged().shown())
		}
		m.wait(n)
		written, werr := up.Write((*buf)[:n])
		m.add(written)
		switch {
		case werr == nil && err == nil:
		case errors.Is(err, io.EOF) && werr == nil:
			closeWrite(up)
			return nil
		default:
			_ = c.conn.Close()
			_ = up.Close()
			return nil
		}
	}
}
