package channel

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"agentsh/internal/wire"
)

// Handler implements the operations of a server. Its methods are called concurrently.
type Handler interface {
	// Exec runs one command to its end, which includes the end of every process that
	// the command left. Exec returns soon after ctx is done, with nothing left
	// running. An error means that the result of the command is unknown. If Exec does
	// not call s.Exited, the server sends the result that Exec returns.
	Exec(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error)
	// Files returns the files of the sandbox.
	Files() Files
	// Changes returns the change record of the governed directories.
	Changes(ctx context.Context) ([]wire.Change, error)
	// Events yields audit events until ctx is done, the log ends or an error. With
	// [wire.EventRequest.SoFar] it ends after the last event that there is.
	Events(ctx context.Context, req wire.EventRequest) iter.Seq2[wire.Event, error]
}

// Recoverer is a [Handler] whose session has a trash and can be frozen.
type Recoverer interface {
	Recover(ctx context.Context, r wire.RecoveryRequest) error
	// Freeze freezes the files and writes a byte to out. It unfreezes them when in
	// ends, or after the list of changes that in reports. No deadline ends it: a
	// client that is stopped may go on.
	Freeze(ctx context.Context, in io.Reader, out io.Writer) error
}

// ServerConfig is the configuration of a server.
type ServerConfig struct {
	HostKey       []byte // own OpenSSH private key
	AuthorizedKey []byte // the only client's public key
	Hello         wire.Hello
	Handler       Handler
	Operator      Operator // nil: requests about the whole session are refused
	Clients       *Clients // shared by the servers of one supervisor; nil: for this connection only
	Keepalive     Keepalive
}

// Clients records, across connections, the first client instance and the request ids
// that were used. The zero value is ready. It is safe for concurrent use.
type Clients struct {
	// Shared accepts every client instance that has the key, in sequence or at the
	// same time. Without Shared only the first instance is accepted.
	Shared bool

	mu       sync.Mutex
	instance string
	used     map[string]bool
	order    []string // of used, oldest first
	running  int      // commands whose end was not reported
	reported chan struct{}
}

// Reported returns a channel that is closed when the end of every command requested
// until now has been reported. It may be called once.
func (c *Clients) Reported() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reported = make(chan struct{})
	if c.running == 0 {
		close(c.reported)
	}
	return c.reported
}

// Count changes the number of commands whose end was not reported.
func (c *Clients) Count(by int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running += by; c.running == 0 && by < 0 && c.reported != nil {
		select {
		case <-c.reported:
		default:
			close(c.reported)
		}
	}
}

// maxUsed is the number of request ids that are stored.
const maxUsed = 16384

// pin accepts the first instance that sends a hello, and then only that one.
func (c *Clients) pin(instance string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if instance == "" {
		return &wire.Error{Code: wire.CodeRefused, Message: "the client names no instance"}
	}
	if c.instance == "" {
		c.instance = instance
	}
	if c.instance != instance && !c.Shared {
		return &wire.Error{Code: wire.CodeRefused, Message: "another client instance holds this sandbox"}
	}
	return nil
}

// claim records a request id. It returns an error if the id was used before.
func (c *Clients) claim(id string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id == "" || len(id) > 128 {
		return fmt.Errorf("request id of %d bytes, 1 to 128 are taken", len(id))
	}
	if c.used[id] {
		return fmt.Errorf("request id %s was used before: a command cannot be attached to, use a new id", id)
	}
	if len(c.order) == maxUsed {
		delete(c.used, c.order[0])
		c.order = c.order[1:]
	}
	if c.used == nil {
		c.used = map[string]bool{}
	}
	c.used[id], c.order = true, append(c.order, id)
	return nil
}

// Server is the supervisor's end of one connection.
type Server struct {
	conn    net.Conn
	cfg     ServerConfig
	slots   chan struct{}
	relay   *relay // not nil: channels are forwarded and the handler is not used
	plain   bool   // the client says no hello
	freezes freezes
	gone    chan struct{} // closed when the client has gone
	wg      sync.WaitGroup
}

// NewServer makes the server of one connection. Serve closes conn.
func NewServer(conn net.Conn, cfg ServerConfig) *Server {
	if cfg.Clients == nil {
		cfg.Clients = &Clients{}
	}
	cfg.Hello.Version, cfg.Keepalive = wire.Current, cfg.Keepalive.over(conn)
	return &Server{conn: conn, cfg: cfg, slots: make(chan struct{}, maxOpen), gone: make(chan struct{})}
}

