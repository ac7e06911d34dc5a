package supervisor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"agentsh/fuse/watch"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/threads"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/seccomp"
	"agentsh/seccomp/target"
	"agentsh/supervisor/approve"
	"agentsh/supervisor/fileserver"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/netns"
	"agentsh/supervisor/notify"
	"agentsh/supervisor/notify/tracer"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/view"
)

// Open builds a session: namespaces, mounts, file server, filter. It refuses a
// policy that this build or machine cannot enforce.
func Open(ctx context.Context, cfg Config) (*Session, error) {
	requested := probe.Session{
		Governed: len(cfg.Files.Governed) > 0, Unwatched: unwatched(cfg.Files.Governed), SharedNetwork: cfg.Network.Shared,
		Untraced: cfg.forbids(tracer.Name) != nil,
	}
	missing, err := probe.Survey(cfg.Degraded, requested)
	if err != nil {
		return nil, err
	}
	if !missing.Has(probe.NestedCommands) {
		err = cfg.checkEngines()
	}
	if err == nil {
		err = probe.Require(cfg.Require, requested, missing)
	}
	if err != nil {
		return nil, err
	}
	namespaces := !missing.Has(probe.Namespaces)
	user, err := view.CommandUser(cfg.User, namespaces)
	if err == nil && cfg.AsOwner && missing.Has(probe.FileServer) {
		user, err = user.AsOwner(cfg.Files.Governed)
	}
	if err != nil {
		return nil, err
	}
	state, err := newState(view.StateParent(cfg.Policy, cfg.Files.Governed, namespaces))
	if err != nil {
		return nil, err
	}
	s := newSession(cfg, state)
	s.confined.missing, s.confined.user, s.confined.requested = missing, user, requested
	if err := s.open(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	returnMemoryWhenQuiet()
	return s, nil
}

// unwatched says which governed directory is on a filesystem that is not watched, and why;
// empty: none is.
func unwatched(governed []wire.Governed) string {
	for _, g := range governed {
		fd, err := unix.Open(g.Backing, unix.O_PATH|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // the file server reports it
		}
		err = watch.Watchable(fd)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Sprintf("%s: %v", g.Backing, err)
		}
	}
	return ""
}

// newSession makes a session without processes.
func newSession(cfg Config, state *state) *Session {
	s := &Session{cfg: cfg, state: state}
	s.rules.Store(&rules{policy: cfg.Policy})
	s.journal = &journal{session: rand.Text()[:12], log: cfg.Audit, settings: func() policy.AuditSettings { return s.rules.policy().Audit() }}
	if cfg.Program {
		s.journal.reasons.Untold = view.RefusalsFile(state.dir)
	}
	s.approvals = approve.New(approve.Config{
		Session: s.ID(), Emit: s.journal.emit,
		Settings: func() approve.Settings {
			return approvalSettings(s.rules.policy().Approvals(), cfg.Channel,
				s.confined.missing.Has(probe.Namespaces) && os.Geteuid() != 0, cfg.Files.Governed)
		},
	})
	s.life.ended = func(why *Ended) {
		cfg.Log.Warn("session ended", "session", s.ID(), "cause", why.Cause, "reason", why)
		s.approvals.Close()
		_ = s.init.Close() // Close reports what could not be ended
	}
	return s
}

// open makes the parts of a session in the order of their dependencies. Close
// ends those that were made when one fails.
func (s *Session) open(ctx context.Context) error {
	err := checkOpenFiles(s.cfg.Policy)
	if err != nil {
		return err
	}
	if s.groups, err = openGroups(s.cfg.Policy, s.state, s.confined.missing); err != nil {
		return err
	}
	if s.store, err = openStore(s.cfg.Files, s.cfg.Policy, s.ID()); err != nil {
		return err
	}
	s.confined.Confinement = view.New(viewOptions(s.cfg, s.confined, s.state.dir, s.store.path()))
	if err := s.confined.prepare(s.cfg, s.state.dir); err != nil {
		return err
	}
	if err := s.confined.openList(s.cfg.Files); err != nil {
		return err
	}
	if s.network, err = s.openNetwork(); err != nil {
		return err
	}
	reserved := func() {}
	root, err := s.startInit(ctx, func() { reserved = threads.Reserve(reservedThreads) })
	if err != nil {
		return s.confined.missing.Explain(err, s.confined.requested)
	}
	if err := s.network.Listen(s.init); err != nil {
		return errors.Join(err, closeRoot(s, root))
	}
	s.env = newEnvironments(s.cfg, s.ID(), s.confined, s.network.Variables(s.confined.Installed(layout.CABundle)))
	for _, name := range slices.Sorted(maps.Keys(s.cfg.Network.Vars)) {
		s.env.network = append(s.env.network, env.Var{Name: name, Value: s.cfg.Network.Vars[name]})
	}
	if s.cfg.Environment.Identity != (wire.Identity{}) || otherOwner(s.confined.plan, s.confined.user, s.cfg.Files.Governed) {
		s.env.network = append(s.env.network, env.Var{Name: "GIT_CONFIG_SYSTEM", Value: s.confined.Installed(layout.GitConfig)})
	}
	if err := s.startLoop(root); err != nil {
		return s.confined.missing.Explain(err, s.confined.requested)
	}
	if err := s.files.Begin(ctx, s.init.PID()); err != nil { // the loop knows the commands of its events
		return err
	}
	reserved()
	protect(s.files.PID())
	prefer(s.files.PID(), s.init.PID())
	s.network.Serve(func(err error) { s.life.end(wire.CauseNetwork, err) })
	s.watch()
	if s.confined.beside.Takes("inotify_init1") {
		s.files.WatchedInside() // nobody says when
	}
	return errors.Join(s.journal.begin(s.cfg.Policy, s.Engine(), s.confined), s.rules.Load().ready())
}

