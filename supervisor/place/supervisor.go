package place

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/channel"
	"agentsh/internal/listen"
	"agentsh/internal/resume"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
	"agentsh/supervisor/host"
	"agentsh/supervisor/launch"
)

// Descriptors that the supervisor of a sandbox is started with.
const (
	donatedBoot   = "bootstrap"
	donatedStream = "stream"
	donatedLease  = "lease"
)

// start starts the supervisor of a sandbox. It gets the lease.
func (p *places) start(b *sandbox, boot wire.Bootstrap, messages *os.File) (_ net.Conn, _ *launch.Server, err error) {
	if len(boot.Governed) != 1 {
		return nil, nil, fmt.Errorf("%d governed directories, not one", len(boot.Governed))
	}
	boot.Governed[0].Backing = filepath.Join(b.dir, "tree")
	boot.AuditPath, boot.AuditKey = b.audit(), ""
	boot.StoreDir, boot.ExportDir = filepath.Join(b.dir, "kept"), filepath.Join(b.dir, "export")
	boot.Keep, boot.Hidden, boot.NetworkVars = nil, p.Hidden, nil
	if boot.NetworkBy != "" {
		boot.NetworkVars = networkVars(os.LookupEnv)
	}
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
	server, err := launch.StartDetached(p.Program, argv, messages, []launch.Donation{
		{Name: donatedBoot, File: description}, {Name: donatedStream, File: theirs}, {Name: donatedLease, File: b.lease},
	})
	if err != nil {
		return nil, nil, errors.Join(err, ours.Close())
	}
	self, err := target.Identify(server.PID())
	if err == nil {
		b.labels.PID, b.labels.Start, b.labels.Boot = server.PID(), self.Start, statedir.BootID()
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
	whole := false
	if err == nil {
		whole, err = withoutMounts(o.Operator, boot)
	}
	if err == nil && whole {
		err = b.useReal(&boot)
	}
	if boot.Resume == nil { // nobody can be told over the stream
		return errors.Join(err, errors.New("bootstrap: no key of the connection"), stream.Close(), b.remove())
	}
	err = b.serve(ctx, stream, boot, o, err)
	return errors.Join(err, b.remove())
}

// serve serves the session over a first stream, and over those that reach the socket. failed is why there is no session; nil: there is
// one. Why it ended is told to the controller, whose streams are accepted until it knows that.
func (b *sandbox) serve(ctx context.Context, stream *os.File, boot wire.Bootstrap, o host.Options, failed error) error {
	first, err := channel.FromFile(stream)
	if err = errors.Join(err, stream.Close()); err != nil {
		return errors.Join(failed, err)
	}
	l, err := b.listen(ctx, socketName)
	if err != nil {
		return errors.Join(failed, err, first.Close())
	}
	takes, err := b.listen(ctx, takeName)
	if err != nil {
		return errors.Join(failed, err, l.Close(), first.Close())
	}
	c := newControllers(*boot.Resume)
	var carried sync.WaitGroup
	carry := func(conn *resume.Conn, s net.Conn) {
		_ = conn.Carry(s)
		_ = s.Close()
	}
	conn := c.Conn()
	carried.Go(func() { carry(conn, first) })
	carried.Go(func() { each(l, &carried, func(s net.Conn) { carry(c.Conn(), s) }) })
	carried.Go(func() {
		each(takes, &carried, func(s net.Conn) {
			if next := c.take(s); next != nil {
				carry(next, s)
				return
			}
			_ = s.Close() // the session has ended
		})
	})
	o.Next = c.next
	if err = failed; err == nil {
		err = host.Serve(ctx, conn, boot, o)
	}
	c.dismiss(ctx, err)
	_, _ = l.Close(), takes.Close()
	carried.Wait()
	return err
}

// each calls do with each connection to a socket, until that is closed.
func each(l net.Listener, running *sync.WaitGroup, do func(net.Conn)) {
	accepting := &listen.Sparing{Listener: l}
	for {
		s, err := accepting.Accept()
		if err != nil {
			return
		}
		running.Go(func() { do(s) })
	}
}

// Sockets of a supervisor, in the directory of its sandbox.
const (
	socketName = "socket" // for streams of the controller
	takeName   = "take"   // for streams of a controller that takes its place; they begin with a nonce
)

// address is that of a socket. The path of the directory may be longer than a socket's
// path can be, see unix(7).
func address(dir *os.File, name string) string {
	return fmt.Sprintf("unix:///proc/self/fd/%d/%s", dir.Fd(), name)
}

func (b *sandbox) listen(ctx context.Context, name string) (net.Listener, error) {
	dir, err := os.Open(b.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return channel.Listen(ctx, address(dir, name))
}

func (b *sandbox) dial(name string) (net.Conn, error) {
	dir, err := os.Open(b.dir)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return channel.Dial(context.Background(), address(dir, name))
}