// Serve authenticates the client and serves it until it disconnects, stops answering,
// or ctx is done. It returns nil if the client disconnected. When Serve returns, every
// command and every goroutine of the connection has ended.
func (s *Server) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer func() { _ = s.conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	if err := s.conn.SetDeadline(time.Now().Add(s.cfg.Keepalive.handshake())); err != nil {
		return fmt.Errorf("channel deadline: %w", err)
	}
	cfg, err := s.sshConfig()
	if err != nil {
		return fmt.Errorf("channel: %w", err)
	}
	conn, chans, reqs, err := ssh.NewServerConn(s.conn, cfg)
	if err != nil {
		return fmt.Errorf("channel handshake: %w", err)
	}
	if s.plain = s.admitsPlain() && string(conn.ClientVersion()) != clientVersion; s.plain {
		s.slots = make(chan struct{}, maxPlain)
	}
	if err := s.hello(chans, reqs); err != nil {
		_ = conn.Close()
		s.wg.Wait()
		return fmt.Errorf("channel hello: %w", err)
	}
	_ = s.conn.SetDeadline(time.Time{}) // fails if the connection has ended; then chans is closed
	dead := make(chan error, 1)
	if s.plain {
		dead <- nil // a person may stop it, and the kernel reports its end
	} else {
		s.wg.Go(func() { dead <- keepalive(ctx, conn, s.cfg.Keepalive, s.freezes.any) })
	}
	s.wg.Go(func() { s.globals(reqs) })
	for c := range chans {
		s.open(ctx, c)
	}
	close(s.gone)
	ended := ctx.Err()
	cancel() // ends the commands of a disconnected client
	s.wg.Wait()
	if err := <-dead; err != nil {
		return fmt.Errorf("channel: %w", err)
	}
	if err := conn.Wait(); ended == nil && !disconnected(err) {
		return fmt.Errorf("channel: %w", err)
	}
	return ended
}

// disconnected reports whether an error means that the peer has disconnected, perhaps
// with unread data or within a packet.
func disconnected(err error) bool {
	for _, end := range []error{nil, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.ECONNRESET, syscall.EPIPE} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// sshConfig accepts exactly one client key.
func (s *Server) sshConfig() (*ssh.ServerConfig, error) {
	signer, client, err := parseKeys(s.cfg.HostKey, s.cfg.AuthorizedKey)
	if err != nil {
		return nil, err
	}
	want := client.Marshal()
	cfg := &ssh.ServerConfig{
		Config:        sshConfig(),
		MaxAuthTries:  2, // the query whether the key is known, and the signature
		ServerVersion: "SSH-2.0-agentsh",
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if subtle.ConstantTimeCompare(key.Marshal(), want) != 1 {
				return nil, errors.New("unknown client key")
			}
			return nil, nil
		},
	}
	cfg.AddHostKey(signer)
	return cfg, nil
}

// hello answers the client's first request, or refuses it and ends the connection. No
// channel may be opened before.
func (s *Server) hello(chans <-chan ssh.NewChannel, reqs <-chan *ssh.Request) error {
	if s.plain {
		return nil
	}
	var req *ssh.Request
	var ok bool
	select {
	case req, ok = <-reqs:
	case c, more := <-chans:
		if more {
			_ = c.Reject(ssh.Prohibited, "hello comes first")
		}
	}
	if !ok {
		s.wg.Go(func() { ssh.DiscardRequests(reqs) })
		return errors.New("the client did not say hello")
	}
	err := s.checkHello(req)
	reply := helloReply{Hello: s.cfg.Hello, Error: asWireError(err)}
	data, mErr := json.Marshal(reply)
	if err = errors.Join(err, mErr, req.Reply(err == nil, data)); err != nil {
		// The client closes the connection after it has read the refusal. Until then,
		// and at most until the deadline, nothing else is answered.
		s.wg.Go(func() { ssh.DiscardRequests(reqs) })
		for c := range chans {
			_ = c.Reject(ssh.Prohibited, "refused")
		}
		return err
	}
	return nil
}

// helloReply answers a hello. In a refusal Hello still contains the version.
type helloReply struct {
	Hello wire.Hello  `json:"hello"`
	Error *wire.Error `json:"error,omitempty"`
}

