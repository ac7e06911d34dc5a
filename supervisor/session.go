// Package supervisor runs commands under a policy. A [Session] is a place with
// its own namespaces, filter and file server; [Session.Exec] runs one command
// in it and is the only caller of the environment and launch packages.
package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
	"agentsh/supervisor/approve"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/cgroup"
	"agentsh/supervisor/fileserver"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/netns"
	"agentsh/supervisor/notify"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/view"
)

// Config describes a session. Policy, Files.Governed, Cwd, Environment.Path,
// Audit and Log are required.
type Config struct {
	Policy      *policy.Policy
	Files       Files
	Environment Environment
	Network     Network
	Cwd         string          // where commands start by default, inside
	User        string          // user of commands when the supervisor is root
	Require     []probe.Setting // what must be proven before the session opens
	Degraded    []probe.Setting // mechanisms that may be missing on this machine
	Program     bool            // this program is shown inside, at [layout.Program]
	Channel     bool            // approvals can be answered over a channel: see [Session.Approvals]
	Audit       *audit.Log
	Log         *slog.Logger
}

// Files are the directories of a session and the store for what it deletes.
type Files struct {
	Governed []wire.Governed // directories under file policy; the first is the workspace
	Store    string          // directory for deleted files and checkpoints; empty: nothing is stored
	Trash    trash.Limits    // of all sessions of that store together; zero: [trash.DefaultLimits]
	// CacheSeconds is how long commands may see old content after somebody else
	// has changed a governed directory; 0: 10 minutes.
	CacheSeconds int
}

// Environment is what the operator sets in the environment of commands.
type Environment struct {
	Inject map[string]string // env_inject of the configuration
	Dir    string            // directory of .env files, inside; empty: none
	Home   string            // HOME of commands, inside
	Path   string            // PATH of commands; programs are looked up there
}

// Network is the network of a session.
type Network struct {
	Shared bool          // share the caller's network instead of a network namespace
	Egress netns.Outside // used when the policy governs the network
}

// Session runs commands. It is safe for concurrent use; Close ends it.
type Session struct {
	cfg     Config
	id      string
	user    view.User
	missing probe.Missing // mechanisms, as degraded allows
	state   *state

	confinement view.Confinement
	plan        *view.Plan // what commands see

	store *store // nil: nothing is stored
	env   delivered

	files    *fileserver.Server // nil: nothing is governed
	network  *netns.Network     // nil: the policy does not govern it
	init     *launch.Init
	loop     *notify.Loop
	loopDone chan struct{}
	stopLoop context.CancelFunc
	timeout  *time.Timer // of the session; nil: none

	group       *cgroup.Group // nil: no limit needs one
	groups      atomic.Uint64 // made for commands so far
	pidsGrouped bool          // the group counts processes

	signals   seccomp.Signals // that the filter has notified
	refusals  seccomp.Table   // that the loop answers
	opener    *launch.Opener  // nil unless the plan is emulated
	root      *os.File        // the root directory that commands see
	rules     atomic.Pointer[rules]
	reloading sync.Mutex // one reload at a time
	approvals *approve.Queue
	confined  atomic.Bool // see [Session.Confine]

	begun    bool // the log has its beginning
	faults   auditFaults
	denials  sync.Map // by command id: the *wire.Exit of one refused at its own execve
	mu       sync.Mutex
	fault    error       // why the session can run nothing any more
	active   int         // commands
	quiet    time.Time   // when the last of them ended
	idle     *time.Timer // of a session without commands; nil: none
	commands sync.WaitGroup
	outputs  sync.WaitGroup // of commands, until the last of their processes is gone
}

// ErrEnded is in the chain of every error of a session that has ended.
var ErrEnded = errors.New("session has ended")

