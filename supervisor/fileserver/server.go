// Package fileserver starts and controls the file server of a session. That is
// the process agentsh-fuse, which decides operations below the governed paths.
//
// [New] opens the backing directories of the governed paths and starts the process,
// confined to its directories (confine.go). Meanwhile the session init mounts the
// paths one after the other, and passes the FUSE devices to [Server.AddMount]. After
// the last one all mounts are served. [Serve] is the process's main function. Package
// fuse implements the server.
package fileserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/fuse"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/launch"
)

// ProcessName is the program name under which this program runs as file server.
const ProcessName = "agentsh-fuse"

// controlName is the name of the control socket among the donations.
const controlName = "control"

const (
	startTimeout = 10 * time.Second // of the process, once all paths are mounted
	stopTimeout  = 5 * time.Second  // until the process is killed
	thawTimeout  = time.Minute      // for what a rollback has changed, up to 128 MiB of names
)

// Config describes the file server of one session. All functions are called from
// several goroutines.
type Config struct {
	Session      string // its id
	Policy       *policy.Policy
	Mounts       []Mount // at least one; the first is the workspace
	UID, GID     int     // of commands, as they see it
	CacheSeconds int     // how long commands may see old names where nothing can be watched; 0: a second
	Unmapped     bool    // the operator accepts that programs neither map nor execute governed files
	Trash        trash.Limits
	// Store opens the directories for previous content and deleted files.
	Store func() ([]launch.Donation, error)
	// Emit records a decision of the server. The operation already has its
	// answer.
	Emit func(wire.Event) error
	// Ask has a person decide.
	Ask func(context.Context, wire.Question) wire.Answer
	// Command returns the id of the command with a mark, or an empty string.
	Command func(mark uint64) string
	// Fail is called when an event could not be recorded.
	Fail func(error)
}

// Mount is a governed path.
type Mount struct {
	Path    string // inside
	Backing string // outside
	Dir     bool
}

// Server is the process that serves the governed mounts of one session. All
// methods except [Server.AddMount] may be called on nil, which serves no mounts
// and never ends.
type Server struct {
	cfg      Config
	owner    fuse.Owner
	backings map[string]*os.File // by path, until the process has them

	process    *launch.Server
	control    *fuse.Control
	devices    *os.File        // socket over which the process gets them
	mounted    map[string]bool // paths whose device was sent
	configured chan error      // one, when all mounts are served

	replays *replayer   // nil before Begin
	hung    atomic.Bool // it was killed because it did not answer
	closing atomic.Bool // this process closes the control socket
}

// New opens the backing directories of the governed paths and starts the process. Start
// the session init next, then call [Server.CloseDevices].
func New(cfg Config) (*Server, error) {
	s, err := open(cfg)
	if err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		s.CloseDevices()
		s.Close()
		return nil, err
	}
	return s, nil
}

