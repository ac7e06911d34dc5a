package channel

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// ClientConfig is the configuration of a client.
type ClientConfig struct {
	Key       []byte // own OpenSSH private key
	HostKey   []byte // the server's public key; no other is accepted
	Build     string // sent to the server
	Instance  string // names this client across its connections; empty: a random one
	Server    string // required instance of the server; empty: any server with the host key
	Keepalive Keepalive
}

// Client is the controller's end of one connection. It is safe for concurrent
// use.
type Client struct {
	conn    ssh.Conn
	hello   wire.Hello
	cancel  func()
	wg      sync.WaitGroup
	freezes freezes
	relayed chan struct{} // one for each channel that serves other clients
	// answerWait is the time that the peer has to answer: see [answerWait].
	answerWait time.Duration
	gaveUp     atomic.Pointer[error] // reason why this side closed the connection

	done chan struct{} // closed when the connection ended
	err  error         // reason; set before done is closed
}

// NewClient authenticates both sides over conn and exchanges hellos. It closes conn if
// it fails; otherwise [Client.Close] closes it. ctx applies to the handshake only.
// NewClient refuses a server of another major version, and an instance other than the
// configured one.
func NewClient(ctx context.Context, conn net.Conn, cfg ClientConfig) (*Client, error) {
	c, err := newClient(ctx, conn, cfg)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return c, nil
}

