// Package place makes sandboxes on this machine for controllers elsewhere. A controller
// starts [Serve] over any stream, such as that of ssh. Serve makes the directory of a
// sandbox, starts its supervisor in the background and copies bytes between the stream
// and the supervisor. [ServeSandbox] is that supervisor. It removes the directory when
// it ends.
//
// Nothing outlives a controller: the supervisor ends with its stream. If it was killed,
// Serve removes the directory. If both were killed, the next Serve of this user does.
package place

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/channel"
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
}

// Stream is the stream of a controller.
type Stream interface {
	io.ReadWriteCloser
	SetReadDeadline(t time.Time) error
}

// requestWait is the time for a controller to send its request. It begins when Serve
// has announced itself.
const requestWait = time.Minute

// Serve answers one controller on a stream until the end of its sandbox. It closes the
// stream.
func Serve(ctx context.Context, s Stream, o Options) error {
	defer s.Close()
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
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("directory of sandboxes: %w", err)
	}
	switch req.Op {
	case wire.PlaceServe:
		return p.serve(s, req)
	case wire.PlaceCollect:
		done, err := p.collect(ctx, req)
		if err != nil {
			return err
		}
		return stdio.Write(s, done)
	}
	return fmt.Errorf("request of the controller: unknown operation %.64q: install the same release on both sides", req.Op)
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
	if req.Version.Major != wire.Current.Major {
		return req, fmt.Errorf("version %d: this build speaks %d", req.Version.Major, wire.Current.Major)
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
var names = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9-]{0,63}$`)

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
		if !names.MatchString(name) {
			return nil, fmt.Errorf("sandbox or owner %.100q: letters, digits and dashes only", name)
		}
	}
	if req.Bootstrap == nil {
		return nil, errors.New("the request has no bootstrap")
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
	b.labels = wire.PlaceLabels{Version: 1, ID: req.ID, Owner: req.Owner, Created: time.Now().UTC()}
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

// serve makes a sandbox and serves it until its end.
func (p *places) serve(s Stream, req wire.PlaceRequest) error {
	b, err := p.make(req)
	if err != nil {
		return err
	}
	messages, err := os.OpenFile(filepath.Join(b.dir, logName), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return errors.Join(err, b.remove())
	}
	defer messages.Close()
	err = p.run(s, b, *req.Bootstrap, messages)
	if said, readErr := io.ReadAll(io.NewSectionReader(messages, 0, maxMessages)); readErr == nil {
		_, _ = p.Messages.Write(said) // a controller that has gone reads nothing
	}
	return err
}

// maxMessages is how much of the supervisor's messages a controller gets, in bytes.
const maxMessages = 64 << 10

// run starts the supervisor and copies bytes until it has ended.
func (p *places) run(s Stream, b *sandbox, boot wire.Bootstrap, messages *os.File) error {
	conn, server, err := p.start(b, boot, messages)
	if err != nil {
		return errors.Join(fmt.Errorf("start supervisor: %w", err), b.remove())
	}
	defer conn.Close()
	copied := make(chan struct{})
	go func() { // ends with the stream, which the caller closes, or with the connection
		_, _ = io.Copy(conn, s)
		_ = conn.Close() // the supervisor ends the session
	}()
	go func() {
		defer close(copied)
		_, _ = io.Copy(s, conn) // the supervisor tells its error itself
	}()
	<-copied
	_ = conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), endWait)
	defer cancel()
	server.Stop(ctx)
	if _, err := os.Lstat(b.dir); err == nil { // it was killed
		return errors.Join(server.Err(), b.remove())
	}
	return nil
}

// endWait is the time for a supervisor to end its session and to remove its files.
const endWait = time.Minute

// start starts the supervisor of a sandbox. It gets the lease.
func (p *places) start(b *sandbox, boot wire.Bootstrap, messages *os.File) (_ io.ReadWriteCloser, _ *launch.Server, err error) {
	if len(boot.Governed) != 1 {
		return nil, nil, fmt.Errorf("%d governed directories, not one", len(boot.Governed))
	}
	boot.Governed[0].Backing = filepath.Join(b.dir, "tree")
	boot.AuditPath, boot.AuditKey = filepath.Join(b.dir, "audit.jsonl"), ""
	boot.StoreDir, boot.ExportDir = filepath.Join(b.dir, "kept"), filepath.Join(b.dir, "export")
	boot.Keep = nil
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

// ServeSandbox is the supervisor of the sandbox in a directory. It ends with its stream
// and removes the directory.
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
	if err == nil {
		err = serveBoot(ctx, stream, boot, o)
	}
	return errors.Join(err, (&sandbox{dir: dir, lease: lease}).remove())
}

func serveBoot(ctx context.Context, stream *os.File, boot wire.Bootstrap, o host.Options) error {
	conn, err := channel.FromFile(stream)
	if err = errors.Join(err, stream.Close()); err != nil {
		return err
	}
	return host.Serve(ctx, conn, boot, o)
}
