package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/coder/websocket"
	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"agentsh/internal/channel"
)

// Address is where a place listens.
type Address struct {
	text   string
	scheme string
	path   string // of a Unix socket
	host   string // of TCP
	cid    uint32 // of AF_VSOCK
	port   uint32 // of AF_VSOCK
	header http.Header
}

// Schemes are the beginnings of addresses.
var Schemes = []string{"unix://", "tcp://", "vsock://", "vsock+unix://", "ws://", "wss://"}

// Forms are the forms of addresses.
const Forms = "unix://PATH, tcp://HOST:PORT, vsock://CID:PORT, vsock+unix://SOCKET:PORT, ws://HOST:PORT/PATH or wss://HOST/PATH"

// ParseAddress reads an address.
func ParseAddress(text string) (Address, error) {
	a := Address{text: text}
	wrong := func(why string) (Address, error) {
		return Address{}, fmt.Errorf("%.200q: %s: write %s", text, why, Forms)
	}
	scheme, rest, found := strings.Cut(text, "://")
	if !found {
		return wrong("no address of a place that listens")
	}
	a.scheme = scheme
	var err error
	switch scheme {
	case "unix":
		a.path = rest
	case "tcp":
		host, port, err := net.SplitHostPort(rest)
		if err != nil || host == "" || port == "" {
			return wrong("no host and port")
		}
		a.host = rest
	case "vsock", "vsock+unix":
		i := strings.LastIndexByte(rest, ':')
		if i < 0 {
			return wrong("no port")
		}
		if a.port, err = number(rest[i+1:]); err != nil {
			return wrong("no port")
		}
		if scheme == "vsock+unix" {
			a.path = rest[:i]
		} else if a.cid, err = number(rest[:i]); err != nil {
			return wrong("the CID is no number")
		}
	case "ws", "wss":
		u, err := url.Parse(text)
		if err != nil {
			return Address{}, errors.New("the address of the place is no URL: write " + Forms)
		}
		if u.Host == "" || u.Fragment != "" {
			return wrong("no host")
		}
		if u.User != nil { // they are not repeated
			return Address{}, errors.New("the address of the place has a user or a password: it is no place for credentials")
		}
	default:
		return wrong("unknown kind of address")
	}
	if strings.HasSuffix(scheme, "unix") && !filepath.IsAbs(a.path) {
		return wrong("the path of the socket is not absolute")
	}
	return a, nil
}

func number(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}

func (a Address) String() string { return a.text }

// WithHeader returns the address with further fields of the request that opens a WebSocket. They go to the
// host of the address alone.
func (a Address) WithHeader(h http.Header) Address {
	a.header = h
	return a
}

// NeedsKey reports whether a stream to the address needs a key. A Unix socket has the user
// of its listener instead.
func (a Address) NeedsKey() bool { return a.scheme != "unix" }

// Dial opens a stream. messages gets the messages of the place. ctx applies to the opening
// only.
func Dial(ctx context.Context, a Address, key *Key, messages io.Writer) (*Conn, error) {
	if key == nil && a.NeedsKey() {
		return nil, fmt.Errorf("%s: no key: the place has one, see agentsh serve --key", a)
	}
	ctx, cancel := context.WithTimeout(ctx, dialWait)
	defer cancel()
	conn, err := a.dial(ctx)
	if err != nil {
		return nil, err
	}
	secured := conn
	if key != nil {
		secured, err = key.client(ctx, conn)
	} else if _, err = channel.CheckCaller(conn); err != nil {
		err = fmt.Errorf("the process that listens: %w: use a key at both ends", err)
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return newConn(secured, messages), nil
}

// dialWait bounds the opening of a stream.
const dialWait = 30 * time.Second

func (a Address) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	switch a.scheme {
	case "unix":
		return d.DialContext(ctx, "unix", a.path)
	case "tcp":
		return d.DialContext(ctx, "tcp", a.host)
	case "vsock":
		conn, err := vsock.Dial(a.cid, a.port, nil) // the kernel has a limit of seconds, see vsock(7)
		if err != nil {
			return nil, err
		}
		widen(conn)
		return conn, nil
	case "vsock+unix":
		return a.dialHybrid(ctx)
	}
	o := &websocket.DialOptions{HTTPHeader: a.header}
	if a.header != nil {
		o.HTTPClient = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	c, res, err := websocket.Dial(ctx, a.text, o) //nolint:bodyclose // the library closes it
	if err != nil && res != nil && (res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden) {
		return nil, fmt.Errorf("the gateway before the place answers %d: it wants a token, which is a line of the file of --connect-key, "+
			"or that token has ended", res.StatusCode)
	}
	if err != nil {
		return nil, err
	}
	return &webConn{Conn: websocket.NetConn(context.Background(), c, websocket.MessageBinary), c: c, closed: make(chan struct{})}, nil
}

// Intervals between attempts to reach a virtual machine that does not listen yet.
const (
	firstRetry = 50 * time.Millisecond
	lastRetry  = time.Second
)

// errEarly is the error of a virtual machine that does not listen.
var errEarly = errors.New("nothing listens on the port in the virtual machine")

// dialHybrid connects to a port of a virtual machine through the socket of Firecracker,
// Cloud Hypervisor or vhost-device-vsock. It waits for a machine that does not listen yet.
func (a Address) dialHybrid(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		conn, err := d.DialContext(ctx, "unix", a.path)
		if err != nil {
			return nil, err
		}
		if err = connectPort(ctx, conn, a.port); err == nil {
			return conn, nil
		}
		_ = conn.Close() // the error is above
		if !errors.Is(err, errEarly) {
			return nil, err
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("port %d: %w", a.port, err)
		}
	}
}

// maxOK bounds the answer of a hybrid socket, in bytes.
const maxOK = 32

// connectPort asks a hybrid socket for a port. It reads no byte after the line of the answer,
// because the next one is of the place.
func connectPort(ctx context.Context, conn net.Conn, port uint32) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := fmt.Fprintf(conn, "CONNECT %d\n", port); err != nil {
		return early(err)
	}
	var line []byte
	for b := make([]byte, 1); len(line) < maxOK; line = append(line, b[0]) {
		if _, err := io.ReadFull(conn, b); err != nil {
			return errors.Join(early(err), ctx.Err())
		}
		if b[0] != '\n' {
			continue
		}
		rest, ok := strings.CutPrefix(string(line), "OK ")
		if _, err := number(rest); !ok || err != nil {
			break
		}
		return conn.SetDeadline(time.Time{})
	}
	return fmt.Errorf("the socket answers %.32q instead of OK and a port: is it the vsock socket of the virtual machine?", line)
}

func early(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return errEarly
	}
	return err
}

// vsockBuffer is the size of a buffer of an AF_VSOCK socket, in bytes.
const vsockBuffer = 8 << 20

// widen gives an AF_VSOCK socket a large buffer. See vsock(7).
func widen(conn net.Conn) {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { // the default size is right, too
		_ = unix.SetsockoptUint64(int(fd), unix.AF_VSOCK, unix.SO_VM_SOCKETS_BUFFER_MAX_SIZE, vsockBuffer)
		_ = unix.SetsockoptUint64(int(fd), unix.AF_VSOCK, unix.SO_VM_SOCKETS_BUFFER_SIZE, vsockBuffer)
	})
}
