package egress

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
	"time"
)

// Protocols of a client, by what it sends first.
const (
	isOpaque = iota
	isTLS
	isHTTP
)

// sniffed is what a client sent first.
type sniffed struct {
	kind   int
	seen   []byte
	server string // TLS: the server name; empty: none
	hidden bool   // TLS: the server name is encrypted
}

// conn is the client's connection from its first byte.
func (s sniffed) conn(in net.Conn) net.Conn { return &replayed{Conn: in, seen: s.seen} }

// replayed is a connection that begins with bytes read earlier.
type replayed struct {
	net.Conn
	seen []byte
}

func (r *replayed) Read(b []byte) (int, error) {
	if len(r.seen) == 0 {
		r.seen = nil
		return r.Conn.Read(b)
	}
	n := copy(b, r.seen)
	r.seen = r.seen[n:]
	return n, nil
}

// CloseWrite ends what goes to the client.
func (r *replayed) CloseWrite() error { return endWrite(r.Conn) }

// Bounds of what is read before it is understood, in bytes: of a TLS handshake,
// and of the first line of a request.
const (
	helloMost = 64 << 10
	lineMost  = 16 << 10
)

var errUnclear = errors.New("the connection begins with neither TLS nor HTTP nor anything else that can be told in time")

// sniff reads what a client sends first. The timeout begins with the first byte.
// An error together with bytes that were seen means that they cannot be judged.
func sniff(ctx context.Context, in net.Conn, timeout time.Duration) (sniffed, error) {
	defer clearReadTimeout(in)
	first := make([]byte, 2048)
	n, err := in.Read(first)
	if n == 0 {
		return sniffed{}, err
	}
	setReadTimeout(in, timeout)
	s := sniffed{seen: slices.Clip(first[:n])}
	if s.seen[0] == 0x16 { // a handshake record, RFC 8446 section 5.1
		return sniffTLS(ctx, s, in)
	}
	for {
		kind, clear := guess(s.seen)
		if clear {
			s.kind = kind
			return s, nil
		}
		if len(s.seen) >= lineMost {
			return s, errUnclear
		}
		n, err := in.Read(first)
		s.seen = append(s.seen, first[:n]...)
		if n > 0 {
			continue
		}
		if errors.Is(err, io.EOF) { // all there is: no request without its line
			return s, nil
		}
		return s, errUnclear
	}
}

// guess recognises HTTP by its first line. clear is false while more bytes are
// needed. Servers skip empty lines before a request.
func guess(seen []byte) (kind int, clear bool) {
	text := bytes.TrimLeft(seen, "\r\n")
	line, _, whole := bytes.Cut(text, []byte("\n"))
	for _, b := range line {
		if (b < 0x20 && b != '\t' && b != '\r') || b == 0x7f {
			return isOpaque, true
		}
	}
	if !whole {
		return isOpaque, false
	}
	if bytes.Contains(bytes.ToUpper(line), []byte("HTTP/")) {
		return isHTTP, true
	}
	return isOpaque, true
}

// errHello ends the handshake once the ClientHello is known.
var errHello = errors.New("the ClientHello is read")

// encryptedHello is the extension of Encrypted Client Hello, RFC 9849.
const encryptedHello = 0xfe0d

// sniffTLS reads a ClientHello with the TLS library and stops there.
func sniffTLS(ctx context.Context, s sniffed, in net.Conn) (sniffed, error) {
	tap := &listener{Conn: in, seen: s.seen, left: helloMost}
	tap.pending = tap.seen
	complete := false
	server := tls.Server(tap, &tls.Config{GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		complete = true
		s.server = hello.ServerName
		s.hidden = slices.Contains(hello.Extensions, encryptedHello)
		return nil, errHello
	}})
	err := server.HandshakeContext(ctx)
	s.seen, s.kind = tap.seen, isTLS
	if complete {
		return s, nil
	}
	return s, err
}

// listener reads a connection and keeps what it read. It discards what is written.
type listener struct {
	net.Conn
	seen, pending []byte
	left          int
}

func (l *listener) Read(b []byte) (int, error) {
	if len(l.pending) > 0 {
		n := copy(b, l.pending)
		l.pending = l.pending[n:]
		return n, nil
	}
	if l.left <= 0 {
		return 0, errUnclear
	}
	n, err := l.Conn.Read(b[:min(len(b), l.left)])
	l.seen = append(l.seen, b[:n]...)
	l.left -= n
	return n, err
}

func (l *listener) Write(b []byte) (int, error)      { return len(b), nil }
func (l *listener) SetDeadline(time.Time) error      { return nil }
func (l *listener) SetWriteDeadline(time.Time) error { return nil }