// Open builds a session: namespaces, mounts, file server, filter. Whatever the
// policy asks for that this build or machine cannot hold is refused here.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	asked := probe.Session{Governed: len(cfg.Files.Governed) > 0, SharedNetwork: cfg.Network.Shared}
	if err := probe.Require(cfg.Require, asked); err != nil {
		return nil, err
	}
	missing, err := probe.Survey(cfg.Degraded)
	if err != nil {
		return nil, err
	}
	user, err := view.CommandUser(cfg.User, !missing.Has(probe.Namespaces))
	if err != nil {
		return nil, err
	}
	state, err := newState(view.StateParent(cfg.Policy, cfg.Files.Governed, !missing.Has(probe.Namespaces)))
	if err != nil {
		return nil, err
	}
	s := &Session{cfg: cfg, id: rand.Text()[:12], user: user, missing: missing, state: state}
	s.rules.Store(&rules{policy: cfg.Policy})
	s.approvals = approve.New(approve.Config{Session: s.id, Emit: s.emit, Settings: s.approvalSettings})
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	giveBackWhenQuiet()
	return s, nil
}

func (s *Session) open(ctx context.Context) error {
	if err := s.hold(); err != nil {
		return err
	}
	var err error
	if s.store, err = openStore(s.cfg.Files, s.cfg.Policy, s.id); err != nil {
		return err
	}
	s.confinement = view.New(viewOptions(s.cfg, s.user, s.missing, s.state.dir, s.store.path()))
	if err := s.planView(); err != nil {
		return err
	}
	if err := s.openNetwork(); err != nil {
		return err
	}
	if err := s.startInit(ctx); err != nil {
		return s.missing.Explain(err)
	}
	if err := s.network.Listen(s.init); err != nil {
		return err
	}
	if err := s.startLoop(); err != nil {
		return err
	}
	if err := s.files.Begin(ctx, s.init.PID()); err != nil { // the loop knows the commands of its events
		return err
	}
	s.network.Serve(s.end)
	s.watch()
	if err := s.emit(s.beginning()); err != nil {
		return err
	}
	s.begun = true
	return nil
}

// beginning is the event of a session's start: its policy, and what it lacks.
func (s *Session) beginning() wire.Event {
	e := wire.Event{Type: wire.EventSession, Phase: "begin", Message: "policy " + s.cfg.Policy.Name() + " " + s.cfg.Policy.Digest()}
	if len(s.missing) > 0 {
		e.Decision, e.Hint = "degraded", s.missing.String()
	}
	return e
}

// viewOptions describe a session to its confinement.
func viewOptions(cfg Config, user view.User, missing probe.Missing, state, store string) view.Options {
	o := view.Options{
		User: user, Workspace: cfg.Files.Governed, Home: cfg.Environment.Home, State: state,
		Network: cfg.Network.Shared, Program: cfg.Program, Audit: cfg.Audit.Path(),
		Missing: view.Missing{
			Namespaces: missing.Has(probe.Namespaces), FileServer: missing.Has(probe.FileServer),
			Landlock: missing.Has(probe.Landlock), LandlockScopes: missing.Has(probe.LandlockScopes),
		},
		Sockets: machineSockets,
	}
	if store != "" {
		o.Hidden = append(o.Hidden, view.Hidden{Dir: store, What: "what sessions keep"})
	}
	for _, dir := range registryDirs() {
		o.Hidden = append(o.Hidden, view.Hidden{Dir: dir, What: "the sockets of sessions"})
	}
	return o
}

// planView plans what commands see.
func (s *Session) planView() error {
	plan, err := s.confinement.Plan(s.cfg.Policy, s.scratchDir)
	if err != nil {
		return err
	}
	s.plan = plan
	return s.confinement.Prepare(s.cfg.Policy, plan)
}

// scratchDir makes the backing of a governed scratch directory. Its owner is that
// of the workspace, which is shown as the commands' user in every mount.
func (s *Session) scratchDir(path string) (string, error) {
	dir, err := os.MkdirTemp(s.state.dir, filepath.Base(path)+"-")
	if err != nil {
		return "", err
	}
	uid, gid := s.user.UID, s.user.GID
	if len(s.cfg.Files.Governed) > 0 {
		info, err := os.Stat(s.cfg.Files.Governed[0].Backing)
		if err != nil {
			return "", err
		}
		owner := info.Sys().(*syscall.Stat_t)
		uid, gid = int(owner.Uid), int(owner.Gid)
	}
	return dir, os.Chown(dir, uid, gid)
}