func (s *Server) checkHello(req *ssh.Request) error {
	if req.Type != reqHello || !req.WantReply {
		return &wire.Error{Code: wire.CodeRefused, Message: "hello comes first"}
	}
	var h wire.Hello
	if err := json.Unmarshal(req.Payload, &h); err != nil {
		return &wire.Error{Code: wire.CodeRefused, Message: "hello is not readable: " + clip(err.Error())}
	}
	if err := sameMajor(h.Version); err != nil {
		return err
	}
	return s.cfg.Clients.pin(h.Instance)
}

// globals replies to the global requests of the client.
func (s *Server) globals(reqs <-chan *ssh.Request) {
	if s.relay == nil || s.plain {
		answer(reqs)
		return
	}
	for r := range reqs {
		if ok := s.relay.global(r); r.WantReply {
			_ = r.Reply(ok, nil) // if the connection is dead, reqs is closed
		}
	}
}

// answer replies to global requests: the keepalive with yes, the rest with no.
func answer(reqs <-chan *ssh.Request) {
	for r := range reqs {
		if r.WantReply {
			_ = r.Reply(r.Type == reqKeepalive, nil) // if the connection is dead, reqs is closed
		}
	}
}

// service serves one kind of channel.
type service func(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request, extra []byte)

// service returns how a kind of channel is served; nil: it is not.
func (s *Server) service(kind string) func(context.Context, ssh.NewChannel) {
	if s.plain {
		switch kind {
		case typePlain:
			return accepting(s.servePlain)
		case typeTCP, typeUnix:
			return s.serveForward
		}
		return nil
	}
	serve := map[string]service{
		typeExec: s.serveExec, typeFiles: s.serveFiles, typeEvents: s.serveEvents, typeSession: s.serveSession,
	}[kind]
	switch {
	case serve == nil:
		return nil
	case s.relay != nil:
		return accepting(func(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request, extra []byte) {
			s.relay.serve(ctx, kind, ch, reqs, extra)
		})
	}
	return accepting(serve)
}

// accepting accepts a channel for a service, and closes it afterwards.
func accepting(serve service) func(context.Context, ssh.NewChannel) {
	return func(ctx context.Context, c ssh.NewChannel) {
		ch, reqs, err := c.Accept()
		if err != nil {
			return // the connection ended
		}
		defer func() { _ = ch.Close() }() // fails only when the client closed it
		serve(ctx, ch, reqs, c.ExtraData())
	}
}

// open starts the goroutine of a new channel. It must not block, because the goroutine
// that reads the connection calls it.
func (s *Server) open(ctx context.Context, c ssh.NewChannel) {
	serve := s.service(c.ChannelType())
	if serve == nil {
		s.wg.Go(func() { _ = c.Reject(ssh.UnknownChannelType, "no channel type "+clip(c.ChannelType())) })
		return
	}
	select {
	case s.slots <- struct{}{}:
	default:
		s.wg.Go(func() { _ = c.Reject(ssh.ResourceShortage, fmt.Sprintf("%d channels are open", cap(s.slots))) })
		return
	}
	s.wg.Go(func() {
		defer func() { <-s.slots }()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		serve(ctx, c)
	})
}

// watch discards the requests of a channel that uses none. It calls cancel when the
// client closes the channel.
func watch(cancel func(), reqs <-chan *ssh.Request) {
	answer(reqs)
	cancel()
}

// serveEvents streams audit events until their end, or until the client closes the
// channel.
func (s *Server) serveEvents(ctx context.Context, ch ssh.Channel, reqs <-chan *ssh.Request, extra []byte) {
	ctx, cancel := context.WithCancel(ctx)
	s.wg.Go(func() { watch(cancel, reqs) })
	defer cancel()
	var req wire.EventRequest
	err := readFirst(extra, ch, &req)
	if err == nil {
		for e, failed := range s.cfg.Handler.Events(ctx, req) {
			if err = failed; err != nil {
				break
			}
			if err = writeFrame(ch, e); err != nil {
				break
			}
		}
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		notify(ch, reqError, asWireError(err))
	default:
		notify(ch, reqEnd, struct{}{})
	}
}

// notify sends one typed message beside the data of a channel. Errors are ignored: a
// closed channel has no receiver.
func notify(ch ssh.Channel, name string, msg any) {
	data, err := json.Marshal(msg)
	if err == nil {
		_, _ = ch.SendRequest(name, false, data)
	}
}
