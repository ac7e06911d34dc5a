package socket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/mdlayher/vsock"
	"golang.org/x/sys/unix"

	"agentsh/internal/channel"
	"agentsh/internal/listen"
)

// Bounds of a listener.
const (
	handshakeWait = 10 * time.Second // for a peer to show that it has the key
	maxHandshakes = 64               // at a time; the oldest one is ended for a further one
	maxStreams    = 256              // at a time
	maxHeader     = 16 << 10         // bytes of the request for a WebSocket
	endWait       = 5 * time.Second  // for a peer to close its end
)

// Listener accepts streams of controllers.
type Listener struct {
	listener net.Listener
	key      *Key // nil: callers are checked by their user

	streams     sync.WaitGroup
	handshaking strangers

	mu   sync.Mutex
	open int
}

// strangers are connections of peers that are not authenticated. Safe for concurrent use.
type strangers struct {
	mu    sync.Mutex
	conns []net.Conn // the oldest first; at most maxHandshakes
}

// add adds a connection. It closes the oldest one of too many.
func (s *strangers) add(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) == maxHandshakes {
		_ = s.conns[0].Close() // what waits for it ends with an error
		s.conns = slices.Delete(s.conns, 0, 1)
	}
	s.conns = append(s.conns, conn)
}

// remove removes a connection. It returns false if that was the oldest of too many.
func (s *strangers) remove(conn net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.conns, conn)
	if i >= 0 {
		s.conns = slices.Delete(s.conns, i, i+1)
	}
	return i >= 0
}

// Listen listens on an address: unix:PATH, tcp:HOST:PORT, vsock:PORT or ws:HOST:PORT.
// Without a key only unix is accepted. Only processes of this user, or of root, can use a Unix socket.
func Listen(ctx context.Context, address string, key *Key) (*Listener, error) {
	scheme, rest, found := strings.Cut(address, ":")
	if !found || rest == "" {
		return nil, fmt.Errorf("%q is no address: write unix:PATH, tcp:HOST:PORT, vsock:PORT or ws:HOST:PORT", address)
	}
	if other, as := strings.CutPrefix(rest, "//"); as { // as agentctl has it
		if scheme != "unix" {
			return nil, fmt.Errorf("%q is an address of agentctl: write %s:%s", address, scheme, other)
		}
		rest = other
	}
	if scheme == "unix" && !filepath.IsAbs(rest) {
		return nil, fmt.Errorf("%q: the path of the socket is not absolute: write unix:PATH", address)
	}
	if key == nil && scheme != "unix" {
		return nil, fmt.Errorf("%s: every process that reaches this address could use it: name a key with --key; %s", address, makeKey)
	}
	l, err := listenOn(ctx, scheme, rest)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return &Listener{listener: l, key: key}, nil
}

func listenOn(ctx context.Context, scheme, rest string) (net.Listener, error) {
	var lc net.ListenConfig
	switch scheme {
	case "unix":
		return channel.Listen(ctx, "unix://"+rest)
	case "tcp":
		return lc.Listen(ctx, "tcp", rest)
	case "vsock":
		port, err := strconv.ParseUint(rest, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is no port of AF_VSOCK", rest)
		}
		l, err := vsock.ListenContextID(unix.VMADDR_CID_ANY, uint32(port), nil)
		if err != nil {
			return nil, err
		}
		return vsockListener{l}, nil
	case "serial": // of a virtual machine, see serve --init
		return listenSerial(rest)
	case "ws":
		l, err := lc.Listen(ctx, "tcp", rest)
		if err != nil {
			return nil, err
		}
		return newWebListener(l), nil
	}
	return nil, errors.New("unknown kind of address: write unix:PATH, tcp:HOST:PORT, vsock:PORT or ws:HOST:PORT")
}

// Addr is where the listener listens.
func (l *Listener) Addr() net.Addr { return l.listener.Addr() }

