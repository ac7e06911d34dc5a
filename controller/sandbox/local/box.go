package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/channel"
	"agentsh/internal/snapshot"
	"agentsh/internal/wire"
)

// box is one running sandbox.
type box struct {
	*channel.Client // set by Ready

	dir  *directory
	cmd  *exec.Cmd
	keys keys
	log  sandbox.Tail // standard error of the supervisor
	keep time.Duration

	gone  chan struct{} // closed after the supervisor was reaped
	cause error         // set before gone is closed

	mu      sync.Mutex
	conn    net.Conn // nil after Ready or Stop has used it
	client  *channel.Client
	stopped bool
	left    bool // to other controllers: Stop and Delete do nothing
}

// keys are the keys by which a sandbox and its controller authenticate each
// other.
type keys struct {
	host, client             []byte // private keys
	hostPublic, clientPublic []byte
}

func newKeys() (k keys, err error) {
	if k.host, k.hostPublic, err = channel.NewKeyPair(); err != nil {
		return keys{}, err
	}
	if k.client, k.clientPublic, err = channel.NewKeyPair(); err != nil {
		return keys{}, err
	}
	return k, nil
}

const (
	streamFD    = 3 // SSH
	bootstrapFD = 4 // one wire.Bootstrap, then end of file
	leaseFD     = 5 // the locked lease of a sandbox that outlives its controller
	stopWait    = 5 * time.Second
	readWait    = time.Minute // time limit for a supervisor to read its bootstrap
)

// supervisorEnv is the whole environment of the supervisor.
var supervisorEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}

// start starts the supervisor of a sandbox and sends it its bootstrap.
func start(ctx context.Context, p *directory, operator, program string, s sandbox.Spec) (*box, error) {
	b := &box{dir: p, gone: make(chan struct{}), keep: s.Keep}
	var err error
	if b.keys, err = newKeys(); err != nil {
		return nil, err
	}
	message, err := json.Marshal(b.bootstrap(s))
	if err != nil {
		return nil, fmt.Errorf("encode bootstrap: %w", err)
	}
	if len(message) > wire.MaxMessage {
		return nil, fmt.Errorf("bootstrap of %d bytes, at most %d: the policy is too large", len(message), wire.MaxMessage)
	}
	ours, theirs, err := streamPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	read, write, err := os.Pipe()
	if err != nil {
		_ = ours.Close()
		return nil, fmt.Errorf("make bootstrap pipe: %w", err)
	}
	defer read.Close()
	defer write.Close()
	b.conn = ours
	args := []string{"agentsh", "serve", "--stream-fd", fmt.Sprint(streamFD), "--bootstrap-fd", fmt.Sprint(bootstrapFD)}
	// A session of its own: Ctrl-C reaches only the controller, which stops the
	// supervisor after the results are extracted.
	attributes := &syscall.SysProcAttr{Setsid: true}
	if s.Image != "" {
		args = append(args, "--image-root", s.Image, "--image-sandbox", p.path)
		ownMounts(attributes)
	}
	if operator != "" {
		args = append(args, "--config", operator)
	}
	b.cmd = &exec.Cmd{
		Path: program, Args: args,
		Env: supervisorEnv, Dir: "/", Stdout: &b.log, Stderr: &b.log,
		ExtraFiles:  []*os.File{theirs, read},
		SysProcAttr: attributes,
		WaitDelay:   time.Second, // surviving child processes may hold standard error open
	}
	if err := b.startProgram(); err != nil {
		_ = ours.Close()
		if s.Image != "" && errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("%w: an image takes a mount namespace, and as a user a user namespace; see 'agentsh detect'", err)
		}
		return nil, err
	}
	go b.wait()
	if err := b.introduce(ctx, read, write, message); err != nil {
		return nil, errors.Join(err, b.kill())
	}
	return b, nil
}

// startProgram starts the supervisor. One that is to outlive this process gets
// the lease, and a file for its messages.
func (b *box) startProgram() error {
	if b.keep == 0 {
		return b.cmd.Start()
	}
	if err := b.writeKeys(); err != nil {
		return err
	}
	messages, err := os.OpenFile(b.dir.messages(), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer messages.Close()
	b.cmd.Stdout, b.cmd.Stderr = messages, messages
	b.cmd.ExtraFiles = append(b.cmd.ExtraFiles, b.dir.lease)
	b.cmd.Args = append(b.cmd.Args, "--lease-fd", fmt.Sprint(leaseFD))
	return b.cmd.Start()
}

// streamPair is a connected pair of stream sockets.
func streamPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make stream: %w", err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "stream")
	ours := os.NewFile(uintptr(fds[0]), "stream")
	defer ours.Close()
	conn, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("make stream: %w", err)
	}
	return conn, theirs, nil
}

func (b *box) bootstrap(s sandbox.Spec) wire.Bootstrap {
	var keep *wire.Keep
	if s.Keep > 0 {
		keep = &wire.Keep{Dir: b.dir.path, Seconds: int(math.Ceil(s.Keep.Seconds()))}
	}
	return wire.Bootstrap{
		Keep:    keep,
		Version: wire.Current, Policy: s.Policy, Vars: s.Vars, EnvInject: s.EnvInject,
		Governed: []wire.Governed{{Backing: b.dir.tree(), Path: Root}},
		EnvDir:   s.EnvDir, Home: s.Home, AuditPath: b.dir.auditLog(), StoreDir: b.dir.storeDir(),
		HostKey: b.keys.host, AuthorizedKey: b.keys.clientPublic, Credentials: s.Credentials, Program: s.Program,
		Degraded: s.Degraded, Require: s.Require, Identity: s.Identity,
	}
}

