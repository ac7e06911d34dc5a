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

// serveProxy tells SOCKS, CONNECT and plain HTTP apart.
func (c *client) serveProxy() {
	c.limitTime(c.conn)
	in := bufio.NewReaderSize(c.conn, 4<<10)
	first, err := in.Peek(1)
	if err != nil {
		return
	}
	if first[0] == socksVersion {
		c.serveSOCKS(in)
		return
	}
	word, err := in.Peek(len("CONNECT "))
	if err != nil {
		return
	}
	if !bytes.Equal(bytes.ToUpper(word), []byte("CONNECT ")) {
		c.via = viaHTTP
		noLimit(c.conn)
		c.handWeb(nil, c.rest(in))
		return
	}
	c.via = viaConnect
	c.serveConnect(in)
}

// rest is the connection with what was read ahead of it.
func (c *client) rest(in *bufio.Reader) net.Conn {
	ahead, _ := in.Peek(in.Buffered()) // it is there
	return &replayed{Conn: c.conn, seen: bytes.Clone(ahead)}
}

// serveConnect answers one CONNECT request.
func (c *client) serveConnect(in *bufio.Reader) {
	to, refused := c.readConnect(in)
	if refused != nil {
		_ = c.refuse("CONNECT", refused)
		refused.write(c.conn)
		return
	}
	noLimit(c.conn)
	f, refused := c.open(to)
	if refused == nil {
		refused = c.tunnel(f, c.rest(in), func() error {
			_, err := io.WriteString(c.conn, "HTTP/1.1 200 OK\r\n\r\n")
			return err
		})
	}
	if refused != nil {
		refused.write(c.conn)
	}
}

func (c *client) readConnect(in *bufio.Reader) (destination, *refusal) {
	// The request is read through a reader of its own that never takes more
	// than the header, a line at a time.
	var head bytes.Buffer
	for {
		line, err := in.ReadSlice('\n')
		head.Write(line)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return destination{}, failed("read the request: %v", err)
		case len(bytes.TrimRight(line, "\r\n")) == 0 && head.Len() > len(line):
			return c.parseConnect(&head)
		}
		if head.Len() > c.p.opts.Limits.HeaderBytes {
			return destination{}, against(
				"request",
				"the header of the request is longer than "+strconv.Itoa(c.p.opts.Limits.HeaderBytes)+" bytes",
				"",
			)
		}
	}
}

func (c *client) parseConnect(head *bytes.Buffer) (destination, *refusal) {
	if s := c.p.secrets.in(head.Bytes()); s != nil {
		return destination{}, s.misplaced("a CONNECT request")
	}
	r, err := http.ReadRequest(bufio.NewReader(head))
	if err != nil {
		return destination{}, against("request", "the CONNECT request is malformed", "")
	}
	if r.Method != http.MethodConnect {
		return destination{}, malformed("the method of the request is not a token in capital letters", "write the method in capital letters")
	}
	to, err := parseDestination(r.RequestURI, "")
	if err != nil {
		return destination{}, against("request", "CONNECT: "+err.Error(), "name the destination as host:port")
	}
	return to, nil
}

// parseDestination reads host:port; port is what it has when none is written.
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

// serveSOCKS answers one request of SOCKS 5. Only CONNECT is known: UDP does
// not leave the session.
func (c *client) serveSOCKS(in *bufio.Reader) {
	c.via = viaSOCKS
	answer := func(code byte) {
		_, _ = c.conn.Write([]byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0}) // the client may be gone
	}
	to, code, refused := c.readSOCKS(in)
	if refused != nil {
		_ = c.refuse("SOCKS", refused)
		answer(code)
		return
	}
	if code != socksOK {
		return
	}
	noLimit(c.conn)
	f, refused := c.open(to)
	if refused == nil {
		refused = c.tunnel(f, c.rest(in), func() error {
			_, err := c.conn.Write([]byte{socksVersion, socksOK, 0, socksIPv4, 0, 0, 0, 0, 0, 0})
			return err
		})
	}
	switch {
	case refused == nil:
	case refused.failure:
		answer(socksFailed)
	default:
		answer(socksDenied)
	}
}

// readSOCKS reads the greeting and the request. The code is socksOK for one to
// go on with.
func (c *client) readSOCKS(in *bufio.Reader) (destination, byte, *refusal) {
	gone := byte(socksFailed)
	var head [2]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return destination{}, gone, nil
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(in, methods); err != nil {
		return destination{}, gone, nil
	}
	if !bytes.Contains(methods, []byte{socksNoAuth}) {
		_, _ = c.conn.Write([]byte{socksVersion, socksNoMethod})
		return destination{}, gone, nil
	}
	if _, err := c.conn.Write([]byte{socksVersion, socksNoAuth}); err != nil {
		return destination{}, gone, nil
	}
	var request [4]byte
	if _, err := io.ReadFull(in, request[:]); err != nil || request[0] != socksVersion {
		return destination{}, gone, nil
	}
	to, err := readSOCKSAddress(in, request[3])
	switch {
	case errors.Is(err, errSOCKSAddress):
		return destination{}, socksNoAddress, against("request", "SOCKS: "+err.Error(), "")
	case err != nil && errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return destination{}, gone, nil
	case err != nil:
		return destination{}, socksDenied, against("request", "SOCKS: "+err.Error(), "")
	case request[1] != socksConnect:
		return destination{}, socksNoCommand, against(
			"request",
			fmt.Sprintf("SOCKS command %d to %s: only connections of TCP leave the session", request[1], to),
			"",
		)
	}
	return to, socksOK, nil
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