// checkTracing fails if execs cannot be verified and the operator did not set
// degraded: [exec_verify].
func checkTracing(missing probe.Missing) error {
	if missing.Has(probe.ExecVerify) {
		return nil
	}
	return probe.CanTrace()
}

// startInit starts the session init.
func (s *Session) startInit(ctx context.Context) error {
	if err := checkTracing(s.missing); err != nil {
		return err
	}
	sockets := s.cfg.Policy.Governs(policy.GroupUnixSocket)
	options := s.confinement.Filter(s.cfg.Policy, s.network != nil)
	options.Report, options.Opens, options.NoExecMemfd = true, s.plan.Emulated, len(s.cfg.Policy.ExecFrom()) > 0
	options.Connect, options.Bind = sockets || s.network != nil, sockets
	options.SharedNetwork = s.network.Shared()
	s.signals = options.Signals
	plan := seccomp.DefaultPlan(options)
	filter, err := plan.Compile(runtime.GOARCH)
	if err == nil {
		s.refusals, err = plan.Table()
	}
	if err != nil {
		return err
	}
	files, err := networkFiles(s.network)
	if err != nil {
		return err
	}
	cfg, err := s.confinement.Launch(s.cfg.Policy, s.plan, files)
	if err != nil {
		return err
	}
	cfg.Filter, cfg.Interruptible = filter, s.missing.Has(probe.WaitKillable)
	cfg.Limits = []launch.Rlimit{{Resource: limitCore}}
	s.network.Setup(&cfg)
	if len(s.plan.Governed) > 0 {
		if s.files, err = fileserver.New(s.fileServerConfig()); err != nil {
			return err
		}
		defer s.files.CloseDevices()
	}
	s.init, err = launch.NewInit(ctx, cfg, s.files.AddMount)
	return err
}

// fileServerConfig describes the file server of the session.
func (s *Session) fileServerConfig() fileserver.Config {
	c := fileserver.Config{
		Session: s.id, Policy: s.cfg.Policy, UID: s.user.UID, GID: s.user.GID, CacheSeconds: s.cfg.Files.CacheSeconds,
		Trash: s.store.trashLimits(), Store: s.store.donations, Emit: s.emit, Ask: s.approvals.Ask, Fail: s.end,
		Command: func(mark uint64) string {
			if s.loop == nil {
				return ""
			}
			return s.loop.Marked(mark)
		},
	}
	for _, g := range s.plan.Governed {
		c.Mounts = append(c.Mounts, fileserver.Mount{Path: g.Path, Backing: g.Backing, Dir: g.Dir})
	}
	return c
}

// startLoop answers the session's notifications from now on.
func (s *Session) startLoop() error {
	listener, err := seccomp.NewListener(s.init.Listener())
	if err != nil {
		return err
	}
	first, err := s.firstRules()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	s.rules.Store(first)
	open, err := s.openEmulated()
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	// The filter refuses whatever would give a command another root.
	root, err := target.NewRoot(s.root)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	tracing := s.confinement.Tracing()
	s.loop = notify.New(notify.Config{
		Listener: listener, Rules: first.notify(), Ask: s.approvals.Ask, Emit: s.emitExec, Session: s.id, Log: s.cfg.Log, Root: root,
		Unverified: s.missing.Has(probe.ExecVerify), SharedPIDs: tracing.Shared, TraceAs: tracing.As,
		Network: s.networkCalls(), Open: open, Refusals: s.refusals,
	})
	ctx, stop := context.WithCancel(context.Background())
	s.stopLoop, s.loopDone = stop, make(chan struct{})
	go func() {
		defer close(s.loopDone)
		if err := s.loop.Run(ctx); err != nil && ctx.Err() == nil {
			s.end(fmt.Errorf("notification loop: %w", err))
		}
	}()
	return nil
}

