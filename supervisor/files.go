package supervisor

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
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/view"
)

// serverName is the name under which this program is its own file server.
const serverName = "agentsh-fuse"

// controlName is the file server's name for its control socket.
const controlName = "control"

// stopGrace is how long a file server may take to end by itself.
const stopGrace = 5 * time.Second

// fileServer is the process that serves the governed mounts of a session. It is
// started when the last mount has been made: one process serves them all. A nil
// fileServer serves nothing and never dies.
type fileServer struct {
	session  *Session
	governed []view.Governed
	owner    fuse.Owner
	devices  map[string]*os.File // by tag, until the server has them
	backings map[string]*os.File

	process *launch.Server
	control *fuse.Control
	hung    atomic.Bool // it was killed because it did not answer
}

// startFileServer opens what the governed mounts show.
func (s *Session) startFileServer(list []view.Governed) (*fileServer, error) {
	f := &fileServer{session: s, governed: list, devices: map[string]*os.File{}, backings: map[string]*os.File{}}
	for _, g := range list {
		backing, err := os.OpenFile(g.Backing, unix.O_PATH|unix.O_NOFOLLOW, 0)
		if err != nil {
			f.closeDevices()
			return nil, fmt.Errorf("governed %s: %w", g.Path, err)
		}
		f.backings[g.Path] = backing
		if err := s.holdsNames(g); err != nil {
			f.closeDevices()
			return nil, err
		}
	}
	info, err := os.Stat(list[0].Backing)
	if err != nil {
		f.closeDevices()
		return nil, fmt.Errorf("workspace: %w", err)
	}
	owner := info.Sys().(*syscall.Stat_t)
	f.owner = fuse.Owner{InsideUID: uint32(s.user.UID), InsideGID: uint32(s.user.GID), OutsideUID: owner.Uid, OutsideGID: owner.Gid}
	return f, nil
}

// holdsNames refuses a directory in which names of another case lead to the files
// that rules speak of.
func (s *Session) holdsNames(g view.Governed) error {
	guarded, _ := s.cfg.Policy.GitGuard()
	if !g.Dir || !guarded && s.cfg.Policy.Tree(g.Path, policy.OpAll).Uniform {
		return nil
	}
	folds, err := fuse.Folds(g.Backing)
	switch {
	case errors.Is(err, os.ErrPermission) && unix.Access(g.Backing, unix.X_OK) != nil:
		return nil // nothing in it is reached
	case err != nil:
		return fmt.Errorf("governed %s: %w", g.Path, err)
	case folds:
		return fmt.Errorf(
			"governed %s: names on the filesystem of %s are without case: .GIT would be .git, and a rule about it would not hold; use a "+
				"filesystem with case, or rules that say the same of the whole tree",
			g.Path,
			g.Backing,
		)
	}
	return nil
}

// closeDevices closes this process's descriptors of what the server serves.
func (f *fileServer) closeDevices() {
	for _, files := range []map[string]*os.File{f.devices, f.backings} {
		for _, file := range files {
			file.Close()
		}
	}
}

// serveMount takes the descriptor of one mount from the session's first
// process; with the last one the server starts.
func (s *Session) serveMount(tag string, device *os.File) error {
	f := s.files
	if f == nil || f.backings[tag] == nil || f.devices[tag] != nil {
		device.Close()
		return fmt.Errorf("mount %s was not planned", tag)
	}
	f.devices[tag] = device
	if len(f.devices) < len(f.governed) {
		return nil
	}
	return f.start()
}

// start runs the server process and waits until it serves.
func (f *fileServer) start() error {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("file server: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), controlName), os.NewFile(uintptr(pair[1]), controlName)
	defer theirs.Close()
	donations := []launch.Donation{{Name: controlName, File: theirs}}
	for _, g := range f.governed {
		donations = append(donations,
			launch.Donation{Name: fuse.DeviceName(g.Path), File: f.devices[g.Path]},
			launch.Donation{Name: fuse.BackingName(g.Path), File: f.backings[g.Path]})
	}
	kept, err := f.donateKept()
	if err != nil {
		ours.Close()
		return err
	}
	for _, d := range kept {
		defer d.File.Close()
	}
	donations = append(donations, kept...)
	if err := f.run(donations); err != nil {
		ours.Close()
		return err
	}
	if f.control, err = fuse.NewControl(ours, f.event, f.ask); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := f.control.Configure(ctx, f.config()); err != nil {
		return err
	}
	go f.watch(pulse, patience) // ends with the server
	return nil
}

// A file server is asked every pulse whether it is there, and killed when it has
// not answered for as long as patience: a busy machine is slow, a server that
// hangs holds every command that touches a file.
const (
	pulse    = 5 * time.Second
	patience = 60 * time.Second
)

// watch kills a server that does not answer, which ends the session: its mounts
// answer ENOTCONN then, and nobody waits for them any more.
func (f *fileServer) watch(pulse, patience time.Duration) {
	tick := time.NewTicker(pulse)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-f.process.Dead():
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := f.control.Ping(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			f.hung.Store(true)
			f.process.Kill()
		}
	}
}

