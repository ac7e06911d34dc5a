package egress

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"agentsh/policy"
)

// opening is what a client asks for: a destination, and how to answer. conn is the
// client's connection with what was read of it already.
type opening struct {
	to     destination
	conn   net.Conn
	accept func() error // tells the client to continue
	refuse func(*refusal)
}

// serveProxy serves one connection to the proxy: SOCKS, CONNECT or HTTP.
func (c *client) serveProxy() {
	c.limitTime(c.conn)
	in := bufio.NewReaderSize(c.conn, 4<<10)
	first, err := in.Peek(1)
	if err != nil {
		return
	}
	o := opening{conn: c.conn}
	var refused *refusal
	what := "CONNECT"
	if first[0] == socksVersion {
		c.from.via, what = viaSOCKS, "SOCKS"
		if refused, err = readSOCKS(in, &o); err != nil {
			return
		}
	} else {
		word, err := in.Peek(len("CONNECT "))
		if err != nil {
			return
		}
		if !bytes.Equal(bytes.ToUpper(word), []byte("CONNECT ")) {
			c.from.via = viaHTTP
			clearReadTimeout(c.conn)
			c.serveHTTP(nil, unread(c.conn, in))
			return
		}
		c.from.via = viaConnect
		refused = readConnect(in, &o, c.p.opts.Limits.HeaderBytes, c.p.judge.secrets())
	}
	if refused != nil {
		_ = c.p.refuse(c.from, what, refused)
		o.refuse(refused)
		return
	}
	clearReadTimeout(c.conn)
	o.conn = unread(c.conn, in)
	c.serve(o)
}

// unread is a connection with what was read ahead of it.
func unread(conn net.Conn, in *bufio.Reader) net.Conn {
	ahead, _ := in.Peek(in.Buffered()) // it is there
	return &replayed{Conn: conn, seen: bytes.Clone(ahead)}
}

// readConnect reads one CONNECT request, RFC 9110 section 9.3.6. The header has
// at most limit bytes. It takes no more than the header from in.
func readConnect(in *bufio.Reader, o *opening, limit int, all *secrets) *refusal {
	conn := o.conn
	o.refuse = func(r *refusal) { r.write(conn) }
	o.accept = func() error {
		_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\n")
		return err
	}
	head, refused := readHeader(in, limit)
	if refused != nil {
		return refused
	}
	if s := all.in(head.Bytes()); s != nil {
		return s.misplaced("a CONNECT request")
	}
	r, err := http.ReadRequest(bufio.NewReader(head))
	if err != nil {
		return against("request", "the CONNECT request is malformed", "")
	}
	if r.Method != http.MethodConnect {
		return malformed("the method of the request is not a token in capital letters", "write the method in capital letters")
	}
	if o.to, err = parseDestination(r.RequestURI, ""); err != nil {
		return against("request", "CONNECT: "+err.Error(), "name the destination as host:port")
	}
	return nil
}

// readHeader reads the header of an HTTP request, line by line.
func readHeader(in *bufio.Reader, limit int) (*bytes.Buffer, *refusal) {
	var head bytes.Buffer
	for {
		line, err := in.ReadSlice('\n')
		head.Write(line)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, failed("read the request: %v", err)
		case len(bytes.TrimRight(line, "\r\n")) == 0 && head.Len() > len(line):
			return &head, nil
		}
		if head.Len() > limit {
			return nil, against("request", "the header of the request is longer than "+strconv.Itoa(limit)+" bytes", "")
		}
	}
}

// parseDestination reads host:port. Without a port in the text it is port, if that
// is not empty.
func parseDestination(text, port string) (destination, error) {
	hostText, portText, err := net.SplitHostPort(text)
	if err != nil && port != "" {
		hostText, portText = text, port
		if inner, ok := strings.CutPrefix(text, "["); ok {
			hostText = strings.TrimSuffix(inner, "]")
		}
	} else if err != nil {
		return destination{}, errors.New("the destination is not host:port")
	}
	host, err := policy.ParseHost(hostText)
	if err != nil {
		return destination{}, err
	}
	n, err := strconv.ParseUint(portText, 10, 16)
	if err != nil || n == 0 {
		return destination{}, errors.New("the port is not a number from 1 to 65535")
	}
	return destination{host, uint16(n)}, nil
}

