package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/local"
	"agentsh/internal/channel"
	"agentsh/internal/layout"
	"agentsh/internal/resume"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

// box is one running sandbox.
type box struct {
	*channel.Client // set by Ready

	id     string
	dir    *local.Reserved
	conn   *resume.Conn // set before begin
	keys   channel.ClientConfig
	cancel context.CancelFunc // ends carry by force
	place  *Backend
	copied copied
	gone   chan struct{} // closed when no stream leads to the sandbox any more
	cause  error         // set before gone is closed

	mu      sync.Mutex
	client  *channel.Client // nil before Ready and after Stop
	entered bool            // Ready was called
	stopped bool
	trash   received
}

// received is the trash on this host.
type received struct {
	files int
	err   error // it is not complete
}

// start makes the sandbox at the place.
func (b *Backend) start(ctx context.Context, dir *local.Reserved, s sandbox.Spec) (_ *box, err error) {
	boot := wire.Bootstrap{
		Version: wire.Current, Policy: s.Policy, Vars: s.Vars, EnvInject: s.EnvInject,
		Governed: []wire.Governed{{Path: local.Root}}, EnvDir: s.EnvDir, Home: s.Home,
		Credentials: s.Credentials, Program: s.Program, Degraded: s.Degraded, Require: s.Require, Identity: s.Identity,
		NetworkBy: b.cfg.NetworkBy,
	}
	var k keys
	if boot.HostKey, k.HostKey, err = channel.NewKeyPair(); err != nil {
		return nil, err
	}
	if k.Key, boot.AuthorizedKey, err = channel.NewKeyPair(); err != nil {
		return nil, err
	}
	boot.Resume = &wire.Resume{Token: make([]byte, resume.TokenSize), Seconds: int(math.Ceil(b.cfg.Lease.Seconds()))}
	_, _ = rand.Read(boot.Resume.Token) // never fails, see crypto/rand
	k.Resume = *boot.Resume
	if err := statedir.WriteJSON(keysOf(dir), k); err != nil {
		return nil, err
	}
	x, err := k.box(s.RunID, dir)
	if err != nil {
		return nil, err
	}
	req := wire.PlaceRequest{Op: wire.PlaceServe, ID: s.RunID, NeedBytes: s.NeedBytes, Bootstrap: &boot}
	first, err := b.first(ctx, req)
	if err != nil {
		return nil, errors.Join(err, x.copied.log.Close())
	}
	x.conn = k.conn(k.Resume.Token)
	x.begin(ctx, b, req, first)
	return x, nil
}

// begin carries the connection, with a first stream.
func (x *box) begin(ctx context.Context, b *Backend, req wire.PlaceRequest, first Stream) {
	x.place = b
	carrying, cancel := context.WithCancel(context.WithoutCancel(ctx))
	x.cancel = cancel
	go x.carry(carrying, b, req, first)
}

const (
	stopWait = 30 * time.Second // for the session to end, and for its files to be removed
	cutWait  = time.Second      // for a broken stream to say why

	acknowledgeWait = 10 * time.Second // for a supervisor that has failed to be reached again
)

// carry uses streams, one after the other, until the connection is over. Every box has one
// such goroutine, which ends with the connection or with x.cancel.
func (x *box) carry(ctx context.Context, b *Backend, req wire.PlaceRequest, s Stream) {
	defer close(x.gone)
	defer x.cancel()
	x.cause = sandbox.ErrGone
	failed := sandbox.ErrGone
	var idle time.Duration // the pause after a stream that moved nothing
	for tries := 0; ; {
		before := x.conn.Moved()
		over := x.conn.Carry(s)
		wait := cutWait
		if over {
			wait = stopWait // the place removes the sandbox
		}
		end(ctx, s, wait)
		why := s.Cause()
		told := x.told()
		if over && told != nil && (why == nil || why.Error() != told.Error()) {
			why = told
			if tries++; tries <= maxRefused {
				if s = x.acknowledge(ctx, b); s != nil {
					continue
				}
			}
		}
		if !over {
			if x.conn.Moved() != before {
				idle = 0
			} else if idle = min(max(2*idle, firstRetry), lastRetry); idle > firstRetry {
				pause(ctx, idle)
			}
			var err error
			s, err = b.attach(ctx, x.id)
			// A supervisor that ended before its first byte did nothing. Why it ended was lost
			// with the stream: the next one says it.
			if tries++; err != nil && tries <= maxRefused && x.conn.Silent() && errors.As(err, new(refusal)) {
				s, err = b.first(ctx, req)
			}
			if err == nil {
				continue
			}
			why = reason(why, err)
			if errors.As(err, new(refusal)) {
				failed = overThere{}
			}
		}
		x.conn.Fail(failed)
		if why != nil {
			x.cause = fmt.Errorf("%w: supervisor: %w", sandbox.ErrGone, why)
		}
		return
	}
}

