package egress

import (
	"errors"
	"io"
	"net"
	"slices"
	"sync"
)

// errMisplaced ends a request whose body has a placeholder.
var errMisplaced = errors.New("a placeholder of a credential stands in the body of the request")

// bodyRefusal is a refusal that came while a body was being sent.
type bodyRefusal struct {
	mu      sync.Mutex
	refused *refusal
}

func (b *bodyRefusal) get() *refusal {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused
}

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

// scannedBody is the body of a request that ends where a placeholder begins.
type scannedBody struct {
	io.ReadCloser
	x       *exchange
	secrets *secrets
	finder  finder
}

func (b *scannedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.finder.secrets = b.secrets
	s := b.finder.find(p[:n])
	if s == nil {
		return n, err
	}
	c := b.x.h.c
	refused := s.misplaced("the body of a request to " + b.x.f.shown())
	b.x.refused.mu.Lock()
	first := b.x.refused.refused == nil
	b.x.refused.refused = refused
	b.x.refused.mu.Unlock()
	if first {
		_ = c.refuse(b.x.f.to.String(), refused)
	}
	return 0, errMisplaced
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
