// Package attach lets operators connect to the sandbox of a running run. The
// controller of the run listens on a socket in the run's directory and relays
// each connection over its own connection to the supervisor, which accepts no
// other client. Commands are subject to the policy of the run. Each action is
// written to a file before it starts.
package attach

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentsh/controller/record"
	"agentsh/internal/channel"
	"agentsh/internal/listen"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
)

// Files in the directory of a run.
const (
	socketFile  = "socket"
	keysFile    = "keys.json"
	actionsFile = "operator.jsonl" // one [Action] a line
)

// maxActions bounds the file of actions, in bytes. When it is full, further
// actions are refused.
const maxActions = 4 << 20

// Action is an action of an operator in a sandbox.
type Action struct {
	Time time.Time `json:"time"`
	By   string    `json:"by"`
	What string    `json:"what"` // unprintable characters are escaped
}

// Relayer is a sandbox that accepts further clients over its own connection.
type Relayer interface {
	Relay(ctx context.Context, conn net.Conn, cfg channel.RelayConfig) error
}

// keys are the keys of a client. Every user who can read the file can connect.
type keys struct {
	Key     []byte `json:"key"`      // private key of the client
	HostKey []byte `json:"host_key"` // public key of the server
}

// Server accepts operators' connections to one sandbox.
type Server struct {
	path      string
	dir       *os.File // opened with O_PATH, so that the socket's name is short
	to        Relayer
	stopRun   func(by string, force bool)
	hostKey   []byte // private key of the server
	clientKey []byte // public key of clients
	listener  net.Listener
	cancel    context.CancelFunc
	wg        sync.WaitGroup
	ending    atomic.Bool // somebody has asked for the end of the sandbox

	mu      sync.Mutex
	actions *os.File
	size    int64 // bytes of actions
	clients int   // that are connected
	left    time.Time
}

// Listen listens in the directory of a run until [Server.Stop]. stopRun is
// called when an operator asks for the end of the run, with the operator's name;
// force skips taking results out. The caller calls [Server.Close].
func Listen(ctx context.Context, dir string, to Relayer, stopRun func(by string, force bool)) (*Server, error) {
	s := &Server{path: dir, to: to, stopRun: stopRun, left: time.Now()}
	if err := s.listen(ctx); err != nil {
		_ = os.Remove(filepath.Join(dir, keysFile)) // nobody listens; it may not exist
		return nil, fmt.Errorf("listen for operators: %w", err)
	}
	return s, nil
}

func (s *Server) listen(ctx context.Context) (err error) {
	var k keys
	if s.hostKey, k.HostKey, err = channel.NewKeyPair(); err != nil {
		return err
	}
	if k.Key, s.clientKey, err = channel.NewKeyPair(); err != nil {
		return err
	}
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	if err := writeSSH(s.path, k); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(s.path, keysFile), data, 0o600); err != nil {
		return err
	}
	if s.actions, err = os.OpenFile(filepath.Join(s.path, actionsFile), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return err
	}
	var address string
	if s.dir, address, err = socketAddress(s.path); err != nil {
		return errors.Join(err, s.actions.Close())
	}
	if s.listener, err = channel.Listen(ctx, address); err != nil {
		return errors.Join(err, s.actions.Close(), s.dir.Close())
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.wg.Go(func() { s.serve(ctx) })
	return nil
}

// socketAddress is the address of the socket in a directory. It is valid while
// the returned file is open. The path of a state directory may be longer than a
// socket's path can be, see unix(7).
func socketAddress(dir string) (*os.File, string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, "", err
	}
	return f, fmt.Sprintf("unix:///proc/self/fd/%d/%s", f.Fd(), socketFile), nil
}

// serve accepts connections until the listener is closed, then waits until all
// connections have ended.
func (s *Server) serve(ctx context.Context) {
	var connections sync.WaitGroup
	defer connections.Wait()
	listener := &listen.Sparing{Listener: s.listener}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return // it was closed
		}
		peer, err := channel.CheckCaller(conn)
		if err != nil {
			_ = conn.Close()
			continue
		}
		by := "operator " + userName(peer.Uid)
		s.connected(1)
		connections.Go(func() {
			defer s.connected(-1)
			// The client receives the error of its connection.
			cfg := s.relay(by)
			cfg.Stop = func(force bool) {
				_ = s.record(by, ActionDelete) // for those whose commands end; the result of the run says it too
				s.ending.Store(true)
				s.stopRun(by, force)
			}
			_ = s.to.Relay(ctx, conn, cfg)
		})
	}
}

// relay configures the relay of an operator.
func (s *Server) relay(by string) channel.RelayConfig {
	return channel.RelayConfig{
		HostKey: s.hostKey, AuthorizedKey: s.clientKey, By: by, Dir: func() string { return record.Workdir(s.path) },
		Note: func(what string) error { return s.record(by, what) }, Ending: s.ending.Load,
	}
}

// connected counts the clients.
func (s *Server) connected(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients += n
	s.left = time.Now()
}

// Idle is how long no client has been connected; 0: one is, or the server is nil.
func (s *Server) Idle() time.Duration {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients > 0 {
		return 0
	}
	return time.Since(s.left)
}

// userName is the name of a user, or the number if the user has no name.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return text.Short(u.Username, 40)
	}
	return "uid " + id
}

// record records an action before it starts.
func (s *Server) record(by, what string) error {
	line, err := json.Marshal(Action{Time: time.Now().UTC(), By: by, What: what})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.size += int64(len(line)) + 1; s.size > maxActions {
		return errors.New("the list of operators' actions in this sandbox is full")
	}
	if _, err := s.actions.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("record the operator's action: %w", err)
	}
	return nil
}

// Stop closes all connections and accepts no more. It may be called on a nil
// server.
func (s *Server) Stop() {
	if s != nil {
		s.cancel()
		_ = s.listener.Close() // an error means that it is already closed
	}
}

// Close stops the server, waits for its connections, and removes the socket and
// the keys. Call it after the sandbox has ended. A second call does nothing. It
// may be called on a nil server.
func (s *Server) Close() error {
	if s == nil || s.dir == nil {
		return nil
	}
	s.Stop()
	s.wg.Wait()
	err := errors.Join(s.actions.Close(), s.dir.Close())
	s.dir = nil
	return errors.Join(err, Remove(s.path))
}

// Remove removes the socket and the keys of a run whose sandbox is gone. The
// actions stay.
func Remove(dir string) error {
	var errs []error
	entries, err := os.ReadDir(dir)
	errs = append(errs, err)
	for _, e := range entries { // a killed listener leaves the directory in which it creates its socket
		if e.IsDir() && strings.HasPrefix(e.Name(), ".") {
			errs = append(errs, statedir.RemoveTree(filepath.Join(dir, e.Name())))
		}
	}
	for _, name := range []string{socketFile, keysFile, identityFile, knownFile, hostKeyFile} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