// introduce records the supervisor's process and sends its bootstrap. The
// message may not fit into the pipe, so a supervisor that does not read it is
// ended.
func (b *box) introduce(ctx context.Context, read, write *os.File, message []byte) error {
	var err error
	if b.dir.info.Process, err = ProcessOf(b.cmd.Process.Pid); err != nil {
		return b.orCause(err)
	}
	if err := b.dir.writeInfo(); err != nil {
		return err
	}
	read.Close() // the write fails if the supervisor is gone
	stop := context.AfterFunc(ctx, func() { _ = write.SetWriteDeadline(time.Now()) })
	defer stop()
	if err := write.SetWriteDeadline(time.Now().Add(readWait)); err != nil {
		return fmt.Errorf("send bootstrap: %w", err)
	}
	if _, err := write.Write(message); err != nil {
		return b.orCause(fmt.Errorf("send bootstrap: %w", errors.Join(err, ctx.Err())))
	}
	return nil
}

// wait reaps the supervisor. Every box has one such goroutine, which ends with
// the supervisor.
func (b *box) wait() {
	err := b.cmd.Wait()
	if b.keep > 0 {
		b.log.ReadFile(b.dir.messages())
	}
	switch last := b.log.LastMessage(); {
	case last != "":
		b.cause = fmt.Errorf("%w: supervisor: %s", sandbox.ErrGone, last)
	case err != nil:
		b.cause = fmt.Errorf("%w: supervisor: %w", sandbox.ErrGone, err)
	default:
		b.cause = sandbox.ErrGone
	}
	close(b.gone)
}

// orCause returns the last message of an ended supervisor, because it explains
// err. Without such a message it returns err.
func (b *box) orCause(err error) error {
	t := time.NewTimer(time.Second) // the stream breaks shortly before the end of the process
	defer t.Stop()
	select {
	case <-b.gone:
		return sandbox.Explain(b.cause, err)
	case <-t.C:
		return err
	}
}

// ID implements [sandbox.Sandbox].
func (b *box) ID() string { return b.dir.info.ID }

// Gone implements [sandbox.Sandbox].
func (b *box) Gone() <-chan struct{} { return b.gone }

// Cause implements [sandbox.Sandbox].
func (b *box) Cause() error {
	select {
	case <-b.gone:
		return b.cause
	default:
		return nil
	}
}

// Ready implements [sandbox.Sandbox]. It is called once.
func (b *box) Ready(ctx context.Context) (wire.Hello, error) {
	b.mu.Lock()
	conn := b.conn
	b.conn = nil
	b.mu.Unlock()
	if conn == nil {
		return wire.Hello{}, sandbox.ErrGone
	}
	client, err := channel.NewClient(ctx, conn, channel.ClientConfig{
		Key: b.keys.client, HostKey: b.keys.hostPublic, Build: "agentctl",
	})
	if err != nil {
		return wire.Hello{}, b.orCause(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return wire.Hello{}, errors.Join(sandbox.ErrGone, client.Close())
	}
	b.client, b.Client = client, client
	return client.Hello(), nil
}

// AuditLog implements [sandbox.Sandbox].
func (b *box) AuditLog(context.Context) (io.ReadCloser, error) {
	// The supervisor can put anything there. Opening a fifo or following a link has no end.
	f, err := os.OpenFile(b.dir.auditLog(), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", f.Name())
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Trash implements [sandbox.Sandbox].
func (b *box) Trash(_ context.Context, to string) (int, error) {
	store, err := snapshot.OpenStore(b.dir.storeDir())
	if err != nil {
		return 0, err
	}
	return store.ExportTrash(to)
}

// Stop implements [sandbox.Sandbox].
func (b *box) Stop(ctx context.Context) error {
	b.mu.Lock()
	if b.left {
		b.mu.Unlock()
		return nil
	}
	b.stopped = true
	conn, client := b.conn, b.client
	b.conn, b.client = nil, nil
	b.mu.Unlock()
	if b.keep > 0 { // the end of the stream alone does not end it
		_ = b.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended
	}
	if client != nil {
		_ = client.Close() // its error is that of the connection
	}
	if conn != nil {
		_ = conn.Close()
	}
	// The supervisor ends when the stream is closed. A stuck one is killed, and its
	// session with it.
	t := time.NewTimer(stopWait)
	defer t.Stop()
	select {
	case <-b.gone:
		return nil
	case <-t.C:
	case <-ctx.Done():
	}
	return b.kill()
}

// kill kills the supervisor.
func (b *box) kill() error {
	b.mu.Lock()
	b.stopped = true
	conn := b.conn
	b.conn = nil
	b.mu.Unlock()
	if conn != nil {
		_ = conn.Close()
	}
	if err := b.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill supervisor: %w", err)
	}
	t := time.NewTimer(endWait)
	defer t.Stop()
	select {
	case <-b.gone:
		return nil
	case <-t.C:
		return fmt.Errorf("supervisor %d does not end", b.cmd.Process.Pid)
	}
}

// Delete implements [sandbox.Sandbox].
func (b *box) Delete(ctx context.Context) error {
	b.mu.Lock()
	left := b.left
	b.mu.Unlock()
	if left {
		return nil
	}
	if err := b.Stop(ctx); err != nil {
		return fmt.Errorf("delete sandbox %s: %w", b.ID(), err)
	}
	if err := b.dir.remove(); err != nil {
		return fmt.Errorf("delete sandbox %s: %w", b.ID(), err)
	}
	return nil
}