// run starts the process, confined to what it is given.
func (f *fileServer) run(donations []launch.Donation) error {
	c, release, err := confinement(donations)
	if err != nil {
		return fmt.Errorf("file server: %w", err)
	}
	defer release()
	f.process, err = launch.StartConfined(serverName, donations, c)
	return err
}

// startTimeout bounds the start of a part of the session.
const startTimeout = 10 * time.Second

func (f *fileServer) config() fuse.Config {
	c := policyFor(f.session.cfg.Policy)
	c.Session, c.Owner, c.Approve, c.Trash = f.session.id, f.owner, true, f.session.trashLimits
	c.Casefold, c.CacheSeconds = fuse.KernelFolds(), f.session.cfg.Files.CacheSeconds
	for _, g := range f.governed {
		c.Mounts = append(c.Mounts, fuse.MountConfig{Tag: g.Path, Path: g.Path})
	}
	return c
}

// policyFor is the part of a file server's configuration that a reload replaces.
func policyFor(p *policy.Policy) fuse.Config {
	c := fuse.Config{Vars: p.Vars()}
	for _, source := range p.Sources() {
		c.Policy = append(c.Policy, wire.PolicySource(source))
	}
	return c
}

// prepare has the server load another policy, which commit puts in place.
func (f *fileServer) prepare(ctx context.Context, p *policy.Policy) error {
	if f == nil {
		return nil
	}
	return f.control.Prepare(ctx, policyFor(p))
}

func (f *fileServer) commit(ctx context.Context) error {
	if f == nil {
		return nil
	}
	return f.control.Commit(ctx)
}

// event records what the server decided. The operation itself was answered
// already; a log that cannot be written ends the session.
func (f *fileServer) event(e wire.Event) {
	e.Command = f.command(e.Process)
	if err := f.session.emit(e); err != nil {
		go f.session.end(fmt.Errorf("audit: %w", err)) // the caller must not wait for the server's end
	}
}

// command is the command that a process belongs to, by the mark that the server
// read, which goes no further.
func (f *fileServer) command(p *wire.Process) string {
	if p == nil || f.session.loop == nil {
		return ""
	}
	mark := p.Mark
	p.Mark = 0
	if mark == 0 {
		return ""
	}
	return f.session.loop.Marked(mark)
}

// ask puts a question of the server to whoever answers those of the session.
func (f *fileServer) ask(ctx context.Context, q wire.Question) wire.Answer {
	q.Command = f.command(q.Process)
	return f.session.approvals.Ask(ctx, q)
}

func (f *fileServer) dead() <-chan struct{} {
	if f == nil || f.process == nil {
		return nil
	}
	return f.process.Dead()
}

func (f *fileServer) cause() error {
	if f == nil {
		return errors.New("no file server")
	}
	if f.hung.Load() {
		return fmt.Errorf("%s did not answer and was killed", serverName)
	}
	return f.process.Err()
}

func (f *fileServer) changes(ctx context.Context) ([]wire.Change, error) {
	if f == nil {
		return nil, nil
	}
	return f.control.Changes(ctx, f.governed[0].Path)
}

func (f *fileServer) invalidate(ctx context.Context, path string) error {
	if f == nil {
		return nil
	}
	return f.control.Invalidate(ctx, path)
}

// begin has the server report events from now on.
func (f *fileServer) begin(ctx context.Context) error {
	if f == nil {
		return nil
	}
	return f.control.SetInit(ctx, f.session.init.PID())
}

// drain waits until the events of everything that happened are in the log.
func (f *fileServer) drain() error {
	if f == nil || f.control == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	return f.control.Drain(ctx)
}

// close ends the server: its control socket first, by force when it hangs.
func (f *fileServer) close() {
	if f == nil || f.process == nil {
		return
	}
	if f.control != nil {
		f.control.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	f.process.Stop(ctx)
}