// open opens the backing directories.
func open(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, backings: map[string]*os.File{}, mounted: map[string]bool{}, configured: make(chan error, 1)}
	for _, m := range cfg.Mounts {
		backing, err := os.OpenFile(m.Backing, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			s.CloseDevices()
			return nil, fmt.Errorf("governed %s: %w", m.Path, err)
		}
		s.backings[m.Path] = backing
		if err := checkCase(cfg.Policy, m); err != nil {
			s.CloseDevices()
			return nil, err
		}
	}
	info, err := os.Stat(cfg.Mounts[0].Backing)
	if err != nil {
		s.CloseDevices()
		return nil, fmt.Errorf("workspace: %w", err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	s.owner = fuse.Owner{InsideUID: uint32(cfg.UID), InsideGID: uint32(cfg.GID), OutsideUID: owner.Uid, OutsideGID: owner.Gid,
		User: uint32(os.Geteuid())}
	return s, nil
}

// checkCase rejects a directory that ignores case. There, names in another case
// would lead to files that rules name.
func checkCase(p *policy.Policy, m Mount) error {
	guarded, _ := p.GitGuard()
	if !m.Dir || !guarded && p.Tree(m.Path, policy.OpAll).Uniform {
		return nil
	}
	folds, err := fuse.Folds(m.Backing)
	switch {
	case errors.Is(err, os.ErrPermission) && unix.Access(m.Backing, unix.X_OK) != nil:
		return nil // nothing in it is reached
	case err != nil:
		return fmt.Errorf("governed %s: %w", m.Path, err)
	case folds:
		return fmt.Errorf(
			"governed %s: names on the filesystem of %s are without case: .GIT would be .git, and a rule about it would not hold; use a "+
				"filesystem with case, or rules that say the same of the whole tree",
			m.Path,
			m.Backing,
		)
	}
	return nil
}

// CloseDevices closes this process's copies of the server's descriptors. A process that has
// not got all devices ends.
func (s *Server) CloseDevices() {
	if s == nil {
		return
	}
	for _, file := range s.backings {
		file.Close()
	}
	if s.devices != nil {
		s.devices.Close()
	}
}

// AddMount receives the FUSE device of one governed path from the session init
// and owns it. After the last one it returns when all paths are served.
func (s *Server) AddMount(path string, device *os.File) error {
	defer device.Close()
	if s == nil || s.backings[path] == nil || s.mounted[path] {
		return fmt.Errorf("mount %s was not planned", path)
	}
	s.mounted[path] = true
	sent := fuse.SendDevice(s.devices, path, device)
	if sent == nil && len(s.mounted) < len(s.cfg.Mounts) {
		return nil
	}
	select {
	case err := <-s.configured:
		if err != nil {
			return err
		}
	case <-time.After(startTimeout):
		return fmt.Errorf("file server: it does not serve after %s: %w", startTimeout, errors.Join(sent, context.DeadlineExceeded))
	}
	go s.Watch(pingInterval, pingTimeout) // ends with the process
	go s.endUnheard()                     // ends with the process
	return nil
}

// start runs the server process. It becomes ready while the session init mounts.
func (s *Server) start() error {
	control, theirs, err := socketpair(controlName)
	if err != nil {
		return err
	}
	defer theirs.Close()
	var devices *os.File
	if s.devices, devices, err = socketpair(fuse.DevicesName); err != nil {
		return errors.Join(err, control.Close())
	}
	defer devices.Close()
	donations := []launch.Donation{{Name: controlName, File: theirs}, {Name: fuse.DevicesName, File: devices}}
	for _, m := range s.cfg.Mounts {
		donations = append(donations, launch.Donation{Name: fuse.BackingName(m.Path), File: s.backings[m.Path]})
	}
	stored, err := s.cfg.Store()
	if err != nil {
		return errors.Join(err, control.Close())
	}
	for _, d := range stored {
		defer d.File.Close()
	}
	if s.process, err = run(append(donations, stored...)); err != nil {
		return errors.Join(err, control.Close())
	}
	if s.control, err = fuse.NewControl(control, s.event, s.ask); err != nil {
		return err
	}
	go func() { s.configured <- s.control.Configure(context.Background(), s.config()) }() // ends with the process
	return nil
}

// socketpair returns both ends of a socket of packets.
func socketpair(name string) (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("file server: %w", err)
	}
	return os.NewFile(uintptr(pair[0]), name), os.NewFile(uintptr(pair[1]), name), nil
}

// run starts the process, confined to its donations.
func run(donations []launch.Donation) (*launch.Server, error) {
	c, release, err := confinement(donations)
	if err != nil {
		return nil, fmt.Errorf("file server: %w", err)
	}
	defer release()
	return launch.StartConfined(ProcessName, donations, c)
}

// config is the configuration of the process.
func (s *Server) config() fuse.Config {
	c := policyConfig(s.cfg.Policy)
	c.Session, c.Owner, c.Approve, c.Trash = s.cfg.Session, s.owner, true, s.cfg.Trash
	c.Casefold, c.CacheSeconds, c.Unmapped = fuse.KernelFolds(), s.cfg.CacheSeconds, s.cfg.Unmapped
	for _, m := range s.cfg.Mounts {
		c.Mounts = append(c.Mounts, fuse.MountConfig{Tag: m.Path, Path: m.Path})
	}
	return c
}

