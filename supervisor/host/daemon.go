package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"agentsh/internal/channel"
	"agentsh/internal/listen"
	"agentsh/internal/memfile"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
	"agentsh/supervisor/launch"
)

// Descriptors that a session's supervisor is started with.
const (
	donatedBoot  = "bootstrap" // describes the session
	donatedReady = "ready"     // gets one zero byte when the session is ready, else the reason why not
	donatedLock  = "lock"      // locked until the process ends
	donatedOwner = "owner"     // ends when the session shall end; without it the session goes on
)

// maxReason is the longest reason for a failed start that is passed on, in bytes.
const maxReason = 64 << 10

// startDaemon starts the supervisor of a reserved session and waits until the
// session is ready.
func startDaemon(ctx context.Context, v *reservation, d Described) error {
	data, err := json.Marshal(d.Boot)
	if err != nil {
		return err
	}
	description, err := MemoryFile(data)
	if err != nil {
		return err
	}
	defer description.Close()
	output, err := os.OpenFile(filepath.Join(v.dir, registryLog), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer output.Close()
	result, tell, err := os.Pipe()
	if err != nil {
		return err
	}
	defer result.Close()
	argv := []string{"agentsh", "serve", "--socket", filepath.Join(v.dir, registrySocket)}
	if d.Config != "" {
		argv = append(argv, "--config", d.Config)
	}
	files := []launch.Donation{{Name: donatedBoot, File: description}, {Name: donatedReady, File: tell}, {Name: donatedLock, File: v.lock}}
	if d.Owner != nil {
		files = append(files, launch.Donation{Name: donatedOwner, File: d.Owner})
	}
	server, err := launch.StartDetached(v.program, argv, output, files)
	tell.Close()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = result.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := ready(result); err != nil {
		server.Kill()
		return errors.Join(err, ctx.Err())
	}
	return nil
}

// ready waits for the report of a session's supervisor: one zero byte, or why the
// session did not open.
func ready(result io.Reader) error {
	said, err := io.ReadAll(io.LimitReader(result, maxReason))
	switch {
	case err != nil:
		return fmt.Errorf("its supervisor: %w", err)
	case len(said) == 0:
		return errors.New("its supervisor ended without a report")
	case said[0] != 0:
		return errors.New(string(said))
	}
	return nil
}

// MemoryFile is data in a file that has no name. It describes a session to its supervisor.
func MemoryFile(data []byte) (*os.File, error) {
	f, err := memfile.New(donatedBoot, 0)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return nil, errors.Join(fmt.Errorf("memory file: %w", err), f.Close())
	}
	return f, nil
}

// daemon is the supervisor of one session of a registry.
type daemon struct {
	*handler
	boot   wire.Bootstrap // before the session is open
	socket string
	ready  *os.File
	lock   *os.File
	owner  *os.File // nil: the session has none
	server channel.ServerConfig
}

// ServeSocket is the supervisor of one session that [Registry.Create] starts: it
// opens the session that its descriptors describe, answers on the socket until ctx
// ends, the session ends or its lifetime is over, and removes the session's
// directory.
func ServeSocket(ctx context.Context, socket string, o Options) error {
	d := &daemon{socket: socket}
	if err := d.receive(); err != nil {
		return err
	}
	err := d.serve(ctx, o)
	return errors.Join(err, d.leave(err), d.lock.Close())
}

// receive takes the descriptors this process was started with.
func (d *daemon) receive() error {
	files, err := launch.Donations()
	if err != nil {
		return err
	}
	description := files[donatedBoot]
	d.ready, d.lock, d.owner = files[donatedReady], files[donatedLock], files[donatedOwner]
	if description == nil || d.ready == nil || d.lock == nil {
		return errors.New("a descriptor is missing")
	}
	defer description.Close()
	d.boot, err = ReadBootstrap(io.NewSectionReader(description, 0, maxBootstrap+1))
	return err
}

// maxBootstrap bounds the description of a session, in bytes.
const maxBootstrap = 4 * wire.MaxMessage

// ReadBootstrap reads the description of a session to its end.
func ReadBootstrap(r io.Reader) (boot wire.Bootstrap, err error) {
	data, err := io.ReadAll(io.LimitReader(r, maxBootstrap+1))
	if err != nil {
		return boot, fmt.Errorf("bootstrap: %w", err)
	}
	if len(data) > maxBootstrap {
		return boot, fmt.Errorf("bootstrap: more than %d bytes", maxBootstrap)
	}
	if err := json.Unmarshal(data, &boot); err != nil {
		return boot, fmt.Errorf("bootstrap: %w", err)
	}
	return boot, nil
}

// serve opens the session and closes it when it has ended.
func (d *daemon) serve(ctx context.Context, o Options) error {
	var err error
	if d.handler, err = openHandler(ctx, d.boot, o); err != nil {
		return err
	}
	err = d.answer(ctx)
	return errors.Join(err, d.ending.close(), d.close())
}

