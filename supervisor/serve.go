package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net"
	"os"
	"strings"
	"time"

	"agentsh/internal/channel"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/audit"
)

// Serve holds one session for a controller: it opens what boot describes,
// answers on conn until the controller goes or ctx ends, and closes everything.
// operator gives what boot leaves open. build is told in the hello.
func Serve(ctx context.Context, conn net.Conn, boot wire.Bootstrap, operator OperatorConfig, build string) error {
	if boot.Version.Major != wire.Current.Major {
		return fmt.Errorf("bootstrap version %d: this build speaks %d", boot.Version.Major, wire.Current.Major)
	}
	if boot.LifetimeSeconds > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(boot.LifetimeSeconds)*time.Second)
		defer cancel()
	}
	h, err := openHost(ctx, boot, operator)
	if err != nil {
		return err
	}
	err = h.serve(ctx, conn, boot, build)
	return errors.Join(err, h.session.Close(), h.close())
}

// openHost opens the session that boot describes; the caller closes it and the
// host.
func openHost(ctx context.Context, boot wire.Bootstrap, operator OperatorConfig) (*host, error) {
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
	h := &host{log: log}
	if h.session, err = Open(ctx, SessionConfig(operator, Request{Boot: boot, Policy: p, Audit: log, Channel: true})); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	if operator.Confine {
		if err := h.session.Confine(); err != nil {
			return nil, errors.Join(err, h.session.Close(), log.Close())
		}
	}
	return h, nil
}

// bootPolicy loads the policy of a bootstrap; what it extends must be there too.
// Who made the bootstrap settled where the project root may be.
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

// host answers a controller for one session.
type host struct {
	session *Session
	log     *audit.Log
	files   *channel.Roots
	roots   []*os.Root
}

func (h *host) serve(ctx context.Context, conn net.Conn, boot wire.Bootstrap, build string) error {
	if err := h.openFiles(boot); err != nil {
		return err
	}
	return channel.NewServer(conn, h.server(boot, build)).Serve(ctx)
}

// openFiles opens the directories of the files channel.
func (h *host) openFiles(boot wire.Bootstrap) error {
	mounts, err := h.mounts()
	if err != nil {
		return err
	}
	h.files, err = channel.NewRoots(channel.RootsConfig{Mounts: mounts, Changed: h.session.Written, Refuse: h.session.CheckWrite})
	return err
}

// mounts are the directories of the files channel.
func (h *host) mounts() ([]channel.Mount, error) {
	var out []channel.Mount
	for _, d := range h.session.Directories() {
		root, err := os.OpenRoot(d.Outside)
		if err != nil {
			return nil, err
		}
		h.roots = append(h.roots, root)
		out = append(out, channel.Mount{Path: d.Path, Root: root, Owner: d.Owner})
	}
	return out, nil
}

// server is what the servers of all connections have in common.
func (h *host) server(boot wire.Bootstrap, build string) channel.ServerConfig {
	return channel.ServerConfig{
		HostKey: boot.HostKey, AuthorizedKey: boot.AuthorizedKey, Handler: h, Operator: operation{h.session, boot.Vars},
		Hello: wire.Hello{
			Version: wire.Current, Build: build, BootID: bootID(), Instance: h.session.ID(),
			PolicyDigest: h.session.Config().Policy.Digest(), Capabilities: proven(h.session),
		},
	}
}

func (h *host) close() error {
	var errs []error
	for _, r := range h.roots {
		errs = append(errs, r.Close())
	}
	return errors.Join(append(errs, h.log.Close())...)
}

// Keep carries out what the session's user asks of its trash and of what was
// written behind its mounts.
func (h *host) Keep(ctx context.Context, r wire.KeepRequest) error {
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
	return errors.New("nothing was asked")
}

// Hold freezes the files for a checkpoint or a rollback, for as long as its process
// lives and the session does. See [channel.Keeper].
func (h *host) Hold(ctx context.Context, in io.Reader, out io.Writer) error {
	return h.session.Files().Freeze(ctx, in, out)
}

// Exec runs one command. See [Session.Exec].
func (h *host) Exec(ctx context.Context, req wire.ExecRequest, s wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	return h.session.Exec(ctx, req, s)
}

// Files are the governed directories.
func (h *host) Files() channel.Files { return h.files }

// Changes is the change record of the workspace.
func (h *host) Changes(ctx context.Context) ([]wire.Change, error) {
	if err := h.session.Files().Drain(); err != nil {
		return nil, err
	}
	return h.session.Changes(ctx)
}

// Events follows the audit log.
func (h *host) Events(ctx context.Context, from uint64) iter.Seq2[wire.Event, error] {
	return func(yield func(wire.Event, error) bool) {
		f, err := h.log.Subscribe(from)
		if err != nil {
			yield(wire.Event{}, err)
			return
		}
		defer func() { _ = f.Close() }() // opened for reading
		for {
			e, err := f.Next(ctx)
			if errors.Is(err, os.ErrClosed) || errors.Is(err, io.EOF) {
				return
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// bootID tells machines and boots apart. See proc_sys_kernel(5).
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
}

// proven are the capabilities that the session proved at its start.
func proven(s *Session) []string {
	out := []string{"exec_notify"}
	if s.Files() != nil {
		out = append(out, "file_rules")
	}
	for _, what := range s.Refused() {
		out = append(out, "refused: "+what)
	}
	return out
}

// operation is what a session's callers ask of it as a whole.
type operation struct {
	session *Session
	vars    map[string]string // of policies
}

// Approvals is what waits for a person.
func (o operation) Approvals() []wire.Pending { return o.session.Approvals().List() }

// Connections are those that are open to the outside.
func (o operation) Connections() []wire.Connection {
	return o.session.Network().Connections()
}

// Follow follows what waits. See [approve.Queue.Follow].
func (o operation) Follow(ctx context.Context, fn func([]wire.Pending) error) error {
	return o.session.Approvals().Follow(ctx, fn)
}

// Answer answers one question.
func (o operation) Answer(a wire.ApprovalAnswer) error { return o.session.Approvals().Answer(a) }

// Reload replaces the session's policy from the sources of another one. See
// [Session.Reload].
func (o operation) Reload(ctx context.Context, r wire.Reload) (wire.Reloaded, error) {
	p, err := bootPolicy(wire.Bootstrap{Policy: r.Policy, Vars: o.vars})
	if err != nil {
		return wire.Reloaded{}, &wire.Error{Code: wire.CodeRefused, Message: err.Error()}
	}
	done, err := o.session.Reload(ctx, p)
	if err != nil {
		return done, &wire.Error{Code: wire.CodeRefused, Message: err.Error()}
	}
	return done, nil
}