// policyConfig is the part of the configuration that a reload replaces.
func policyConfig(p *policy.Policy) fuse.Config {
	c := fuse.Config{Vars: p.Vars()}
	for _, source := range p.Sources() {
		c.Policy = append(c.Policy, wire.PolicySource(source))
	}
	return c
}

// The process is pinged at an interval, and killed when an answer is missing
// after the timeout. A busy machine is slow, but a process that hangs blocks
// every command that touches a file.
const (
	pingInterval = 5 * time.Second
	pingTimeout  = 60 * time.Second
)

// Watch pings the process until it ends, and kills it if an answer is missing.
// The mounts then return ENOTCONN, and no process blocks on them.
func (s *Server) Watch(interval, timeout time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-s.process.Dead():
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		err := s.control.Ping(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			s.hung.Store(true)
			s.process.Kill()
		}
	}
}

// endUnheard kills a process that sent a message that is none. It could still decide,
// but nobody would record it.
func (s *Server) endUnheard() {
	select {
	case <-s.process.Dead():
	case <-s.control.Done():
		if !s.closing.Load() && s.control.Malformed() != nil {
			s.process.Kill()
		}
	}
}

// event records a decision of the server.
func (s *Server) event(e wire.Event) {
	e.Command = s.command(e.Process)
	if err := s.cfg.Emit(e); err != nil {
		go s.cfg.Fail(fmt.Errorf("audit: %w", err)) // the caller must not wait for the server's end
	}
}

// ask has a person decide.
func (s *Server) ask(ctx context.Context, q wire.Question) wire.Answer {
	q.Command = s.command(q.Process)
	return s.cfg.Ask(ctx, q)
}

// command returns the id of the command that a process belongs to. It finds it
// by the mark, and removes the mark, because only the supervisor uses it.
func (s *Server) command(p *wire.Process) string {
	if p == nil || p.Mark == 0 {
		return ""
	}
	mark := p.Mark
	p.Mark = 0
	return s.cfg.Command(mark)
}

// Begin makes the server report events from now on. init is the process number
// of the session init.
func (s *Server) Begin(ctx context.Context, init int) error {
	if s == nil {
		return nil
	}
	s.replays = openReplayer(init, s.cfg.Mounts)
	return s.control.SetInit(ctx, init)
}

// PID returns the process number, or 0 if there is no process.
func (s *Server) PID() int {
	if s == nil || s.process == nil {
		return 0
	}
	return s.process.PID()
}

// Dead is closed when the process has ended. It is nil without a process.
func (s *Server) Dead() <-chan struct{} {
	if s == nil || s.process == nil {
		return nil
	}
	return s.process.Dead()
}

// Cause is the cause of the end of the process, for the end of its session.
func (s *Server) Cause() wire.Cause {
	switch {
	case s == nil || s.control == nil:
		return wire.CauseFileServer
	case s.hung.Load():
		return wire.CauseFileServerHung
	case s.control.Malformed() != nil:
		return wire.CauseMessage
	}
	return wire.CauseFileServer
}

// Err returns why the process has ended.
func (s *Server) Err() error {
	if s == nil {
		return errNone
	}
	if s.hung.Load() {
		return fmt.Errorf("%s did not answer and was killed", ProcessName)
	}
	if s.control != nil {
		if err := s.control.Malformed(); err != nil {
			return fmt.Errorf("%s: %w", ProcessName, err)
		}
	}
	return s.process.Err()
}

// Drain waits until the events of everything that happened are recorded.
func (s *Server) Drain() error {
	if s == nil || s.control == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	return s.control.Drain(ctx)
}

// Close ends the process. It closes the control socket, and kills the process
// if it does not end.
func (s *Server) Close() {
	if s == nil || s.process == nil {
		return
	}
	s.closing.Store(true)
	if s.control != nil {
		s.control.Close()
	}
	s.replays.close()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	s.process.Stop(ctx)
}