// openEmulated is how the notification loop opens a file below
// [notify.Emulated]; nil: it is never asked to.
func (s *Session) openEmulated() (func(string, int) (*os.File, error), error) {
	if !s.plan.Emulated {
		return nil, nil
	}
	var err error
	if s.opener, err = s.init.Opener(); err != nil {
		return nil, err
	}
	return s.opener.Open, nil
}

// watch ends the session when one of its parts dies or its time is up.
func (s *Session) watch() {
	if limit := s.cfg.Policy.Limits(nil).SessionTimeout; limit > 0 {
		s.timeout = time.AfterFunc(limit, func() { s.end(fmt.Errorf("session_timeout of %s is over", limit)) })
	}
	s.watchIdle()
	go func() { // ends with the session's first process at the latest
		select {
		case <-s.files.Dead():
			s.end(s.files.Err())
		case <-s.init.Dead():
			s.end(errors.New("its first process is gone"))
		}
	}()
}

// end stops everything in the session for a reason that later calls report.
func (s *Session) end(reason error) { s.endIf(func() bool { return true }, reason) }

// endIf ends the session if a condition holds, which is asked with mu held.
func (s *Session) endIf(condition func() bool, reason error) {
	s.mu.Lock()
	first := s.fault == nil && condition()
	if first {
		s.fault = fmt.Errorf("%w: %w", ErrEnded, reason)
	}
	s.mu.Unlock()
	if first {
		s.cfg.Log.Warn("session ended", "session", s.id, "reason", reason)
		s.approvals.Close()
		_ = s.init.Close() // Close reports what could not be ended
	}
}

// emit writes one event of this session to the audit log. When it fails, what
// the event tells of must not happen.
func (s *Session) emit(e wire.Event) error {
	e.Session = s.id
	settings := s.policy().Audit()
	if !settings.LogAllowed && e.Type == wire.EventExec && e.Decision == policy.Allow.String() {
		return nil
	}
	if settings.Redact {
		redact(&e, s.cfg.Audit.Digest)
	}
	return s.faults.append(e, s.cfg.Audit.Append)
}

// emitExec is emit for the notification loop. What a command was refused at its
// own execve becomes its exit.
func (s *Session) emitExec(e wire.Event) error {
	if e.Type == wire.EventExec && e.Decision == policy.Deny.String() {
		s.denials.Store(e.Command, &wire.Exit{Kind: wire.ExitDenied, Message: e.Message, Hint: e.Hint, Rule: e.Rule})
	}
	return s.emit(e)
}

// Changes is the change record of the governed directories.
func (s *Session) Changes(ctx context.Context) ([]wire.Change, error) {
	if s.missing.Has(probe.FileServer) {
		return nil, fmt.Errorf("change record: the session is without a file server: %w", s.missing[probe.FileServer])
	}
	return s.files.Changes(ctx)
}

// Close kills every command, ends the file server and removes what the session
// made. It returns what could not be ended or written.
func (s *Session) Close() error {
	s.mu.Lock()
	if s.fault == nil {
		s.fault = ErrEnded
	}
	if s.idle != nil {
		s.idle.Stop()
	}
	s.mu.Unlock()
	if s.timeout != nil {
		s.timeout.Stop()
	}
	var errs []error
	if s.init != nil {
		errs = append(errs, s.init.Close())
	}
	s.approvals.Close()
	s.commands.Wait()
	s.outputs.Wait()
	errs = append(errs, s.network.Close())
	if s.stopLoop != nil {
		s.stopLoop()
		<-s.loopDone
		errs = append(errs, s.files.Drain())
		if s.begun {
			errs = append(errs, s.emit(wire.Event{Type: wire.EventSession, Phase: "end"}))
		}
	}
	if s.root != nil {
		s.root.Close()
	}
	errs = append(errs, s.opener.Close())
	var changes func(context.Context) ([]wire.Change, error)
	if s.files.Running() {
		changes = s.files.Changes
	}
	errs = append(errs, s.store.close(changes, s.cfg.Log.With("session", s.id)))
	s.files.Close()
	if s.group != nil {
		errs = append(errs, s.group.Close())
	}
	return errors.Join(append(errs, s.state.remove())...)
}
