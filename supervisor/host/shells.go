package host

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"agentsh/internal/channel"
	"agentsh/internal/shellsocket"
	"agentsh/internal/shim"
	"agentsh/internal/wire"
	"agentsh/supervisor"
	"agentsh/supervisor/audit"
)

// requestLimit is the time that a shell has for its request.
const requestLimit = time.Minute

// shells starts commands in the session for clients that do without the Go runtime: shells of
// a shared session, and 'agentsh exec --session'.
type shells struct {
	daemon    *daemon
	key       [shellsocket.KeySize]byte
	installed shim.Installed
}

// listenShells makes the socket of shells and its key. The key says that a client can read
// the session's directory, as the keys of the other socket do.
func (d *daemon) listenShells(ctx context.Context) (*shells, net.Listener, error) {
	s := &shells{daemon: d}
	_, _ = rand.Read(s.key[:]) // it never fails
	dir := filepath.Dir(d.socket)
	if err := os.WriteFile(filepath.Join(dir, shellsKey), s.key[:], 0o600); err != nil {
		return nil, nil, err
	}
	l, err := channel.ListenPackets(ctx, filepath.Join(dir, shellsSocket))
	return s, l, err
}

// connection serves one shell.
func (s *shells) connection(ctx context.Context, conn net.Conn) {
	log := s.daemon.session.Config().Log
	peer, is := conn.(*net.UnixConn)
	if _, err := channel.CheckCaller(conn); err != nil || !is {
		log.Warn("connection of a shell refused", "reason", err)
		_ = conn.Close()
		return
	}
	c := &shell{conn: shellsocket.NewConn(peer), shells: s, gone: make(chan struct{}), ended: make(chan wire.OutputEnd, 1)}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	defer stop()
	defer func() { _ = c.conn.Close() }()
	if err := c.serve(ctx); err != nil && ctx.Err() == nil {
		log.Debug("a shell was not started here", "reason", err)
	}
}

// shell is one client.
type shell struct {
	conn    *shellsocket.Conn
	shells  *shells
	gone    chan struct{}
	ended   chan wire.OutputEnd
	control chan wire.Control

	mu      sync.Mutex
	input   *os.File // the supervisor's end of the command's standard input; nil: none yet
	outputs [2]*os.File
}

// serve answers one request. An error means that no command was begun.
func (c *shell) serve(ctx context.Context) error {
	h := c.shells.daemon.handler
	one := Running{Name: c.shells.daemon.name(), PID: os.Getpid()}
	if err := c.conn.Hello(said(one.Gone().Said(""))); err != nil {
		return err
	}
	request, err := c.conn.ReadRequest(requestLimit)
	if err == nil {
		err = c.shells.accept(request)
	}
	if err != nil {
		return errors.Join(err, c.conn.Refuse())
	}
	before := h.session.Refusals()
	size, err := audit.Size(h.boot.AuditPath)
	if err != nil {
		return errors.Join(err, c.conn.Refuse())
	}
	clients := c.shells.daemon.server.Clients
	clients.Count(1)
	defer clients.Count(-1)
	ctx, cancel := context.WithCancel(ctx)
	c.control = make(chan wire.Control, 8)
	var reading sync.WaitGroup
	defer reading.Wait()
	defer func() { _ = c.conn.Close() }() // ends the reader
	defer cancel()
	reading.Go(func() { defer cancel(); defer close(c.gone); c.read(ctx) })
	end := c.run(ctx, request)
	end.Audit = h.boot.AuditPath
	if h.session.Refusals() != before {
		err = audit.ReadSince(h.boot.AuditPath, size, end.Refused.Note)
	}
	if err != nil && end.Said == "" {
		end.Code, end.Said = 125, said(fmt.Sprintf("audit log %s: %v", h.boot.AuditPath, err), "")
	}
	_ = c.conn.End(end) // without a reader nobody is told
	return nil
}