func newClient(ctx context.Context, conn net.Conn, cfg ClientConfig) (*Client, error) {
	signer, host, err := parseKeys(cfg.Key, cfg.HostKey)
	if err != nil {
		return nil, fmt.Errorf("channel: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	cfg.Keepalive = cfg.Keepalive.over(conn)
	if err := conn.SetDeadline(time.Now().Add(cfg.Keepalive.handshake())); err != nil {
		return nil, fmt.Errorf("channel deadline: %w", err)
	}
	sc, chans, reqs, err := ssh.NewClientConn(newCollectingConn(conn), "agentsh", &ssh.ClientConfig{
		Config:            sshConfig(),
		User:              "agentsh",
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback:   ssh.FixedHostKey(host),
		HostKeyAlgorithms: []string{ssh.KeyAlgoED25519},
		ClientVersion:     clientVersion,
	})
	if err != nil {
		return nil, fmt.Errorf("channel handshake: %w", errors.Join(err, ctx.Err()))
	}
	c := &Client{
		conn:       sc,
		done:       make(chan struct{}),
		answerWait: max(answerWait, cfg.Keepalive.Dead),
		relayed:    make(chan struct{}, maxRelayed),
	}
	c.wg.Go(func() { answer(reqs) })
	c.wg.Go(func() {
		for n := range chans {
			_ = n.Reject(ssh.Prohibited, "the server opens nothing")
		}
	})
	if c.hello, err = sendHello(sc, cfg); err != nil {
		_ = sc.Close()
		c.wg.Wait()
		return nil, fmt.Errorf("channel hello: %w", errors.Join(err, ctx.Err()))
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("channel deadline: %w", err)
	}
	live, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c.cancel = cancel
	dead := make(chan error, 1)
	c.wg.Go(func() { dead <- keepalive(live, sc, cfg.Keepalive, c.freezes.any) })
	c.wg.Go(func() {
		err := sc.Wait()
		cancel()
		if broken := c.gaveUp.Load(); broken != nil {
			err = *broken
		}
		c.err = errors.Join(<-dead, err)
		close(c.done)
	})
	return c, nil
}

// sendHello exchanges hellos and checks that of the server.
func sendHello(conn ssh.Conn, cfg ClientConfig) (wire.Hello, error) {
	if cfg.Instance == "" {
		cfg.Instance = rand.Text()
	}
	data, err := json.Marshal(wire.Hello{Version: wire.Current, Build: cfg.Build, Instance: cfg.Instance})
	if err != nil {
		return wire.Hello{}, err
	}
	_, answer, err := conn.SendRequest(reqHello, true, data)
	if err != nil {
		return wire.Hello{}, err
	}
	var reply helloReply
	if err := json.Unmarshal(answer, &reply); err != nil {
		return wire.Hello{}, fmt.Errorf("answer is not readable: %w", err)
	}
	if err := sameMajor(reply.Hello.Version); err != nil {
		return wire.Hello{}, err
	}
	if reply.Error != nil {
		return wire.Hello{}, fmt.Errorf("refused by the supervisor: %w", reply.Error)
	}
	if cfg.Server != "" && reply.Hello.Instance != cfg.Server {
		return wire.Hello{}, &wire.Error{Code: wire.CodeRefused, Message: fmt.Sprintf(
			"the supervisor is instance %.64s, this sandbox had %.64s: it was restarted or replaced", reply.Hello.Instance, cfg.Server)}
	}
	return reply.Hello, nil
}

// Hello returns the hello of the server.
func (c *Client) Hello() wire.Hello { return c.hello }

// Done is closed when the connection has ended. Err then returns the reason.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns the reason for the end of the connection. It returns nil until Done is
// closed.
func (c *Client) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Close ends the connection and every command on it. It waits for the goroutines of
// the connection. Closing twice is no error.
func (c *Client) Close() error {
	c.cancel()
	_ = c.conn.Close() // the connection may have ended already
	c.wg.Wait()
	return nil
}

// endWait is how long the end of a connection takes after that of its channels.
const endWait = time.Second

// ended reports whether the connection has ended, after one of its channels has.
func (c *Client) ended() bool {
	limit := time.NewTimer(endWait)
	defer limit.Stop()
	select {
	case <-c.done:
		return true
	case <-limit.C:
		return false
	}
}

// closedByPeer reports whether a connection has ended as it does with the process of the peer: err is why it ended. Otherwise the
// connection failed: its bytes were changed, or no stream came back.
func closedByPeer(err error) bool {
	ends := []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE}
	return err == nil || slices.ContainsFunc(ends, func(end error) bool { return errors.Is(err, end) })
}

// cause adds the reason for the end of the connection to an error that resulted from
// it.
func (c *Client) cause(err error) error {
	select {
	case <-c.done:
		return fmt.Errorf("the channel has ended: %w", errors.Join(err, c.err))
	default:
		return err
	}
}

// Events calls fn with each audit event of a request. It returns when ctx is done, fn
// returns an error or the stream ends. A stream that ends with the connection is an
// error: events may be missing.
func (c *Client) Events(ctx context.Context, req wire.EventRequest, fn func(wire.Event) error) error {
	var said error // the error that the server sent
	whole := false // the server sent everything; complete, as said is, when the link has ended
	l, err := c.open(ctx, typeEvents, req, func(r *ssh.Request) {
		var e wire.Error
		switch {
		case r.Type == reqEnd:
			whole = true
		case r.Type == reqError && json.Unmarshal(r.Payload, &e) == nil:
			said = &e
		}
		if r.WantReply {
			_ = r.Reply(false, nil)
		}
	})
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	defer l.close()
	defer l.closeAfter(ctx)()
	read := func(e *wire.Event) error { return readFrame(l, e) }
	if req.SoFar {
		read = func(e *wire.Event) error { return l.readWithin(fileWait, e) }
	}
	for {
		var e wire.Event
		if err = read(&e); err != nil {
			break
		}
		if err = fn(e); err != nil {
			break
		}
	}
	if ctx.Err() == nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("events: %w", c.cause(err))
	}
	if err := l.waitEnd(ctx); err != nil {
		return err
	}
	switch {
	case said != nil:
		return fmt.Errorf("events: %w", said)
	case whole:
		return nil
	}
	return fmt.Errorf("events: %w", c.cause(io.ErrUnexpectedEOF))
}

// readWithin reads a frame that must arrive within a time.
func (l *link) readWithin(limit time.Duration, v any) error {
	var late atomic.Bool
	timer := time.AfterFunc(limit, func() {
		late.Store(true)
		l.close()
	})
	err := readFrame(l, v)
	if timer.Stop(); err != nil && late.Load() {
		return fmt.Errorf("no answer within %s: %w", limit, ErrDead)
	}
	return err
}