// overThere is the error of a connection whose supervisor has ended, as the place says: it is the end of a socket, too.
type overThere struct{}

func (overThere) Error() string { return sandbox.ErrGone.Error() }

func (overThere) Is(target error) bool { return target == sandbox.ErrGone || target == io.EOF }

// told returns why the supervisor ended the session, if that arrived.
func (x *box) told() error {
	said := x.conn.Reason()
	if said == "" {
		return nil
	}
	var t sandbox.Tail
	_, _ = t.Write([]byte("agentsh: " + said)) // never fails
	return errors.New(t.LastMessage())
}

// acknowledge opens a further stream to a supervisor that said why it ended, and may not know that this arrived: the last stream ended
// before its messages. It returns nil if the supervisor has ended, or cannot be reached: it then ends with its lease.
func (x *box) acknowledge(ctx context.Context, b *Backend) Stream {
	ctx, cancel := context.WithTimeout(ctx, acknowledgeWait)
	defer cancel()
	s, err := b.attach(ctx, x.id)
	if err != nil {
		return nil
	}
	return s
}

// reason returns why a sandbox is gone: why its stream ended, or why it cannot be reached again,
// if that is known better. Both may be nil.
func reason(ended, again error) error {
	var of *sandbox.End
	if ended == nil || errors.As(again, &of) && (!errors.As(ended, &of) || of.Passes()) {
		return again
	}
	return ended
}

// end waits for the end of a stream, and then ends it by force.
func end(ctx context.Context, s Stream, wait time.Duration) {
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-s.Gone():
	case <-t.C:
	case <-ctx.Done():
	}
	s.Kill()
}

// Image implements [sandbox.Imaged].
func (x *box) Image() (digest string, ok bool) {
	if x.place.cfg.Image == nil {
		return "", false
	}
	return x.place.cfg.Image()
}

// PlaceLog implements [sandbox.Witness].
func (x *box) PlaceLog(ctx context.Context) (*sandbox.PlaceLog, error) {
	if x.place.cfg.Log == nil {
		return nil, nil
	}
	return x.place.cfg.Log(ctx)
}

// ID implements [sandbox.Sandbox].
func (x *box) ID() string { return x.id }

// Gone implements [sandbox.Sandbox].
func (x *box) Gone() <-chan struct{} { return x.gone }

// Cause implements [sandbox.Sandbox].
func (x *box) Cause() error {
	select {
	case <-x.gone:
		return x.cause
	default:
		return nil
	}
}

// Ready implements [sandbox.Sandbox]. It is called once.
func (x *box) Ready(ctx context.Context) (wire.Hello, error) {
	x.mu.Lock()
	if x.stopped || x.entered {
		x.mu.Unlock()
		return wire.Hello{}, sandbox.ErrGone
	}
	x.entered = true
	x.mu.Unlock()
	client, err := channel.NewClient(ctx, x.conn, x.keys)
	if err != nil {
		if x.copied.before != "" {
			err = errors.Join(err, os.Rename(x.copied.before, x.dir.AuditLog()))
		}
		return wire.Hello{}, x.orCause(err)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.stopped {
		return wire.Hello{}, errors.Join(sandbox.ErrGone, client.Close())
	}
	x.client, x.Client = client, client
	x.copied.start(client)
	return client.Hello(), nil
}

// orCause returns why the sandbox is gone, because it explains err. If it is not, the error
// is err.
func (x *box) orCause(err error) error {
	if told := x.told(); told != nil {
		return sandbox.Explain(fmt.Errorf("%w: supervisor: %w", sandbox.ErrGone, told), err)
	}
	t := time.NewTimer(2 * cutWait) // the connection ends shortly before the reason is known
	defer t.Stop()
	select {
	case <-x.gone:
		return sandbox.Explain(x.cause, err)
	case <-t.C:
		return err
	}
}

// copied is the copy of the audit log.
type copied struct {
	log    *audit.Copy
	before string // the copy of an earlier controller; it stays if the sandbox does not answer
	cancel context.CancelFunc
	done   chan struct{} // nil before start; closed when everything that arrived is copied
	end    func()        // closes ending; set by start
	ending chan struct{} // closed at the end of the session
	mu     sync.Mutex
	err    error // the copy could not be written, or the log was changed
	closed bool
}

// start copies the log until its end or that of the connection.
func (c *copied) start(from *channel.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel, c.done, c.ending = cancel, make(chan struct{}), make(chan struct{})
	c.end = sync.OnceFunc(func() { close(c.ending) })
	go func() { // ends with the connection, which Stop closes
		defer close(c.done)
		_ = from.Events(ctx, wire.EventRequest{}, c.append) // the end of the connection is known elsewhere
	}()
}

// fullPause is the time between two attempts to write to a full disk.
const fullPause = time.Second

// append adds an event to the copy. On a full disk it tries again until the end of the session: the events wait in the log of the
// sandbox.
func (c *copied) append(e wire.Event) error {
	for last := false; ; {
		err := c.log.Append(e)
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		if last || !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
			return err
		}
		select {
		case <-c.ending:
			last = true
		case <-time.After(fullPause):
		}
	}
}