// Serve calls handle for each controller that is authenticated, until ctx ends. It closes
// the listener and all streams, and waits for handle. handle need not close its stream.
func (l *Listener) Serve(ctx context.Context, handle func(context.Context, *Conn)) error {
	stop := context.AfterFunc(ctx, func() { _ = l.listener.Close() })
	defer stop()
	defer l.streams.Wait()
	accepting := &listen.Sparing{Listener: l.listener}
	for {
		conn, err := accepting.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return errors.Join(err, l.listener.Close())
		}
		l.handshaking.add(conn)
		l.streams.Go(func() { l.serve(ctx, conn, handle) })
	}
}

// ready ends the handshake of a connection, and reports whether there may be one more stream.
func (l *Listener) ready(conn net.Conn, authenticated bool) bool {
	known := l.handshaking.remove(conn)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !known || !authenticated || l.open == maxStreams {
		return false
	}
	l.open++
	return true
}

func (l *Listener) serve(ctx context.Context, conn net.Conn, handle func(context.Context, *Conn)) {
	defer func() { _ = conn.Close() }() // it may be closed
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	secured, err := l.authenticate(ctx, conn)
	if !l.ready(conn, err == nil) {
		return
	}
	defer func() {
		l.mu.Lock()
		l.open--
		l.mu.Unlock()
	}()
	c := newConn(secured, nil)
	defer func() { _ = c.Close() }() // it may be closed
	handle(ctx, c)
	_ = c.End(endWait) // the peer may have gone
}

func (l *Listener) authenticate(ctx context.Context, conn net.Conn) (net.Conn, error) {
	if l.key == nil {
		_, err := channel.CheckCaller(conn)
		return conn, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeWait)
	defer cancel()
	return l.key.server(ctx, conn)
}

// vsockListener gives its connections large buffers. Kernels reset a connection that has
// many small packets in a small buffer.
type vsockListener struct{ *vsock.Listener }

func (l vsockListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		widen(conn)
	}
	return conn, err
}

// webListener accepts WebSockets.
type webListener struct {
	net.Listener
	asking strangers // that have not asked for a WebSocket yet
	server *http.Server
	conns  chan net.Conn
	closed chan struct{}
	failed error // of the server; set before closed is closed
}

func newWebListener(l net.Listener) *webListener {
	w := &webListener{Listener: l, conns: make(chan net.Conn), closed: make(chan struct{})}
	w.server = &http.Server{Handler: w, ReadHeaderTimeout: handshakeWait, IdleTimeout: handshakeWait, MaxHeaderBytes: maxHeader}
	w.server.ConnState = w.state
	go func() { // ends with the listener
		w.failed = w.server.Serve(&bounded{Listener: l, room: make(chan struct{}, 2*maxStreams)})
		close(w.closed)
	}()
	return w
}

// state follows a connection until it is a WebSocket or closed.
func (w *webListener) state(conn net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		w.asking.add(conn)
	case http.StateHijacked, http.StateClosed:
		w.asking.remove(conn)
	}
}

// ServeHTTP takes the connection of a request over.
func (w *webListener) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(out, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // the client was told
	}
	conn := &webConn{Conn: websocket.NetConn(context.Background(), c, websocket.MessageBinary), c: c, closed: make(chan struct{})}
	select {
	case w.conns <- conn:
		<-conn.closed // a request's connection ends with its handler
	case <-w.closed:
		_ = conn.Close()
	}
}

func (w *webListener) Accept() (net.Conn, error) {
	select {
	case conn := <-w.conns:
		return conn, nil
	case <-w.closed:
		return nil, w.failed
	}
}

func (w *webListener) Close() error { return w.server.Close() }

// webConn is a WebSocket as a stream. Closing it does not wait for the peer.
type webConn struct {
	net.Conn
	c      *websocket.Conn
	closed chan struct{}
	once   sync.Once
}

func (c *webConn) Close() error {
	err := net.ErrClosed
	c.once.Do(func() {
		err = c.c.CloseNow()
		close(c.closed)
	})
	return err
}

// bounded is a listener with a bounded number of open connections.
type bounded struct {
	net.Listener
	room chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	b.room <- struct{}{}
	conn, err := b.Listener.Accept()
	if err != nil {
		<-b.room
		return nil, err
	}
	return &boundedConn{Conn: conn, leave: sync.OnceFunc(func() { <-b.room })}, nil
}

type boundedConn struct {
	net.Conn
	leave func()
}

func (c *boundedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
