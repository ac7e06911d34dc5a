// Package place makes sandboxes on this machine for controllers elsewhere. A controller
// starts [Serve] over any stream, such as that of ssh. Serve makes the directory of a
// sandbox, starts its supervisor in the background and copies bytes between the stream
// and the supervisor. [ServeSandbox] is that supervisor. It removes the directory when
// it ends.
//
// Nothing outlives a controller: the supervisor ends with the connection, or when it had no
// stream for its lease. If it was killed, Serve removes the directory. If both were killed,
// the next Serve of this user does.
package place

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/channel"
	"agentsh/internal/lazy"
	"agentsh/internal/listen"
	"agentsh/internal/resume"
	"agentsh/internal/socket"
	"agentsh/internal/statedir"
	"agentsh/internal/stdio"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
	"agentsh/supervisor/host"
	"agentsh/supervisor/launch"
)

// Options configure [Serve].
type Options struct {
	State    statedir.Dir
	Build    string
	Config   string    // configuration file of the supervisor; empty: its default
	Messages io.Writer // gets the messages of the supervisor
	Hidden   []string  // files that commands in sandboxes never see
}

// Stream is the stream of a controller.
type Stream interface {
	io.ReadWriteCloser
	SetReadDeadline(t time.Time) error
}

// requestWait is the time for a controller to send its request. It begins when Serve
// has announced itself.
const requestWait = time.Minute

// ServeListener answers the controllers that connect to a listener until ctx ends. The
// sandboxes then go on until their leases end.
func ServeListener(ctx context.Context, l *socket.Listener, o Options) error {
	return l.Serve(ctx, func(ctx context.Context, c *socket.Conn) {
		own := o
		own.Messages = c.Messages()
		if err := answer(ctx, c, own); err != nil {
			_, _ = io.WriteString(own.Messages, "agentsh: "+err.Error()+"\n") // a controller that has gone reads nothing
		}
	})
}

// Serve answers one controller on a stream until the end of its sandbox. It closes the
// stream.
func Serve(ctx context.Context, s Stream, o Options) error {
	defer s.Close()
	return answer(ctx, s, o)
}

func answer(ctx context.Context, s Stream, o Options) error {
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := stdio.Write(s, wire.PlaceHello{Version: wire.Current, Build: o.Build}); err != nil {
		return fmt.Errorf("announce the supervisor: %w", err)
	}
	req, err := receive(s)
	if err != nil {
		return fmt.Errorf("request of the controller: %w", err)
	}
	p := &places{Options: o, dir: filepath.Join(filepath.Dir(o.State.Sandboxes()), dirName)}
	if err := p.open(req); err != nil {
		if req.Op == wire.PlaceCollect {
			return err
		}
		return refuse(s, err)
	}
	switch req.Op {
	case wire.PlaceServe:
		return p.serve(s, req)
	case wire.PlaceAttach:
		return p.attach(s, req)
	}
	done, err := p.collect(ctx, req)
	if err != nil {
		return err
	}
	return stdio.Write(s, done)
}

// open checks a request and makes the directory of sandboxes.
func (p *places) open(req wire.PlaceRequest) error {
	switch {
	case req.Version.Major != wire.Current.Major:
		return fmt.Errorf("request of the controller: version %d: this build speaks %d", req.Version.Major, wire.Current.Major)
	case !slices.Contains([]string{wire.PlaceServe, wire.PlaceAttach, wire.PlaceCollect}, req.Op):
		return fmt.Errorf("request of the controller: unknown operation %.64q: install the same release on both sides", req.Op)
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("directory of sandboxes: %w", err)
	}
	return nil
}

// receive reads the request, which must arrive in time.
func receive(s Stream) (req wire.PlaceRequest, err error) {
	if err := s.SetReadDeadline(time.Now().Add(requestWait)); err != nil {
		return req, err
	}
	err = stdio.Read(s, &req, wire.MaxPlaceRequest)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("none within %s", requestWait)
	}
	if err != nil {
		return req, err
	}
	return req, s.SetReadDeadline(time.Time{})
}

// dirName is the directory of the sandboxes in the state directory.
const dirName = "remote"

// places are the sandboxes of this user for controllers elsewhere.
type places struct {
	Options
	dir string
}

// names matches valid names of sandboxes and owners.
var names = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

// sandbox is the directory of one sandbox.
type sandbox struct {
	dir    string
	lease  *os.File // locked while a process is responsible for the directory
	labels wire.PlaceLabels
}