// finish waits for the end of the copy, and closes it. wait is the time for events that
// are on their way.
func (c *copied) finish(ctx context.Context, wait time.Duration) {
	if c.done != nil {
		c.end()
		limit := time.NewTimer(wait)
		defer limit.Stop()
		select {
		case <-c.done:
		case <-limit.C:
		case <-ctx.Done():
		}
		c.cancel()
		<-c.done
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.err = errors.Join(c.err, c.log.Close())
	}
}

// AuditLog implements [sandbox.Sandbox].
func (x *box) AuditLog(context.Context) (io.ReadCloser, error) {
	x.copied.mu.Lock()
	err := x.copied.err
	x.copied.mu.Unlock()
	if err != nil {
		return nil, err
	}
	return os.Open(x.dir.AuditLog())
}

// trashDir is the trash on this host.
func (x *box) trashDir() string { return filepath.Join(x.dir.Path(), trashName) }

// trashName is the trash in the directory of a sandbox.
const trashName = "trash"

// Trash implements [sandbox.Sandbox].
func (x *box) Trash(_ context.Context, to string) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.trash.files == 0 || x.trash.err != nil {
		return 0, x.trash.err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return 0, err
	}
	return x.trash.files, os.CopyFS(to, os.DirFS(x.trashDir()))
}

// Stop implements [sandbox.Sandbox]. It copies the trash and the end of the audit log
// before it closes the stream. The place then removes the sandbox.
func (x *box) Stop(ctx context.Context) error {
	x.mu.Lock()
	client, entered := x.client, x.entered
	x.client, x.stopped = nil, true
	x.mu.Unlock()
	if client != nil {
		x.end(ctx, client)
		_ = client.Close() // its error is that of the connection
	} else if !entered {
		_ = x.conn.Close() // it may have ended
	}
	t := time.NewTimer(stopWait)
	defer t.Stop()
	select {
	case <-x.gone:
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	x.cancel() // the place ends the sandbox when it notices
	x.conn.Fail(sandbox.ErrGone)
	<-x.gone
	return nil
}

// end ends the session and copies what it leaves.
func (x *box) end(ctx context.Context, client *channel.Client) {
	ctx, cancel := context.WithTimeout(ctx, stopWait)
	defer cancel()
	ended, err := client.End(ctx)
	wait := stopWait
	if err != nil {
		wait = 0 // nothing more arrives
	}
	x.copied.finish(ctx, wait)
	if err != nil {
		err = fmt.Errorf("%w: %w", sandbox.ErrGone, err)
	} else if ended.Trashed > 0 {
		err = x.receiveTrash(ctx, client)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.trash.files = ended.Trashed
	if err != nil {
		x.trash.err = fmt.Errorf("copy the trash of sandbox %s: %w", x.id, err)
	}
}

func (x *box) receiveTrash(ctx context.Context, client *channel.Client) error {
	root, err := os.OpenRoot(x.dir.Path())
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // a directory
	_, err = channel.ReceiveArchive(ctx, client, wire.CopyOut{Dir: layout.ExportedTrash},
		channel.ArchiveTarget{Parent: root, Name: filepath.Base(x.trashDir())})
	return err
}

// Keep implements [sandbox.Sandbox]. Check rejects it.
func (*box) Keep(context.Context) (time.Time, error) {
	return time.Time{}, errors.New("a sandbox elsewhere ends with its run")
}

// Delete implements [sandbox.Sandbox].
func (x *box) Delete(ctx context.Context) error {
	if err := x.Stop(ctx); err != nil {
		return fmt.Errorf("delete sandbox %s: %w", x.id, err)
	}
	x.copied.finish(ctx, 0)
	if err := x.place.release(ctx); err != nil {
		return fmt.Errorf("delete sandbox %s: %w", x.id, err)
	}
	if err := x.dir.Remove(); err != nil {
		return fmt.Errorf("delete sandbox %s: %w", x.id, err)
	}
	return nil
}

var _ sandbox.Sandbox = (*box)(nil)
