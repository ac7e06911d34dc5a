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
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/resume"
	"agentsh/internal/socket"
	"agentsh/internal/statedir"
	"agentsh/internal/stdio"
	"agentsh/internal/wire"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/tally"
)

// Options configure [Serve].
type Options struct {
	State    statedir.Dir
	Build    string
	Config   string       // configuration file of the supervisor; empty: its default
	Messages io.Writer    // gets the messages of the supervisor
	Hidden   []string     // files that commands in sandboxes never see
	Program  string       // path of this program; empty: that by which it was started
	Tally    *tally.Tally // counts the sandboxes; may be nil
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
	p := newPlaces(o)
	if err := p.open(req); err != nil {
		if req.Op == wire.PlaceCollect {
			return err
		}
		return refuse(s, err)
	}
	switch req.Op {
	case wire.PlaceServe:
		return p.serve(s, req)
	case wire.PlaceAttach, wire.PlaceTake:
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
	case !slices.Contains([]string{wire.PlaceServe, wire.PlaceAttach, wire.PlaceTake, wire.PlaceCollect}, req.Op):
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
	counted := p.Tally.Begin(b.audit())
	conn, server, err := p.start(b, *req.Bootstrap, f.messages)
	if err != nil {
		counted.Drop()
		return refuse(s, errors.Join(fmt.Errorf("start supervisor: %w", err), b.remove()))
	}
	counted.Started(b.process())
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

// attach connects a further stream to a sandbox, of its controller or of one that takes its
// place.
func (p *places) attach(s Stream, req wire.PlaceRequest) error {
	f, conn, err := p.find(req)
	if err != nil {
		return refuse(s, err)
	}
	defer f.close()
	p.Tally.Begin(f.sandbox.audit()).Started(f.sandbox.process()) // of a process that has ended
	if req.Op == wire.PlaceTake {
		if _, err := conn.Write(req.Nonce); err != nil {
			return errors.Join(refuse(s, err), conn.Close())
		}
	}
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
	socket := socketName
	if req.Op == wire.PlaceTake {
		if socket = takeName; len(req.Nonce) != resume.NonceSize {
			return nil, nil, fmt.Errorf("the request has a nonce of %d bytes, not %d", len(req.Nonce), resume.NonceSize)
		}
	}
	if names().MatchString(req.ID) {
		for _, b := range p.all() {
			if b.labels.ID != req.ID || b.labels.Owner != req.Owner {
				continue
			}
			f, err := b.follow()
			if err != nil {
				break
			}
			conn, err := b.dial(socket)
			if err != nil {
				f.close()
				return nil, nil, fmt.Errorf("sandbox %s has no supervisor: %w", req.ID, err)
			}
			return f, conn, nil
		}
	}
	return nil, nil, fmt.Errorf("there is no sandbox %.64q: it has ended", req.ID)
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
		return errors.Join(errors.New("the supervisor was killed"+killedForMemory(f.oomKills)), b.remove())
	}
	return nil
}

// maxMessages is how much of the supervisor's messages a controller gets, in bytes.
const maxMessages = 64 << 10

// endWait is the time for a supervisor to end its session and to remove its files.
const endWait = time.Minute