const (
	leaseName  = "lease"
	labelsName = "labels.json"
	logName    = "supervisor.log"
)

// make makes the directory of a sandbox, and locks its lease.
func (p *places) make(req wire.PlaceRequest) (_ *sandbox, err error) {
	for _, name := range []string{req.ID, req.Owner} {
		if !names().MatchString(name) {
			return nil, fmt.Errorf("sandbox or owner %.100q: letters, digits and dashes only", name)
		}
	}
	if req.Bootstrap == nil || req.Bootstrap.Resume == nil {
		return nil, errors.New("the request has no bootstrap, or no lease")
	}
	if err := statedir.CheckRoom(p.dir, req.NeedBytes); err != nil {
		return nil, err
	}
	unlock, err := p.State.Lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	p.sweep()
	b := &sandbox{dir: filepath.Join(p.dir, req.ID)}
	if err := os.Mkdir(b.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make sandbox: %w", err)
	}
	b.labels = wire.PlaceLabels{
		Version: 1, ID: req.ID, Owner: req.Owner, Created: time.Now().UTC(), LeaseSeconds: req.Bootstrap.Resume.Seconds,
	}
	b.lease, err = statedir.TakeLock(filepath.Join(b.dir, leaseName), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		err = errors.Join(
			os.Mkdir(filepath.Join(b.dir, "tree"), 0o755), os.Mkdir(filepath.Join(b.dir, "export"), 0o700), b.write())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make sandbox: %w", err), b.remove())
	}
	return b, nil
}

// sweep removes the directories for which no process is responsible. The state
// directory is locked.
func (p *places) sweep() {
	for _, b := range p.all() {
		if strings.HasPrefix(b.labels.ID, goneName) {
			_ = statedir.RemoveTree(b.dir)
		} else if b.lock() == nil {
			_ = b.remove() // the next one tries again
		}
	}
}

// all are the sandboxes that there are.
func (p *places) all() []*sandbox {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil
	}
	var out []*sandbox
	for _, e := range entries {
		b := &sandbox{dir: filepath.Join(p.dir, e.Name())}
		data, err := os.ReadFile(filepath.Join(b.dir, labelsName))
		if err == nil {
			err = json.Unmarshal(data, &b.labels)
		}
		if err != nil { // a crash left it incomplete
			b.labels = wire.PlaceLabels{}
		}
		b.labels.ID = e.Name()
		out = append(out, b)
	}
	return out
}

// lock locks the lease if no process has locked it.
func (b *sandbox) lock() (err error) {
	b.lease, err = statedir.TakeLock(filepath.Join(b.dir, leaseName), unix.LOCK_EX|unix.LOCK_NB)
	return err
}

// goneName begins the names of directories that are being removed. No sandbox has it.
const goneName = ".gone-"

// remove removes the directory and releases the lease. Others do not find it meanwhile.
func (b *sandbox) remove() error {
	gone := filepath.Join(filepath.Dir(b.dir), goneName+filepath.Base(b.dir))
	err := os.Rename(b.dir, gone)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // it is already removed
	}
	err = errors.Join(err, statedir.RemoveTree(gone))
	if b.lease != nil {
		err = errors.Join(err, b.lease.Close())
		b.lease = nil
	}
	return err
}

func (b *sandbox) write() error {
	return statedir.WriteJSON(filepath.Join(b.dir, labelsName), b.labels)
}

// Descriptors that the supervisor of a sandbox is started with.
const (
	donatedBoot   = "bootstrap"
	donatedStream = "stream"
	donatedLease  = "lease"
)

// serve makes a sandbox and connects the stream to it.
func (p *places) serve(s Stream, req wire.PlaceRequest) error {
	b, err := p.make(req)
	if err != nil {
		return refuse(s, err)
	}
	f, err := b.follow()
	if err != nil {
		return refuse(s, errors.Join(err, b.remove()))
	}
	defer f.close()
	conn, server, err := p.start(b, *req.Bootstrap, f.messages)
	if err != nil {
		return refuse(s, errors.Join(fmt.Errorf("start supervisor: %w", err), b.remove()))
	}
	err = b.lease.Close() // the supervisor has it
	b.lease = nil
	// An error of the stream ends the copy below. The controller then attaches.
	_ = stdio.Write(s, wire.PlaceAttached{})
	if copyBoth(s, conn) {
		return errors.Join(err, p.ended(f, b, server))
	}
	return err
}

