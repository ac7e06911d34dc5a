// Package host serves sessions, lists those of a user and reports on the machine.
//
// Serve answers one controller and ServeSocket the callers of a session in the
// background; both open the session through openHandler. [Registry] starts such
// sessions (startDaemon), lists, attaches to and ends them. [Detect] tries the
// primitives of package probe, and rules in a scratch session (trial.go);
// coverage.go derives from them what enforces each group of rules. [ReadConfig]
// reads the operator's configuration for all of them.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"sync"
	"time"

	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor"
	"agentsh/supervisor/audit"
)

// Options complete a bootstrap.
type Options struct {
	Operator supervisor.OperatorConfig
	Build    string // of this program, for the hello
	// Next returns the connection of a controller that has taken the place of the one whose
	// connection to Serve has ended; nil: there is none, and the session ends. It may be nil.
	Next func() net.Conn
	// Confine drops privileges that this process does not need once its session runs: see
	// [supervisor.Session.Confine]. The process must be there for this session alone.
	Confine bool
}

// Serve opens the session that boot describes, answers on conn until the
// controller closes it or ctx ends, and closes everything. With boot.Keep a
// controller ends the session by ending ctx: if conn breaks before, further
// controllers can connect until the lease ends.
func Serve(ctx context.Context, conn net.Conn, boot wire.Bootstrap, o Options) error {
	if boot.Version.Major != wire.Current.Major {
		return fmt.Errorf("bootstrap version %d: this build speaks %d", boot.Version.Major, wire.Current.Major)
	}
	k, err := newKeeper(ctx, boot.Keep)
	if err != nil {
		return err
	}
	h, err := openHandler(ctx, boot, o)
	if err != nil {
		return errors.Join(err, k.close())
	}
	ctx, cancel := h.limited(ctx)
	defer cancel()
	if err = h.openFiles(); err == nil {
		err = h.serveAll(ctx, conn, o.Next)
	}
	if k != nil && ctx.Err() == nil && h.alive() {
		// The controller did not end the session, so it is gone, whatever broke.
		err = k.serve(ctx, h)
	}
	return errors.Join(err, k.close(), h.ending.close(), h.close())
}

// openHandler opens the session that boot describes. The caller closes the
// session, then the handler.
func openHandler(ctx context.Context, boot wire.Bootstrap, o Options) (*handler, error) {
	p, err := bootPolicy(boot)
	if err != nil {
		return nil, err
	}
	key := boot.AuditKey
	if key == "" {
		key = boot.AuditPath + ".key"
	}
	log, err := audit.Open(boot.AuditPath, audit.Options{KeyFile: key})
	if err != nil {
		return nil, err
	}
	cfg := supervisor.SessionConfig(o.Operator, supervisor.Request{Boot: boot, Policy: p, Audit: log, Channel: true})
	h := &handler{boot: boot, build: o.Build, log: log}
	if h.session, err = supervisor.Open(ctx, cfg); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	h.ending = &ending{session: h.session, log: log, boot: boot}
	if o.Confine {
		if err := h.session.Confine(); err != nil {
			return nil, errors.Join(err, h.session.Close(), log.Close())
		}
	}
	return h, nil
}

// limited returns a context that ends when the lifetime of the session is over, which
// begins now: however long the session took to open, it can be used.
func (h *handler) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if h.boot.LifetimeSeconds <= 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(h.boot.LifetimeSeconds)*time.Second)
}

// bootPolicy loads the policy of a bootstrap. Files that it extends must be in the
// bootstrap too. The creator of the bootstrap has checked the project root.
func bootPolicy(boot wire.Bootstrap) (*policy.Policy, error) {
	if len(boot.Policy) == 0 {
		return nil, errors.New("bootstrap without a policy")
	}
	read := func(name string) ([]byte, error) {
		for _, s := range boot.Policy[1:] {
			if s.Name == name {
				return s.Data, nil
			}
		}
		return nil, fmt.Errorf("policy file %s was not sent", name)
	}
	return syntax.Load(policy.Source(boot.Policy[0]), syntax.Options{Vars: boot.Vars, OutsideWorkspace: true, ReadFile: read})
}

// handler answers the requests of a session's callers.
type handler struct {
	boot    wire.Bootstrap
	build   string
	session *supervisor.Session
	log     *audit.Log
	ending  *ending
	files   *channel.Roots
	roots   []*os.Root
}

// serveAll serves a controller, and those that take its place.
func (h *handler) serveAll(ctx context.Context, conn net.Conn, next func() net.Conn) error {
	for {
		err := h.serve(ctx, conn)
		if next == nil || ctx.Err() != nil || !h.alive() {
			return err
		}
		if conn = next(); conn == nil {
			return err
		}
	}
}

