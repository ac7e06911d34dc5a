// Package supervisor runs commands under a policy. A [Session] is a set of
// processes with a filter, a view of files, a file server and a network of their
// own. [Session.Exec] runs one command in it.
//
// The flow is in four files, each read from the top: [Open] (open.go),
// [Session.Exec] (exec.go), [Session.Reload] (reload.go) and [Session.Close]
// (session.go). They call the parts, which do not call back:
//
//   - command.go decides what a request runs, by lookup.go, rules.go and env.go;
//   - running.go follows a started command;
//   - journal.go writes events, lifetime.go counts commands and ends the session;
//   - state.go, store.go, group.go, limits.go and loop.go each own one resource.
//
// Packages below do the rest: view (mounts, Landlock), fileserver, netns, streams,
// notify and launch.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"

	"agentsh/internal/tarfs"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp"
	"agentsh/supervisor/approve"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/fileserver"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/listing"
	"agentsh/supervisor/netns"
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
	AsOwner     bool            // without a file server commands run as the owner of the workspace: see [view.User.AsOwner]
	Forbidden   []probe.Setting // engines that it may not use: see [Engines]
	Program     bool            // this program is shown inside, at [layout.Program]
	Channel     bool            // approvals can be answered over a channel: see [Session.Approvals]
	Audit       *audit.Log
	Log         *slog.Logger
}

// Files are the directories of a session and the store for what it deletes.
type Files struct {
	Governed []wire.Governed // directories under file policy; the first is the workspace
	Hidden   []string        // files that commands never see
	Store    string          // directory for deleted files and checkpoints; empty: nothing is stored
	Trash    trash.Limits    // of all sessions of that store together; zero: [trash.DefaultLimits]
	// CacheSeconds is how long commands may see old names and attributes in
	// directories that cannot be watched; 0: a second.
	CacheSeconds int
	// Listed makes a change record where there is no file server, by comparing lists of the
	// files in the only governed directory.
	Listed bool
}

// Environment is what the operator sets in the environment of commands.
type Environment struct {
	Inject map[string]string // env_inject of the configuration
	Dir    string            // directory of .env files, inside; empty: none
	Home   string            // HOME of commands, inside
	Path   string            // PATH of commands; programs are looked up there
	// Identity is what git has as user.name and user.email, unless a repository or an
	// environment has others.
	Identity wire.Identity
}

// Network is the network of a session.
type Network struct {
	Shared bool              // share the caller's network instead of a network namespace
	By     string            // who decides about the shared network, and not the policy; empty: nobody else
	Vars   map[string]string // of that network: a proxy and its certificates
	Egress netns.Outside     // used when the policy governs the network
}

// Session runs commands. It is safe for concurrent use; Close ends it.
type Session struct {
	cfg      Config
	confined confined
	state    *state
	store    *store         // nil: nothing is stored
	groups   *controlGroups // nil: no limit needs them
	env      *environments

	files   *fileserver.Server // nil: nothing is governed
	network *netns.Network     // nil: the policy does not govern it
	init    *launch.Init
	loop    *loop

	rules      rulesInForce
	approvals  *approve.Queue
	journal    *journal
	life       lifetime
	restricted atomic.Bool // see [Session.Confine]
}

// confined is how the commands of a session are kept apart from the machine.
type confined struct {
	view.Confinement
	missing   probe.Missing // mechanisms, as degraded allows
	requested probe.Session // what its requirements were asked of
	user      view.User
	plan      *view.Plan      // what commands see
	signals   seccomp.Signals // that the filter notifies
	refusals  seccomp.Table   // calls that the filter notifies to have them refused
	beside    *Beside         // nil: no listener of another supervisor is above
	listed    *listing.Record // changes of the governed directory; nil: the file server has them, or nobody
}

// ID is the session's id in the audit log.
func (s *Session) ID() string { return s.journal.session }

// Config is what the session was opened with.
func (s *Session) Config() Config { return s.cfg }

// Missing are the mechanisms that the session runs without.
func (s *Session) Missing() probe.Missing { return s.confined.missing }

// Engine is the name of what stops the calls of commands: one of [Engines].
func (s *Session) Engine() string { return s.loop.engine }

// Beside is what another supervisor's listener takes from this session; nil: there is none.
func (s *Session) Beside() *Beside { return s.confined.beside }

// Approvals are the questions of this session that wait for a person.
func (s *Session) Approvals() *approve.Queue { return s.approvals }

// Files is the session's file server; nil: nothing is governed.
func (s *Session) Files() *fileserver.Server { return s.files }