// refuse tells the controller why there is no sandbox.
func refuse(s Stream, err error) error {
	return errors.Join(err, stdio.Write(s, wire.PlaceAttached{Error: err.Error()}))
}

// attach connects a further stream to a sandbox.
func (p *places) attach(s Stream, req wire.PlaceRequest) error {
	f, conn, err := p.find(req)
	if err != nil {
		return refuse(s, err)
	}
	defer f.close()
	if err := stdio.Write(s, wire.PlaceAttached{}); err != nil {
		return errors.Join(err, conn.Close())
	}
	if copyBoth(s, conn) {
		return p.ended(f, f.sandbox, nil)
	}
	return nil
}

// find connects to the supervisor of a sandbox.
func (p *places) find(req wire.PlaceRequest) (*follower, net.Conn, error) {
	if names().MatchString(req.ID) {
		for _, b := range p.all() {
			if b.labels.ID != req.ID || b.labels.Owner != req.Owner {
				continue
			}
			f, err := b.follow()
			if err != nil {
				break
			}
			conn, err := b.dial()
			if err != nil {
				f.close()
				return nil, nil, fmt.Errorf("sandbox %s has no supervisor: %w", req.ID, err)
			}
			return f, conn, nil
		}
	}
	return nil, nil, fmt.Errorf("there is no sandbox %.64q: it has ended", req.ID)
}

// copyBoth copies bytes between a stream and a connection to a supervisor, until one of
// them ends. It closes both. It returns true if the supervisor ended the connection.
func copyBoth(s Stream, conn io.ReadWriteCloser) (ended bool) {
	var broken atomic.Bool
	var copied sync.WaitGroup
	copied.Go(func() {
		_, err := io.Copy(conn, s)
		broken.Store(err == nil || !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.EPIPE))
		_ = conn.Close()
	})
	to := &remembering{Writer: s}
	_, _ = io.Copy(to, conn) // each end tells its error itself
	ended = !broken.Load() && to.err == nil
	_ = conn.Close()
	_ = s.SetReadDeadline(time.Unix(1, 0)) // ends the copy above; the stream still gets the messages
	copied.Wait()
	return ended
}

// remembering is a writer that stores its error.
type remembering struct {
	io.Writer
	err error
}

func (r *remembering) Write(p []byte) (int, error) {
	n, err := r.Writer.Write(p)
	r.err = err
	return n, err
}

// follower has the files of a sandbox that are needed after its end.
type follower struct {
	sandbox  *sandbox
	messages *os.File // of the supervisor
	lease    *os.File // can be locked when the supervisor has ended
}