// viewOptions describe a session to its confinement. state and store are
// directories outside.
func viewOptions(cfg Config, c confined, state, store string) view.Options {
	o := view.Options{
		User: c.user, Workspace: cfg.Files.Governed, Home: cfg.Environment.Home, State: state,
		Network: cfg.Network.Shared, Program: cfg.Program, Helper: helps(cfg.Policy.SSH()), Audit: cfg.Audit.Path(),
		Missing: view.Missing{
			Namespaces: c.missing.Has(probe.Namespaces), FileServer: c.missing.Has(probe.FileServer),
			Landlock: c.missing.Has(probe.Landlock), NestedCommands: c.unjudged(),
			LandlockScopes: c.missing.Has(probe.LandlockScopes) || slices.Contains(c.requested.Replaced(c.missing), probe.LandlockScopes),
		},
		Sockets: netns.UnixSockets,
	}
	if store != "" {
		o.Hidden = append(o.Hidden, view.Hidden{Dir: store, What: "what sessions store"})
	}
	for _, file := range cfg.Files.Hidden {
		if _, err := os.Lstat(file); err == nil {
			o.Hidden = append(o.Hidden, view.Hidden{Dir: file, What: "what reaches the place"})
		}
	}
	for _, dir := range statedir.RuntimeDirs() {
		o.Hidden = append(o.Hidden, view.Hidden{Dir: dir, What: "the sockets of sessions"})
	}
	return o
}

// prepare plans what commands see.
func (c *confined) prepare(cfg Config, state string) error {
	var err error
	c.plan, err = c.Plan(cfg.Policy, func(path string) (string, error) { return makeScratch(state, path, cfg.Files.Governed, c.user) })
	if err != nil {
		return err
	}
	return c.Prepare(cfg.Policy, c.plan)
}

// otherOwner reports whether commands see the files of the workspace with another owner than
// they have: see [fuse.Owner].
func otherOwner(plan *view.Plan, user view.User, governed []wire.Governed) bool {
	if len(plan.Governed) == 0 || len(governed) == 0 {
		return false
	}
	info, err := os.Stat(governed[0].Backing)
	if err != nil {
		return false // the file server says it
	}
	owner := info.Sys().(*syscall.Stat_t)
	return int(owner.Uid) != user.UID || int(owner.Gid) != user.GID
}

// makeScratch makes the backing of a governed scratch directory. Its owner is that
// of the workspace, which every mount shows as the commands' user.
func makeScratch(state, path string, governed []wire.Governed, user view.User) (string, error) {
	dir, err := os.MkdirTemp(state, filepath.Base(path)+"-")
	if err != nil {
		return "", err
	}
	uid, gid := user.UID, user.GID
	if len(governed) > 0 {
		info, err := os.Stat(governed[0].Backing)
		if err != nil {
			return "", err
		}
		owner := info.Sys().(*syscall.Stat_t)
		uid, gid = int(owner.Uid), int(owner.Gid)
	}
	return dir, os.Chown(dir, uid, gid)
}

// openNetwork makes the session's network, without listeners yet. There is none if the place
// of the session decides about its network.
func (s *Session) openNetwork() (*netns.Network, error) {
	if by := s.cfg.Network.By; by != "" {
		if len(s.cfg.Network.Egress.Credentials) > 0 {
			return nil, errors.New(by + " decides about the network, so agentsh has no proxy that puts in credentials")
		}
		return nil, nil
	}
	return netns.Open(networkConfig(s))
}

