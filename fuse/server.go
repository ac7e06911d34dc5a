package fuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/fuse/follow"
	"agentsh/fuse/locks"
	"agentsh/internal/snapshot"
	"agentsh/internal/trash"
	"agentsh/internal/wire"
	"agentsh/policy"
)

// server is the file server of one session.
type server struct {
	ch      *channel
	donated map[string]*os.File
	mounts  []*mount
	rules   *current
	next    Rules // prepared, not yet committed; nil: none
	trash   *trash.Trash
	resolve resolver
	report  *reporter
	asks    *approvals
	people  questions
	frozen  bool          // for a checkpoint: every tree.Moves is locked
	written []wire.Change // parts of the changes that unfreeze has received
	events  sync.WaitGroup
	// reserved waits for what the process must have before a command runs.
	reserved func()
}

// Run serves the governed mounts of one session until the control socket closes or ctx
// is done. It takes over all descriptors. The process must end when Run returns: its
// descriptors keep the mounts alive, and goroutines that wait for the kernel cannot be
// interrupted. Run changes the umask and the limit of open files of the process. Commands
// run after [Control.SetInit], which waits for reserved.
func Run(ctx context.Context, control *os.File, donated map[string]*os.File, reserved func()) error {
	ch, err := newChannel(control)
	if err != nil {
		return err
	}
	defer ch.close()
	unix.Umask(0) // modes arrive with the caller's umask applied
	raiseOpenFiles()
	if err := locks.Prepare(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { ch.close() })
	defer stop()
	s := &server{ch: ch, donated: donated, people: questions{ch: ch, open: map[uint64]chan wire.Answer{}}, reserved: reserved}
	reports, endReports := context.WithCancel(context.WithoutCancel(ctx))
	defer s.events.Wait()
	defer endReports()
	for {
		var r request
		if err := ch.receive(&r); err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) || ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("control socket: %w", err)
		}
		if r.Answer != nil {
			s.people.answer(r.Answer)
			continue
		}
		if r.Seen != 0 {
			if s.report != nil {
				s.report.recorded(r.Seen)
			}
			continue
		}
		answer := reply{ID: r.ID}
		forget, err := s.handle(reports, r)
		if errors.Is(err, errNoDevices) {
			return nil
		}
		if err != nil {
			answer.Error = err.Error()
		}
		if forget != nil {
			go func() { // ends with the process: the kernel may wait for an approval
				forget()
				_ = ch.send(answer) // a broken socket ends the loop
			}()
			continue
		}
		if err := ch.send(answer); err != nil {
			return fmt.Errorf("control socket: %w", err)
		}
		if r.Configure != nil && answer.Error != "" {
			return errors.New(answer.Error)
		}
	}
}

// raiseOpenFiles raises the soft limit to the hard limit. Every file that a command
// has open is also open here.
func raiseOpenFiles() {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &lim) == nil && lim.Cur < lim.Max {
		lim.Cur = lim.Max
		_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &lim) // if it fails, programs get EMFILE earlier
	}
}

// handle executes a request. If forget is not nil, the caller runs it before it sends
// the reply. It must not run in the goroutine that receives approvals. The kernel
// drops a name only while no entry is created or removed in that directory, and such
// an operation may wait for an approval.
func (s *server) handle(ctx context.Context, r request) (forget func(), err error) {
	switch {
	case len(s.mounts) == 0 || r.Configure != nil:
	case r.Unfreeze != nil:
		return s.unfreeze(r.Unfreeze)
	case len(r.Forget) > 0:
		return s.invalidate(r.Forget)
	case r.Restore != nil && !s.frozen:
		return s.restore(r.Restore)
	case r.Commit && !s.frozen:
		return s.commit()
	}
	return nil, s.handleAtOnce(ctx, r)
}