// answer makes the sockets of the session and serves them.
func (d *daemon) answer(ctx context.Context) error {
	if err := d.openFiles(); err != nil {
		return err
	}
	d.server = d.handler.server()
	d.server.Clients = &channel.Clients{Shared: true}
	l, err := channel.Listen(ctx, "unix://"+d.socket)
	if err != nil {
		return err
	}
	s, packets, err := d.listenShells(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	return d.accept(ctx, []listener{{l, d.connection}, {packets, s.connection}})
}

// name is the name of the session.
func (d *daemon) name() string { return filepath.Base(filepath.Dir(d.socket)) }

// listener is a socket of the session, with what serves a connection.
type listener struct {
	net.Listener
	serve func(context.Context, net.Conn)
}

func closeAll(listeners []listener) error {
	var errs []error
	for _, l := range listeners {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// accept takes connections until the session ends, and waits for their ends.
func (d *daemon) accept(ctx context.Context, listeners []listener) error {
	ctx, ended := d.limited(ctx)
	defer ended()
	if d.owner != nil {
		defer d.owner.Close()
		go func() { // ends with the owner, or when its file is closed
			_, _ = io.Copy(io.Discard, d.owner)
			ended()
		}()
	}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	var connections sync.WaitGroup
	defer connections.Wait()
	defer cancel()
	stop := context.AfterFunc(serving, func() { _ = closeAll(listeners) })
	defer stop()
	connections.Go(func() {
		d.awaitEnd(ctx, serving)
		_ = closeAll(listeners)
		awaitCallers(serving, d.server.Clients)
		cancel()
	})
	if err := d.announce(ctx); err != nil {
		return errors.Join(err, closeAll(listeners))
	}
	for _, l := range listeners[1:] {
		connections.Go(func() { _ = d.take(serving, l, &connections) }) // it ends with the session
	}
	return d.take(serving, listeners[0], &connections)
}

// take serves the connections of one socket until the session ends.
func (d *daemon) take(serving context.Context, l listener, connections *sync.WaitGroup) error {
	spared := &listen.Sparing{Listener: l.Listener, Refused: func(_ net.Conn, err error) {
		d.session.Config().Log.Warn("a connection to the session was refused", "error", err)
	}}
	for {
		conn, err := spared.Accept()
		if err != nil {
			if serving.Err() != nil || errors.Is(err, net.ErrClosed) {
				<-serving.Done() // after the callers know why
				return nil
			}
			return fmt.Errorf("take a connection: %w", err)
		}
		connections.Go(func() { l.serve(serving, conn) })
	}
}

// farewell is how long the callers of a session that has ended may take to learn
// why.
const farewell = 2 * time.Second

// awaitEnd waits until the session has ended. It ends the session when ctx ends, and
// gives up when the session is no longer served.
func (h *handler) awaitEnd(ctx, serving context.Context) {
	select {
	case <-h.session.Dead():
	case <-serving.Done():
	case <-ctx.Done():
		cause := wire.CauseClosed
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			cause = wire.CauseLifetime
		}
		h.session.End(cause)
	}
}

// awaitCallers waits until the callers of a session that has ended know why, for a
// time that is enough unless they do not listen.
func awaitCallers(ctx context.Context, clients *channel.Clients) {
	limit := time.NewTimer(farewell)
	defer limit.Stop()
	select {
	case <-clients.Reported():
	case <-limit.C:
	case <-ctx.Done():
	}
}

// announce writes the session's record and reports to its creator that it is ready.
func (d *daemon) announce(ctx context.Context) error {
	self, err := target.Identify(os.Getpid())
	if err != nil {
		return err
	}
	cfg := d.session.Config()
	one := Running{
		Name: filepath.Base(filepath.Dir(d.socket)), Session: d.session.ID(), PID: os.Getpid(), StartTime: self.Start,
		Parts: d.session.Processes(), Policy: cfg.Policy.Name(), Digest: cfg.Policy.Digest(), Workspace: cfg.Cwd,
		Audit: d.boot.AuditPath, Started: time.Now().UTC(), Build: d.build,
		Advisory: d.session.Missing().Advisory(), Origin: d.boot.Origin,
	}
	if ends, ok := ctx.Deadline(); ok {
		ends = ends.UTC()
		one.Ends = &ends
	}
	data, err := json.Marshal(one)
	if err != nil {
		return err
	}
	dir := filepath.Dir(d.socket)
	fresh := filepath.Join(dir, registryRecord+".new")
	if err := os.WriteFile(fresh, data, 0o600); err != nil {
		return err
	}
	if err := os.Rename(fresh, filepath.Join(dir, registryRecord)); err != nil {
		return err
	}
	_, err = d.ready.Write([]byte{0})
	return errors.Join(err, d.ready.Close())
}

// leave removes the session's directory, and reports to a creator that still waits
// why there is no session.
func (d *daemon) leave(err error) error {
	if err != nil {
		_, _ = d.ready.WriteString(err.Error()) // fails when the session was ready
		_ = d.ready.Close()
	}
	return os.RemoveAll(filepath.Dir(d.socket))
}

// connection serves one caller.
func (d *daemon) connection(ctx context.Context, conn net.Conn) {
	if _, err := channel.CheckCaller(conn); err != nil {
		d.session.Config().Log.Warn("connection refused", "reason", err)
		_ = conn.Close()
		return
	}
	if err := channel.NewServer(conn, d.server).Serve(ctx); err != nil && ctx.Err() == nil {
		d.session.Config().Log.Warn("connection ended", "reason", err)
	}
}

// drained is a handler that reports the end of a command only when the denials of
// the file server are in the audit log. It says whether there were any.
type drained struct{ *handler }

// Exec runs one command. See [supervisor.Session.Exec].
func (a drained) Exec(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	before := a.session.Refusals()
	drained := make(chan error, 1)
	drain := sync.OnceFunc(func() { drained <- a.session.Files().Drain() })
	exited := s.Exited
	s.Exited = func(e wire.Exit) {
		go drain() // while the rest of the output is delivered
		if exited != nil {
			exited(e)
		}
	}
	exit, left, err := a.session.Exec(ctx, req, s)
	drain() // of a command that was not started
	err = errors.Join(err, <-drained)
	left.NothingRefused = err == nil && a.session.Refusals() == before
	return exit, left, err
}
