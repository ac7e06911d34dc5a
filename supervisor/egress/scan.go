package egress

import (
	"errors"
	"io"
	"net"
	"slices"
)

// finder finds placeholders in a stream, across the borders of its pieces.
type finder struct {
	secrets *secrets
	tail    []byte // of what came before, shorter than a placeholder
}

// find looks at the next piece.
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

// watchedBody is the body of a request. A placeholder in it passes as it is: it
// is worth nothing elsewhere, and an agent program sends what a command printed
// with each of its later requests. It is recorded once for each request.
type watchedBody struct {
	io.ReadCloser
	x      *exchange
	finder finder
	told   bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.told {
		return n, err
	}
	if s := b.finder.find(p[:n]); s != nil {
		b.told = true
		b.x.f.unswapped(s)
	}
	return n, err
}

// unswapped records that a placeholder passed as it is.
func (f *flow) unswapped(s *secret) {
	e := f.event("request")
	e.Net.Sent, e.Net.Received, e.Net.Millis = 0, 0, 0
	e.Message = "the placeholder of the credential " + s.Name + " stands in the body of a request to " + f.shown() + ", and was not swapped"
	if err := f.client.p.opts.Emit(e); err != nil {
		f.client.p.opts.Log.Error("a placeholder in a body could not be recorded", "error", err)
	}
}

// scanned copies what is neither TLS nor HTTP, up to a placeholder.
func (f *flow) scanned(up net.Conn, in io.Reader) *refusal {
	p := f.client.p
	look := finder{secrets: &p.secrets}
	buf := pumpBuffers.Get().(*[]byte)
	defer pumpBuffers.Put(buf)
	for {
		n, err := in.Read(*buf)
		if s := look.find((*buf)[:n]); s != nil {
			return s.misplaced("what is sent to " + f.shown())
		}
		p.bucket.take(f.client.ctx, n)
		m, werr := up.Write((*buf)[:n])
		f.sent.Add(int64(m))
		switch {
		case werr == nil && err == nil:
		case errors.Is(err, io.EOF) && werr == nil:
			closeWrite(up)
			return nil
		default:
			_ = f.client.conn.Close()
			_ = up.Close()
			return nil
		}
	}
}