// handleAtOnce executes requests that wait for nothing.
func (s *server) handleAtOnce(ctx context.Context, r request) error {
	switch {
	case r.Configure != nil:
		return s.configure(ctx, r.Configure)
	case len(s.mounts) == 0:
		return errors.New("not configured")
	case s.frozen && !r.Drain && !r.Ping:
		return errors.New("the files are frozen for a checkpoint: try again")
	case r.Freeze:
		s.freeze()
		return nil
	case r.Prepare != nil:
		return s.prepare(r.Prepare)
	case r.Changes != "":
		return s.changes(r.ID, r.Changes)
	case r.Baseline:
		for _, m := range s.mounts {
			m.baseline()
		}
		return nil
	case len(r.Purge) > 0:
		return s.purge(r.Purge)
	case r.Init != 0:
		s.reserved()
		s.resolve.setInit(r.Init)
		s.report.begin()
		return nil
	case r.Ping:
		return nil
	case r.Replayer != nil:
		for _, m := range s.mounts {
			m.replays.begin(*r.Replayer, func(step Replay) { _ = s.ch.send(reply{Replay: &step}) }) // a broken socket ends the receiving side
		}
		return nil
	case r.Drain:
		s.report.drain(ctx)
		return nil
	}
	return errors.New("unknown request")
}

func (s *server) configure(ctx context.Context, c *Config) error {
	if len(s.mounts) > 0 {
		return errors.New("configured already")
	}
	if err := c.check(); err != nil {
		return err
	}
	rules, err := c.load()
	if err != nil {
		return err
	}
	if dir := s.donated[TrashName]; dir != nil {
		delete(s.donated, TrashName)
		if s.trash, err = trash.Open(dir, c.Trash, c.Session); err != nil {
			return err
		}
	}
	var old *previous
	if dir := s.donated[PreviousName]; dir != nil {
		delete(s.donated, PreviousName)
		kept, err := snapshot.OpenPrevious(dir)
		if err != nil {
			return err
		}
		old = &previous{store: kept}
	}
	if err := supported(rules, s.trash != nil); err != nil {
		return err
	}
	s.rules = newCurrent(rules)
	s.report = newReporter(c.Session, &s.resolve, func(e wire.Event, number uint64) {
		_ = s.ch.send(reply{Event: &e, Number: number}) // a broken socket ends the receiving side
	})
	s.asks = newApprovals(nil)
	if c.Approve {
		s.asks.put = s.people.put
	}
	shared := shared{
		config: c, rules: s.rules, reporter: s.report, approvals: s.asks, trash: s.trash, mountAt: s.mountOf,
		follower: follow.New(c.WatchedDirectories, older.noEventReader), lockWaits: locks.NewWaits(),
	}
	if err := s.receiveDevices(c.Mounts); err != nil {
		return err
	}
	for _, mc := range c.Mounts {
		m, err := s.open(mc, shared)
		if err != nil {
			return err
		}
		if len(s.mounts) == 0 {
			m.files.previous = old
		}
		s.mounts = append(s.mounts, m)
	}
	for _, m := range s.mounts {
		m.repos.roots = s.directories()
	}
	if err := s.checkRedirects(rules); err != nil {
		return err
	}
	if len(s.donated) > 0 {
		return fmt.Errorf("descriptors without a mount: %s", strings.Join(names(s.donated), ", "))
	}
	s.events.Go(func() { s.report.run(ctx) })
	for _, m := range s.mounts {
		go m.kernel.Serve() // ends with the mount or the process
	}
	return nil
}

func names(files map[string]*os.File) []string {
	var out []string
	for name := range files {
		out = append(out, name)
	}
	return out
}

// directories returns the paths of the governed directories.
func (s *server) directories() []string {
	var out []string
	for _, m := range s.mounts {
		if m.files.backing.Dir {
			out = append(out, m.files.path)
		}
	}
	return out
}

// open prepares one mount and waits for the kernel's first request.
func (s *server) open(mc MountConfig, sh shared) (*mount, error) {
	dev, back := s.donated[DeviceName(mc.Tag)], s.donated[BackingName(mc.Tag)]
	if dev == nil || back == nil {
		return nil, fmt.Errorf("mount %s: no descriptors named %s and %s", mc.Path, DeviceName(mc.Tag), BackingName(mc.Tag))
	}
	delete(s.donated, DeviceName(mc.Tag))
	delete(s.donated, BackingName(mc.Tag))
	m, err := newMount(mc, sh, back)
	if err != nil {
		dev.Close()
		return nil, err
	}
	return m, m.attach(dev)
}