// Network is the session's network; nil: the policy does not govern it.
func (s *Session) Network() *netns.Network { return s.network }

// Dead is closed when the session init has ended.
func (s *Session) Dead() <-chan struct{} { return s.init.Dead() }

// Processes are the numbers of the processes that end with the session: the
// session init, and the file server if there is one.
func (s *Session) Processes() []int {
	out := []int{s.init.PID()}
	if pid := s.files.PID(); pid != 0 {
		out = append(out, pid)
	}
	return out
}

// Refused lists what the session init tried in vain after it had restricted
// itself.
func (s *Session) Refused() []string {
	var out []string
	for _, proof := range s.init.Refused() {
		out = append(out, proof.What)
	}
	return out
}

// SharesNetwork reports whether commands use the machine's network.
func (s *Session) SharesNetwork() bool { return s.confined.SharesNetwork() }

// Directory is a directory that commands work in.
type Directory struct {
	Path    string       // inside
	Outside string       // where the supervisor reaches it
	Owner   *tarfs.Owner // of what is written there; nil: that of the directory
}

// Directories are the governed directories, and those of the session alone.
func (s *Session) Directories() []Directory {
	var out []Directory
	for _, g := range s.cfg.Files.Governed {
		out = append(out, Directory{Path: g.Path, Outside: g.Backing})
	}
	root := s.confined.Root(s.init.PID())
	for _, dir := range s.confined.plan.Private {
		out = append(out, Directory{Path: dir, Outside: filepath.Join(root, dir), Owner: s.confined.user.Owner()})
	}
	return out
}

// CheckWrite refuses to write a file inside that would have no effect: an
// environment file after the first command has been started.
func (s *Session) CheckWrite(name string) error { return s.env.files.checkWrite(name) }

// Written has commands see what was written behind the mounts of paths inside.
func (s *Session) Written(paths []string) {
	shown := make([]string, 0, len(paths))
	for _, p := range paths {
		if view.Below(p, s.confined.plan.Private...) {
			continue // a tmpfs hides nothing from anybody
		}
		shown = append(shown, p)
		if err := s.confined.accept(s.cfg.Files.Governed, p); err != nil {
			s.life.end(wire.CauseFileServer, err)
			return
		}
	}
	if err := s.files.Invalidate(context.Background(), shown...); err != nil {
		s.life.end(wire.CauseFileServer, fmt.Errorf("drop cached content: %w", err))
	}
}

// Changes is the change record of the governed directories.
func (s *Session) Changes(ctx context.Context) ([]wire.Change, error) {
	if s.confined.listed != nil {
		return s.confined.listed.Changes()
	}
	if why := s.confined.missing[probe.FileServer]; why != nil {
		return nil, fmt.Errorf("change record: the session is without a file server: %w", why)
	}
	return s.files.Changes(ctx)
}

// openList begins the change record of a session without a file server, if it has one.
func (c *confined) openList(files Files) (err error) {
	if files.Listed && c.missing.Has(probe.FileServer) && len(files.Governed) == 1 {
		c.listed, err = listing.Open(files.Governed[0].Backing)
	}
	return err
}

// accept takes what is at a path inside for unchanged.
func (c *confined) accept(governed []wire.Governed, name string) error {
	if c.listed == nil || !view.Below(name, governed[0].Path) {
		return nil
	}
	rel, err := filepath.Rel(governed[0].Path, name)
	if err != nil {
		return err
	}
	return c.listed.Accept(rel)
}

// Close kills every command, ends the file server and removes what the session
// made. It returns what could not be ended or written.
func (s *Session) Close() error {
	s.life.stop()
	var errs []error
	if s.init != nil {
		errs = append(errs, s.init.Close())
	}
	s.approvals.Close()
	s.life.wait()
	errs = append(errs, s.network.Close())
	why := s.life.why()
	if s.loop != nil {
		s.loop.end()
		_ = s.rules.Load().ready() // it uses the loop's root; [Open] has returned its error
		errs = append(errs, s.files.Drain(), s.loop.close())
	}
	var changes changeParts
	if s.files.Running() {
		changes = s.files.ChangeParts
	}
	errs = append(errs, s.store.close(changes, s.cfg.Log.With("session", s.ID())))
	s.files.Close()
	if s.loop != nil {
		errs = append(errs, s.journal.end(why)) // the last event: the change record finds edits of the host
	}
	errs = append(errs, s.confined.listed.Close())
	return errors.Join(append(errs, s.groups.close(), s.state.remove())...)
}