func networkConfig(s *Session) netns.Config {
	return netns.Config{
		Outside: s.cfg.Network.Egress, Policy: s.rules.policy, Emit: s.journal.emit, Approve: s.approvals.Ask,
		Share: s.cfg.Network.Shared, NoNamespace: s.confined.SharesNetwork(), NoLandlock: s.confined.missing.Has(probe.Landlock), Log: s.cfg.Log,
	}
}

// unrouted reports whether the session has loopback only, and no route out.
func unrouted(s *Session) bool {
	return s.network == nil && !s.cfg.Network.Shared && !s.confined.SharesNetwork()
}

// startInit starts the session init, and the file server for the paths that it
// mounts. root is the root directory that commands see: as soon as it is complete the files of
// denied programs are recorded. guarded is called when the session has its guard.
func (s *Session) startInit(ctx context.Context, guarded func()) (root *os.File, err error) {
	if !s.confined.missing.Has(probe.ExecVerify) {
		if err := probe.CanTrace(); err != nil {
			return nil, err
		}
	}
	started := startFiles(s)
	cfg, err := initConfig(s)
	if failed := started(); err == nil {
		err = failed
	}
	defer s.files.CloseDevices()
	if err != nil {
		return nil, err
	}
	cfg.Guarded = guarded
	var unopened error // an init that has ended says why itself
	cfg.Rooted = func(pid int) {
		if root, unopened = openRoot(s.confined.Root(pid)); unopened == nil {
			s.rules.Store(beginRules(s.cfg.Policy, s.confined, s.deniedIn(root, pid), s.cfg.Environment.Inject))
		}
	}
	if s.init, err = launch.NewInit(ctx, cfg, s.files.AddMount); err != nil {
		return nil, errors.Join(s.explainEngine(err), closeRoot(s, root))
	}
	if root == nil && unopened == nil {
		cfg.Rooted(s.init.PID()) // it has no root of its own
	}
	if unopened != nil {
		return nil, unopened
	}
	if traced, _ := s.init.Traced(); traced {
		delete(s.confined.missing, probe.WaitKillable)
	}
	return root, nil
}

// startFiles starts the file server, if something is governed, beside the caller. The function
// that it returns waits until it runs.
func startFiles(s *Session) (wait func() error) {
	if len(s.confined.plan.Governed) == 0 {
		return func() error { return nil }
	}
	cfg, done := s.fileServerConfig(), make(chan error)
	var files *fileserver.Server
	go func() {
		var err error
		files, err = fileserver.New(cfg)
		done <- err
	}()
	return func() error {
		err := <-done
		s.files = files
		return err
	}
}

// closeRoot closes the root that startInit returned, once nothing uses it.
func closeRoot(s *Session, root *os.File) error {
	_ = s.rules.Load().ready()
	if root == nil {
		return nil
	}
	return root.Close()
}

// initConfig describes the session init.
func initConfig(s *Session) (launch.Config, error) {
	options := filterOptions(s.confined, s.cfg.Policy, s.network)
	options.Connect = options.Connect || unrouted(s)
	plan := seccomp.DefaultPlan(options)
	filter, err := plan.Compile(runtime.GOARCH)
	if err == nil {
		s.confined.signals = options.Signals
		s.confined.refusals, err = plan.Table()
	}
	if err != nil {
		return launch.Config{}, err
	}
	files, err := networkFiles(s.network)
	if err == nil {
		files.GitConfig, err = s.cfg.Environment.Identity.GitConfig(otherOwner(s.confined.plan, s.confined.user, s.cfg.Files.Governed))
	}
	if err != nil {
		return launch.Config{}, err
	}
	cfg, err := s.confined.Launch(s.cfg.Policy, s.confined.plan, files)
	if err != nil {
		return launch.Config{}, err
	}
	if err := s.engineFilters(&cfg, plan, filter); err != nil {
		return launch.Config{}, err
	}
	// A tracer holds calls whatever signals come.
	cfg.Interruptible = cfg.TraceFilter == nil && s.confined.missing.Has(probe.WaitKillable)
	cfg.Limits = []launch.Rlimit{{Resource: limitCore}}
	s.network.Setup(&cfg)
	return cfg, nil
}

// filterOptions say which calls the filter of a session notifies.
func filterOptions(c confined, p *policy.Policy, n *netns.Network) seccomp.PlanOptions {
	sockets := p.Governs(policy.GroupUnixSocket)
	o := c.Filter(p, n != nil)
	o.TagRSS = target.TagRSS()
	o.Report, o.Opens, o.NoExecMemfd = true, c.plan.Emulated, len(p.ExecFrom()) > 0
	if c.user.Mapped {
		o.Owner = &seccomp.Owner{UID: c.user.UID, GID: c.user.GID}
	}
	o.Connect, o.Bind, o.SharedNetwork = sockets || n != nil, sockets, n.Shared()
	return o
}