// changesPart returns how many of the changes, at least one, fit in one message. In
// JSON a byte of a name takes up to six bytes.
func changesPart(list []wire.Change) int {
	const most = 2000
	bytes := 0
	for n, c := range list {
		bytes += 6*(len(c.Path)+len(c.From)) + 256
		if n > 0 && (n == most || bytes > messageBytes/2) {
			return n
		}
	}
	return len(list)
}

// workInterval is the time between two messages that the server still works.
const workInterval = time.Second

// changes sends the change record of a mount in parts.
func (s *server) changes(id uint64, tag string) error {
	for _, m := range s.mounts {
		if m.tag != tag {
			continue
		}
		said := time.Now()
		list, err := m.listChanges(func() {
			if time.Since(said) >= workInterval {
				said = time.Now()
				_ = s.ch.send(reply{ID: id, More: true}) // a broken socket fails below
			}
		})
		if err != nil {
			return err
		}
		for len(list) > 0 {
			n := changesPart(list)
			part := reply{ID: id, More: true}
			part.Changes = list[:n]
			if err := s.ch.send(part); err != nil {
				return err
			}
			list = list[n:]
		}
		return nil
	}
	return fmt.Errorf("no mount is called %q", tag)
}

// invalidate finds the mounts of paths, and the cached nodes at and below them, for
// [server.handle].
func (s *server) invalidate(paths []wire.Name) (forget func(), err error) {
	written := map[*mount][]string{}
	for _, p := range paths {
		m := s.mountOf(string(p))
		if m == nil {
			return nil, fmt.Errorf("%s is in no governed mount", shown(string(p)))
		}
		written[m] = append(written[m], strings.Trim(string(p)[len(m.files.path):], "/"))
	}
	for m, names := range written {
		m.files.edits.Wrote(names...)
	}
	return func() {
		for m, names := range written {
			for _, rel := range names {
				m.kernel.invalidate(rel)
			}
		}
	}, nil
}

// mountOf returns the innermost mount that contains a path inside the sandbox.
func (s *server) mountOf(path string) *mount {
	var best *mount
	for _, m := range s.mounts {
		if (path == m.files.path || strings.HasPrefix(path, strings.TrimSuffix(m.files.path, "/")+"/")) &&
			(best == nil || len(m.files.path) > len(best.files.path)) {
			best = m
		}
	}
	return best
}

var _ Rules = (*policy.Policy)(nil)

// freeze blocks every operation by path in all mounts. Open files can still be read
// and written.
func (s *server) freeze() {
	for _, m := range s.mounts {
		m.tree.Moves.Lock()
		m.nodes.recordOpenWrites()
	}
	s.frozen = true
}

// unfreeze ends a freeze. It adds the changes made meanwhile to the change record and
// makes the kernel drop its caches.
func (s *server) unfreeze(r *unfreeze) (forget func(), err error) {
	if !s.frozen {
		return nil, errors.New("the files are not frozen")
	}
	s.written = append(s.written, r.Changes...)
	if r.More {
		return nil, nil
	}
	list := s.written
	s.frozen, s.written = false, nil
	var written *mount
	for _, m := range s.mounts {
		if m.tag == r.Tag && len(list) > 0 {
			written = m
			m.replay(list)
		}
		m.tree.Moves.Unlock()
	}
	if written == nil {
		return nil, nil
	}
	return func() {
		written.kernel.invalidate("")
		for _, c := range list { // names that the kernel caches as absent have no nodes
			written.kernel.invalidate(string(c.Path))
		}
	}, nil
}

// replay records changes that another process made to the backing, in their order.
func (m *mount) replay(list []wire.Change) {
	for _, c := range list {
		switch c.Kind {
		case wire.Created:
			m.files.created(string(c.Path))
		case wire.Modified:
			m.files.modified(string(c.Path))
		case wire.Deleted:
			m.files.deleted(string(c.Path))
		}
		m.files.edits.Wrote(string(c.Path))
	}
}