// accept refuses a client that has not the session's key, and a shell that is not a shim of
// this machine as the disk has it now.
func (s *shells) accept(r *shellsocket.Request) error {
	if subtle.ConstantTimeCompare(r.Key[:], s.key[:]) != 1 {
		return errors.New("it has the key of another session")
	}
	if s.daemon.ending.over.Load() {
		return errEnded
	}
	if r.Path == "" && len(r.Env) == 0 {
		return nil // of 'agentsh exec --session'
	}
	if s.daemon.name() != shim.SessionName {
		return errors.New("the shells of this machine do not share this session")
	}
	return s.installed.Shares(r.Manifest, r.Program, r.Path)
}

// run runs the command of a request.
func (c *shell) run(ctx context.Context, r *shellsocket.Request) shellsocket.End {
	h := c.shells.daemon.handler
	workspace := h.session.Config().Cwd
	start := shim.StartIn(r.Here, workspace)
	notes := ""
	if advisory := h.session.Missing().Advisory(); advisory != "" {
		notes = "agentsh: note: " + advisory + "\n"
	}
	request := wire.ExecRequest{ID: rand.Text(), Argv: r.Argv, Program: r.Path, Cwd: start, Stdin: true}
	if r.Path != "" {
		notes = shim.NoteDirectory(r.Here, workspace, start) + notes
		request.Env = shim.Environment(firsts(r.Env), workspace)
	}
	if notes != "" {
		_ = c.conn.Note(notes) // of a client that has gone the reader hears
	}
	streams := wire.Streams{Control: c.control, Pipes: c, Exited: func(e wire.Exit) { _ = c.conn.Exited(e.Kind == wire.ExitDeadline) }}
	exit, _, err := drained{h}.Exec(ctx, request, streams)
	if err != nil && exit.Cause == "" {
		exit = wire.Exit{Kind: wire.ExitLost, Message: err.Error()}
		if errors.Is(err, audit.ErrNotWritten) {
			exit.Hint = supervisor.AuditHint
		}
	}
	return shellsocket.End{Code: exit.ExitCode(), Said: said(exit.Said(r.Argv[0]))}
}

// firsts is an environment without the variables that an earlier one hides, as os.Environ
// returns it.
func firsts(environment []string) []string {
	known := make(map[string]bool, len(environment))
	return slices.DeleteFunc(environment, func(e string) bool {
		name, _, is := strings.Cut(e, "=")
		again := known[name]
		known[name] = known[name] || is
		return again && is || e == ""
	})
}

// said is how a command line prints a message and its advice.
func said(message, hint string) string {
	if message != "" {
		message = "agentsh: " + message + "\n"
	}
	if hint != "" {
		message += "agentsh: hint: " + hint + "\n"
	}
	return message
}

// read carries out what the client asks for until it goes.
func (c *shell) read(ctx context.Context) {
	for {
		m, err := c.conn.Next()
		if err != nil {
			return
		}
		switch {
		case m.Ping:
			err = c.conn.Pong()
		case m.InputEnd:
			c.close(0)
		case m.Closed != 0:
			c.close(m.Closed)
		case m.Delivered != nil:
			select {
			case c.ended <- *m.Delivered:
			default: // it says so once
			}
		default:
			select {
			case c.control <- wire.Control{Kill: m.Kill, Signal: m.Signal}:
			case <-ctx.Done():
			}
		}
		if err != nil {
			return
		}
	}
}

// close closes an end of a pipe.
func (c *shell) close(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.input
	if n > 0 {
		f = c.outputs[n-1]
	}
	if f != nil {
		_ = f.Close() // the command may have ended
	}
}

// Take sends the client its ends of the pipes.
func (c *shell) Take(stdin, stdout, stderr *os.File) {
	c.mu.Lock()
	c.input, c.outputs = stdin, [2]*os.File{stdout, stderr}
	c.mu.Unlock()
	if err := c.conn.Pipes(stdin, stdout, stderr); err != nil {
		_ = c.conn.Close() // the reader ends the command
	}
}

// Delivered waits until the client has the output.
func (c *shell) Delivered() *wire.OutputEnd {
	select {
	case n := <-c.ended:
		return &n
	case <-c.gone:
		return nil
	}
}
