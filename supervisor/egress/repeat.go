package egress

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// repeatMost bounds the part of a request's body that is kept for a second
// attempt, in bytes.
const repeatMost = 64 << 10

// repeatable is the body of a request that can be sent again. A server may end an
// idle connection just when a request is sent on it, see [transports]. The bytes
// read so far are kept until the answer begins.
type repeatable struct {
	reading sync.Mutex // held to read live; locked before mu
	live    io.ReadCloser

	mu   sync.Mutex
	read int // of live
	kept []byte
	over bool  // more was read than can be kept, or the answer began
	err  error // the end of live
}

var errNotAgain = errors.New("the request cannot be sent again")

// makeRepeatable replaces the body of a request, if it has one.
func makeRepeatable(r *http.Request) *repeatable {
	if r.Body == nil || r.Body == http.NoBody {
		return nil
	}
	body := &repeatable{live: r.Body}
	r.Body = &repeated{of: body}
	r.GetBody = func() (io.ReadCloser, error) {
		body.mu.Lock()
		defer body.mu.Unlock()
		if body.over {
			return nil, errNotAgain
		}
		return &repeated{of: body}, nil
	}
	return body
}

// release drops the bytes that are kept.
func (b *repeatable) release() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.kept, b.over = nil, true
}

// repeated is one reader of a body. Only the last one reads further than the bytes
// that are kept. A reader whose connection failed may still read when the next one
// begins: the bytes that it gets are kept for the next.
type repeated struct {
	of *repeatable
	at int
}

func (r *repeated) Read(p []byte) (int, error) {
	b := r.of
	if n, err := r.again(p); n > 0 || err != nil {
		return n, err
	}
	b.reading.Lock()
	defer b.reading.Unlock()
	if n, err := r.again(p); n > 0 || err != nil { // another was reading
		return n, err
	}
	n, err := b.live.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err = err; r.at != b.read {
		b.err = errNotAgain
		return 0, b.err
	}
	b.read += n
	r.at += n
	switch {
	case b.over:
	case b.read > repeatMost:
		b.kept, b.over = nil, true
	default:
		b.kept = append(b.kept, p[:n]...)
	}
	return n, err
}

// again returns bytes that are kept.
func (r *repeated) again(p []byte) (int, error) {
	b := r.of
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.at < len(b.kept) {
		n := copy(p, b.kept[r.at:])
		r.at += n
		return n, nil
	}
	return 0, b.err
}

// Close ends the client's body only when the request is over, see
// httputil.ReverseProxy.
func (r *repeated) Close() error { return nil }