// serve serves one controller. What it had started ends with its connection.
func (h *handler) serve(ctx context.Context, conn net.Conn) error {
	cfg := h.server()
	cfg.Clients = &channel.Clients{}
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var ending sync.WaitGroup
	ending.Go(func() {
		h.awaitEnd(ctx, serving)
		if ctx.Err() != nil { // else the controller learns it from its commands, and goes on
			awaitCallers(serving, cfg.Clients)
			cancel()
		}
	})
	err := channel.NewServer(conn, cfg).Serve(serving)
	cancel()
	ending.Wait()
	if err == nil || errors.Is(err, context.Canceled) {
		return ctx.Err()
	}
	return err
}

// openFiles opens the directories of the files channel.
func (h *handler) openFiles() error {
	mounts, err := h.mounts()
	if err != nil {
		return err
	}
	h.files, err = channel.NewRoots(channel.RootsConfig{Mounts: mounts, Changed: h.session.Written, Refuse: h.session.CheckWrite})
	return err
}

// mounts are the directories of the files channel.
func (h *handler) mounts() ([]channel.Mount, error) {
	var out []channel.Mount
	for _, d := range h.session.Directories() {
		root, err := os.OpenRoot(d.Outside)
		if err != nil {
			return nil, err
		}
		h.roots = append(h.roots, root)
		out = append(out, channel.Mount{Path: d.Path, Root: root, Owner: d.Owner})
	}
	if h.boot.ExportDir != "" {
		root, err := os.OpenRoot(h.boot.ExportDir)
		if err != nil {
			return nil, err
		}
		h.roots = append(h.roots, root)
		out = append(out, channel.Mount{Path: layout.Export, Root: root})
	}
	return out, nil
}

// server is the configuration that the servers of all connections share.
func (h *handler) server() channel.ServerConfig {
	var alive channel.Keepalive
	if h.boot.Resume != nil {
		alive.Dead = h.boot.Resume.Dead()
	}
	return channel.ServerConfig{
		Keepalive: alive,
		HostKey:   h.boot.HostKey, AuthorizedKey: h.boot.AuthorizedKey,
		Handler: drained{h}, Operator: operation{h.session, h.boot.Vars, h.ending},
		Hello: wire.Hello{
			Version: wire.Current, Build: h.build, BootID: statedir.BootID(), Instance: h.session.ID(),
			PolicyDigest: h.session.Config().Policy.Digest(), Capabilities: proven(h.session),
			Engine: h.session.Engine(), Degraded: h.session.Missing().Names(),
			Advisory: h.session.Missing().Advisory(), Guarantees: guarantees(h.session),
		},
	}
}

// alive reports whether the session can run commands.
func (h *handler) alive() bool {
	select {
	case <-h.session.Dead():
		return false
	default:
		return true
	}
}

func (h *handler) close() error {
	var errs []error
	for _, r := range h.roots {
		errs = append(errs, r.Close())
	}
	return errors.Join(append(errs, h.ending.closeLog())...)
}

// Recover restores and removes deleted files, and has commands see files that were
// written behind the mounts.
func (h *handler) Recover(ctx context.Context, r wire.RecoveryRequest) error {
	f := h.session.Files()
	switch {
	case r.Restore != "":
		return f.Restore(ctx, r.Restore, r.Force)
	case len(r.Purge) > 0:
		return f.Purge(ctx, r.Purge...)
	case f == nil:
		return errors.New("the session has no file server")
	case len(r.Changed) > 0:
		h.session.Written(r.Changed)
		return nil
	}
	return errors.New("the request is empty")
}

// Freeze freezes the files for a checkpoint or a rollback, for as long as its process
// lives and the session does. See [channel.Keeper].
func (h *handler) Freeze(ctx context.Context, in io.Reader, out io.Writer) error {
	return h.session.Files().Freeze(ctx, in, out)
}

// Exec runs one command. See [supervisor.Session.Exec].
func (h *handler) Exec(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	if h.ending.over.Load() {
		return wire.Exit{}, wire.TreeEmpty{}, errEnded
	}
	return h.session.Exec(ctx, req, s)
}

// Files are the governed directories.
func (h *handler) Files() channel.Files { return h.files }

// Changes is the change record of the workspace.
func (h *handler) Changes(ctx context.Context) ([]wire.Change, error) {
	if err := h.session.Files().Drain(); err != nil {
		return nil, err
	}
	return h.session.Changes(ctx)
}

// Events reads the audit log, and follows it unless the events so far are wanted.
func (h *handler) Events(ctx context.Context, req wire.EventRequest) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		from := req.From
		if from == wire.LastEvent {
			from = h.log.Head().Seq
		}
		f, err := h.log.Subscribe(from)
		if err != nil {
			yield(wire.Event{}, err)
			return
		}
		defer func() { _ = f.Close() }() // opened for reading
		if req.SoFar {
			f.StopHere()
		}
		for {
			e, err := f.Next(ctx)
			if errors.Is(err, os.ErrClosed) || errors.Is(err, audit.ErrStopped) {
				return
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// proven are the capabilities that the session proved at its start.
func proven(s *supervisor.Session) []string {
	out := []string{"exec_notify"}
	if s.Files() != nil {
		out = append(out, "file_rules")
	}
	for _, what := range s.Refused() {
		out = append(out, "refused: "+what)
	}
	return out
}