// SOCKS version 5, RFC 1928.
const (
	socksVersion   = 5
	socksNoAuth    = 0
	socksNoMethod  = 0xff
	socksConnect   = 1
	socksIPv4      = 1
	socksName      = 3
	socksIPv6      = 4
	socksOK        = 0
	socksDenied    = 2
	socksFailed    = 5
	socksNoCommand = 7
	socksNoAddress = 8
)

// errDropped says that a client is gone, or uses SOCKS in a way that gets no
// answer.
var errDropped = errors.New("no SOCKS request")

// readSOCKS reads the greeting and the request of SOCKS 5. Only CONNECT is
// served: UDP does not leave the session. After errDropped the client gets no
// answer.
func readSOCKS(in *bufio.Reader, o *opening) (*refusal, error) {
	conn := o.conn
	answer := func(code byte) error {
		_, err := conn.Write([]byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0})
		return err
	}
	refuseWith := func(code byte) {
		o.refuse = func(r *refusal) {
			if r.failure {
				code = socksFailed
			}
			_ = answer(code) // the client may be gone
		}
	}
	refuseWith(socksDenied)
	o.accept = func() error { return answer(socksOK) }
	if err := greetSOCKS(in, conn); err != nil {
		return nil, err
	}
	var request [4]byte
	if _, err := io.ReadFull(in, request[:]); err != nil || request[0] != socksVersion {
		return nil, errDropped
	}
	to, err := readSOCKSAddress(in, request[3])
	o.to = to
	switch {
	case errors.Is(err, errSOCKSAddress):
		refuseWith(socksNoAddress)
		return against("request", "SOCKS: "+err.Error(), ""), nil
	case err != nil && errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return nil, errDropped
	case err != nil:
		return against("request", "SOCKS: "+err.Error(), ""), nil
	case request[1] != socksConnect:
		refuseWith(socksNoCommand)
		return against("request", fmt.Sprintf("SOCKS command %d to %s: only connections of TCP leave the session", request[1], to), ""), nil
	}
	return nil, nil
}

// greetSOCKS agrees on no authentication.
func greetSOCKS(in *bufio.Reader, conn net.Conn) error {
	var head [2]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return errDropped
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(in, methods); err != nil {
		return errDropped
	}
	if !bytes.Contains(methods, []byte{socksNoAuth}) {
		_, _ = conn.Write([]byte{socksVersion, socksNoMethod})
		return errDropped
	}
	if _, err := conn.Write([]byte{socksVersion, socksNoAuth}); err != nil {
		return errDropped
	}
	return nil
}

var errSOCKSAddress = errors.New("the address is of no known kind")

func readSOCKSAddress(in *bufio.Reader, kind byte) (destination, error) {
	size := 0
	switch kind {
	case socksIPv4:
		size = 4
	case socksIPv6:
		size = 16
	case socksName:
		n, err := in.ReadByte()
		if err != nil {
			return destination{}, err
		}
		size = int(n)
	default:
		return destination{}, errSOCKSAddress
	}
	raw := make([]byte, size+2)
	if _, err := io.ReadFull(in, raw); err != nil {
		return destination{}, err
	}
	to := destination{port: uint16(raw[size])<<8 | uint16(raw[size+1])}
	if kind != socksName {
		a, _ := netip.AddrFromSlice(raw[:size]) // 4 or 16 bytes
		to.host = policy.HostOf(a)
		return to, nil
	}
	var err error
	to.host, err = policy.ParseHost(string(raw[:size]))
	return to, err
}