// networkFiles are the files that commands need to use a network.
func networkFiles(n *netns.Network) (view.Files, error) {
	if n == nil {
		return view.Files{}, nil
	}
	f := view.Files{Resolver: n.ResolverFile()}
	if !n.Intercepts() {
		return f, nil
	}
	var err error
	if f.Certificates, err = n.CABundle(); err != nil {
		return view.Files{}, fmt.Errorf("authorities of the session: %w", err)
	}
	return f, nil
}

// fileServerConfig describes the file server of the session.
func (s *Session) fileServerConfig() fileserver.Config {
	c := fileserver.Config{
		Session: s.ID(), Policy: s.cfg.Policy, UID: s.confined.user.UID, GID: s.confined.user.GID, CacheSeconds: s.cfg.Files.CacheSeconds,
		Unmapped: s.confined.missing.Has(probe.MappedFiles),
		Trash:    s.store.trashLimits(), Store: s.store.donations, Emit: s.journal.emit, Ask: s.approvals.Ask,
		Fail:    func(err error) { s.life.end(wire.CauseAudit, err) },
		Command: func(mark uint64) string { return s.loop.command(mark) },
	}
	for _, g := range s.confined.plan.Governed {
		c.Mounts = append(c.Mounts, fileserver.Mount{Path: g.Path, Backing: g.Backing, Dir: g.Dir})
	}
	return c
}

// startLoop answers the session's notifications from now on. The loop owns root.
func (s *Session) startLoop(root *os.File) error {
	var err error
	tracing := s.confined.Tracing()
	s.loop, err = startLoop(notify.Config{
		Rules: s.rules.Load().notify(), Approve: s.approvals.Ask, Emit: s.journal.emitExec, Session: s.ID(), Log: s.cfg.Log,
		Watches:    s.files.WatchedInside,
		Unverified: s.confined.missing.Has(probe.ExecVerify), SharedPIDs: tracing.Shared, TraceAs: tracing.As,
		Network: socketCalls(s), Refusals: s.confined.refusals,
	}, s.init, root, &s.confined, func(err error) { s.life.end(wire.CauseNotifications, err) })
	if err != nil {
		return errors.Join(err, closeRoot(s, root))
	}
	return nil
}

// deniedIn says where the files of denied programs are looked for.
func (s *Session) deniedIn(root *os.File, init int) notify.Root {
	r := notify.Root{Dir: root, Path: strings.Split(s.cfg.Environment.Path, ":"), Own: layout.Library}
	if dir := s.store.path(); dir != "" {
		r.Cache = filepath.Join(dir, "programs")
		r.Mounts = fmt.Sprintf("/proc/%d/mountinfo", s.confined.Observer(init))
	}
	return r
}

// socketCalls say how the notification loop answers calls about sockets.
func socketCalls(s *Session) notify.Network {
	user := s.confined.user
	out := notify.Network{Sockets: s.cfg.Policy.Governs(policy.GroupUnixSocket), UID: user.UID, GID: user.GID}
	switch {
	case s.network != nil:
		out.Connect, out.Shared = s.network.Connect, s.network.Shared()
	case unrouted(s):
		out.Connect = netns.Unrouted(networkConfig(s))
	}
	return out
}

// newEnvironments describe what the environments of all commands have in common.
func newEnvironments(cfg Config, session string, c confined, network []env.Var) *environments {
	return &environments{
		session: session,
		base:    env.Environment{Home: c.plan.Home, User: c.user.Name, Shell: view.Shell, Path: cfg.Environment.Path},
		network: network,
		config:  cfg.Environment.Inject,
		inject:  c.Inject,
		files:   envFiles{dir: cfg.Environment.Dir, governed: cfg.Files.Governed},
	}
}

// watch ends the session when one of its parts dies or a timeout is over.
func (s *Session) watch() {
	limits := s.cfg.Policy.Limits(nil)
	s.life.start(limits.SessionTimeout, limits.IdleTimeout)
	go func() { // ends with the session init at the latest
		select {
		case <-s.files.Dead():
		case <-s.init.Dead():
		}
		s.partEnded()
	}()
}

// helps reports whether people enter by ssh. Their file transfer and their connections
// are commands of this program.
func helps(s policy.SSH) bool {
	return s.Sessions != nil && s.Sessions.On || s.Forwarding != nil && s.Forwarding.On
}