func (b *sandbox) follow() (*follower, error) {
	messages, err := os.OpenFile(filepath.Join(b.dir, logName), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	lease, err := os.Open(filepath.Join(b.dir, leaseName))
	if err != nil {
		return nil, errors.Join(err, messages.Close())
	}
	return &follower{b, messages, lease}, nil
}

func (f *follower) close() {
	_ = f.messages.Close()
	_ = f.lease.Close()
}

// ended waits for the end of a supervisor and passes its messages on. It removes the
// sandbox of one that was killed. server may be nil.
func (p *places) ended(f *follower, b *sandbox, server *launch.Server) error {
	free := make(chan error, 1)
	go func() { free <- unix.Flock(int(f.lease.Fd()), unix.LOCK_SH) }() // ends with the supervisor or with this process
	limit := time.NewTimer(endWait)
	defer limit.Stop()
	select {
	case err := <-free:
		if err != nil {
			return fmt.Errorf("wait for the supervisor: %w", err)
		}
	case <-limit.C:
		if server != nil {
			server.Kill()
		}
		return fmt.Errorf("the supervisor does not end within %s", endWait)
	}
	if said, err := io.ReadAll(io.NewSectionReader(f.messages, 0, maxMessages)); err == nil {
		_, _ = p.Messages.Write(said) // a controller that has gone reads nothing
	}
	if _, err := os.Lstat(b.dir); err == nil {
		return errors.Join(errors.New("the supervisor was killed"), b.remove())
	}
	return nil
}

// maxMessages is how much of the supervisor's messages a controller gets, in bytes.
const maxMessages = 64 << 10

// endWait is the time for a supervisor to end its session and to remove its files.
const endWait = time.Minute

// start starts the supervisor of a sandbox. It gets the lease.
func (p *places) start(b *sandbox, boot wire.Bootstrap, messages *os.File) (_ net.Conn, _ *launch.Server, err error) {
	if len(boot.Governed) != 1 {
		return nil, nil, fmt.Errorf("%d governed directories, not one", len(boot.Governed))
	}
	boot.Governed[0].Backing = filepath.Join(b.dir, "tree")
	boot.AuditPath, boot.AuditKey = filepath.Join(b.dir, "audit.jsonl"), ""
	boot.StoreDir, boot.ExportDir = filepath.Join(b.dir, "kept"), filepath.Join(b.dir, "export")
	boot.Keep, boot.Hidden = nil, p.Hidden
	data, err := json.Marshal(boot)
	if err != nil {
		return nil, nil, err
	}
	description, err := host.MemoryFile(data)
	if err != nil {
		return nil, nil, err
	}
	defer description.Close()
	ours, theirs, err := channel.Pair()
	if err != nil {
		return nil, nil, err
	}
	defer theirs.Close()
	argv := []string{"agentsh", "serve", "--place", b.dir}
	if p.Config != "" {
		argv = append(argv, "--config", p.Config)
	}
	server, err := launch.StartDetached("", argv, messages, []launch.Donation{
		{Name: donatedBoot, File: description}, {Name: donatedStream, File: theirs}, {Name: donatedLease, File: b.lease},
	})
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	self, err := target.Identify(server.PID())
	if err == nil {
		b.labels.PID, b.labels.Start = server.PID(), self.Start
		err = b.write()
	}
	if err != nil {
		select {
		case <-server.Dead(): // its messages tell why
		default:
			server.Kill()
			return nil, nil, errors.Join(err, ours.Close())
		}
	}
	return ours, server, nil
}

// ServeSandbox is the supervisor of the sandbox in a directory. It ends when its
// controller ends the connection, or leaves it without a stream for the lease. It then
// removes the directory.
func ServeSandbox(ctx context.Context, dir string, o host.Options) error {
	files, err := launch.Donations()
	if err != nil {
		return err
	}
	description, stream, lease := files[donatedBoot], files[donatedStream], files[donatedLease]
	if description == nil || stream == nil || lease == nil {
		return errors.New("a descriptor is missing")
	}
	boot, err := host.ReadBootstrap(io.NewSectionReader(description, 0, wire.MaxPlaceRequest))
	err = errors.Join(err, description.Close())
	// Another descriptor keeps the lease locked until this process has printed its last
	// message and ended.
	_, dupErr := unix.FcntlInt(lease.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	err = errors.Join(err, dupErr)
	b := &sandbox{dir: dir, lease: lease}
	if err == nil {
		err = b.serve(ctx, stream, boot, o)
	}
	return errors.Join(err, b.remove())
}

// farewell is how long a controller may take to answer the end of the connection.
const farewell = 5 * time.Second

// serve serves the session over a first stream, and over those that reach the socket.
func (b *sandbox) serve(ctx context.Context, stream *os.File, boot wire.Bootstrap, o host.Options) error {
	first, err := channel.FromFile(stream)
	if err = errors.Join(err, stream.Close()); err != nil {
		return err
	}
	l, err := b.listen(ctx)
	if err != nil {
		return errors.Join(err, first.Close())
	}
	conn := resume.New(boot.Resume.Token, time.Duration(boot.Resume.Seconds)*time.Second, false)
	var carried sync.WaitGroup
	carry := func(s net.Conn) {
		carried.Go(func() {
			_ = conn.Carry(s)
			_ = s.Close()
		})
	}
	carry(first)
	carried.Go(func() {
		accepting := &listen.Sparing{Listener: l}
		for {
			s, err := accepting.Accept()
			if err != nil {
				return // it was closed
			}
			carry(s)
		}
	})
	err = host.Serve(ctx, conn, boot, o)
	_ = conn.Close() // the server may have closed it
	_ = l.Close()
	late := time.AfterFunc(farewell, func() { conn.Fail(resume.ErrLost) })
	carried.Wait()
	late.Stop()
	return err
}

// socketName is the socket of a supervisor, in the directory of its sandbox.
const socketName = "socket"

// address is that of the socket. The path of the directory may be longer than a socket's
// path can be, see unix(7).
func address(dir *os.File) string {
	return fmt.Sprintf("unix:///proc/self/fd/%d/%s", dir.Fd(), socketName)
}

func (b *sandbox) listen(ctx context.Context) (net.Listener, error) {
	dir, err := os.Open(b.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return channel.Listen(ctx, address(dir))
}

func (b *sandbox) dial() (net.Conn, error) {
	dir, err := os.Open(b.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return channel.Dial(context.Background(), address(dir))
}
