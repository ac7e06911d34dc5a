package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrSessionEnded means that the session's init, and every process with it, is
// gone.
var ErrSessionEnded = errors.New("session has ended")

// Command is one command to start.
type Command struct {
	Path   string   // program inside, as execve(2) takes it: PATH is not searched
	Argv   []string // Argv[0] included
	Dir    string   // absolute, inside
	Env    []string // NAME=value; nothing is added
	Stdin  *os.File // nil: /dev/null, also for the other two; the caller closes them
	Stdout *os.File
	Stderr *os.File
	TTY    bool // Stdin is a terminal of [Init.OpenPTY] and becomes the controlling one
	Umask  int  // 0: 022
	Limits []Rlimit
	// OnPID is called with the process id in the supervisor's pid namespace, after the
	// fork and before the execve. It must not wait for the command. If it fails, the
	// command is killed before its execve.
	OnPID func(pid int) error
}

// StartError is the error of a command that could not be started.
type StartError struct {
	Step  string // "exec /usr/bin/x", "change directory to /y", ...
	Errno syscall.Errno
}

// Error returns the step and the errno.
func (e *StartError) Error() string { return e.Step + ": " + e.Errno.Error() }

// Unwrap makes errors.Is work with the errno.
func (e *StartError) Unwrap() error { return e.Errno }

// ExitCode returns the exit status that a shell would report: 127 if the
// program does not exist, else 126.
func (e *StartError) ExitCode() int {
	switch e.Errno {
	case unix.ENOENT, unix.ENOTDIR:
		return 127
	case unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOBUFS, unix.EAGAIN: // the supervisor had none: nothing was decided
		return 125
	}
	return 126
}

// Status is the result of a command's first process.
type Status struct {
	wait   syscall.WaitStatus
	Rusage Rusage
}

// Rusage is the resource usage of the process and of the children that it
// waited for.
type Rusage struct {
	User, System time.Duration
	MaxRSS       int64 // bytes
}

// Signaled reports whether a signal ended it.
func (s Status) Signaled() bool { return s.wait.Signaled() }

// Signal returns the signal that ended it.
func (s Status) Signal() syscall.Signal { return s.wait.Signal() }

// ExitCode returns its exit status, or 128 plus the number of the signal.
func (s Status) ExitCode() int {
	if s.wait.Signaled() {
		return 128 + int(s.wait.Signal())
	}
	return s.wait.ExitStatus()
}

// Process is a started command with all its descendants.
type Process struct {
	init   *Init
	serial uint64
	pid    int
	marked chan struct{} // closed when the init has marked the first process
	exited chan struct{}
	known  chan struct{} // closed when the leftover processes are known
	empty  chan struct{}

	mu       sync.Mutex
	status   Status
	err      error
	leftover []int
}

// Start starts a command. No other function does. It returns when the program has been
// executed, or a [StartError]. ctx ends the start, not the command.
func (i *Init) Start(ctx context.Context, c Command) (*Process, error) {
	file, err := c.spec().file()
	if err != nil {
		return nil, fmt.Errorf("start command: %w", err)
	}
	defer file.Close()
	ours, theirs, err := pair()
	if err != nil {
		return nil, fmt.Errorf("start command: %w", err)
	}
	defer func() { _ = ours.Close() }()
	err = passCredentials(ours)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		theirs.Close()
		return nil, fmt.Errorf("start command: %w", err)
	}
	p := i.commands.add(i)
	err = i.request(p, &c, file, theirs)
	theirs.Close()
	if err != nil {
		i.commands.drop(p, err)
		return nil, fmt.Errorf("start command: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = ours.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	err = p.follow(ours, c.OnPID)
	if ctx.Err() != nil { // the command may have been started
		return nil, errors.Join(ctx.Err(), p.Kill(0, nil))
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// spec is the specification that the child reads.
func (c *Command) spec() *spec {
	s := newSpec()
	s.str(c.Path)
	s.str(c.Dir)
	flags := uint32(0)
	if c.TTY {
		flags = commandTTY
	}
	s.u32(flags)
	mask := c.Umask
	if mask == 0 {
		mask = 0o022
	}
	s.u32(uint32(mask))
	s.u32(uint32(len(c.Limits)))
	for _, l := range c.Limits {
		s.limit(l)
	}
	s.strs(c.Argv)
	s.strs(c.Env)
	switch {
	case c.Path == "" || len(c.Argv) == 0:
		s.err = errors.New("command without a program")
	case c.Dir == "" || c.Dir[0] != '/':
		s.err = fmt.Errorf("directory %q is not absolute", c.Dir)
	case len(c.Limits) > 32:
		s.err = fmt.Errorf("%d resource limits: at most 32", len(c.Limits))
	}
	return s
}

// passCredentials has the kernel add the sender to each message. See unix(7).
func passCredentials(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	})
	return errors.Join(err, set)
}

// request asks the init to fork.
func (i *Init) request(p *Process, c *Command, spec, socket *os.File) error {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	files := []*os.File{spec, socket, c.Stdin, c.Stdout, c.Stderr}
	for n, f := range files {
		if f == nil {
			files[n] = null
		}
	}
	b := order.AppendUint64([]byte{msgCommand, 0, 0, 0, 0, 0, 0, 0}, p.serial)
	i.starting.Lock()
	defer i.starting.Unlock()
	if err := send(i.start, b, files...); err != nil {
		if ended(err) {
			return ErrSessionEnded
		}
		return err
	}
	return nil
}

// follow exchanges messages with the child until its execve:
//  1. the child reports its process id;
//  2. OnPID is called, and the init marks the child;
//  3. the child gets the message to go on;
//  4. its execve closes the socket.
func (p *Process) follow(c *net.UnixConn, onPID func(int) error) error {
	m, err := receive(c)
	if err != nil {
		return p.endedEarly(err)
	}
	if m.kind == msgFailed {
		return p.startFailed(m)
	}
	if m.kind != msgStarted || m.pid <= 0 {
		return errors.Join(fmt.Errorf("start command: its process id is not visible to the supervisor"), p.Kill(0, nil))
	}
	p.pid = m.pid
	if onPID != nil {
		if err := onPID(m.pid); err != nil {
			return errors.Join(fmt.Errorf("start command: %w", err), p.Kill(0, nil))
		}
	}
	select {
	case <-p.marked:
	case <-p.exited:
	}
	if err := send(c, []byte{msgGo}); err != nil {
		return p.endedEarly(err)
	}
	m, err = receive(c)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		return p.endedEarly(err)
	}
	return p.startFailed(m)
}

// startFailed is the error that a child reported before its execve. If it was never
// forked, the command is removed.
func (p *Process) startFailed(m *message) error {
	step, errno := m.failure()
	err := &StartError{Step: step, Errno: errno}
	if m.pid == p.init.PID() {
		p.init.commands.drop(p, err)
	}
	return err
}

// endedEarly is the error of a child that ended without a message. A child whose start
// was cancelled still lives: the caller kills it.
func (p *Process) endedEarly(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	<-p.exited
	if _, err := p.Wait(); err != nil {
		return fmt.Errorf("start command: %w", err)
	}
	return fmt.Errorf("start command: its process ended before its execve: %w", err)
}

// PID is the process id of the command's first process, in the supervisor's pid
// namespace.
func (p *Process) PID() int { return p.pid }

// Wait waits until the command's first process has ended. Others of its tree
// may be left: see TreeEmpty.
func (p *Process) Wait() (Status, error) {
	<-p.exited
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status, p.err
}

// Exited is closed when Wait returns at once.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// TreeEmpty is closed when the first process has ended and no process the
// command started is left, whatever session, group or parent it gave itself.
func (p *Process) TreeEmpty() <-chan struct{} { return p.empty }

// Leftover waits until the first process has ended. It returns the processes that were
// left then: at most 64, by their numbers inside.
func (p *Process) Leftover() []int {
	<-p.known
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int(nil), p.leftover...)
}

// Signal sends a signal to the command's process group, or to all that is left
// of its tree when its first process has ended.
func (p *Process) Signal(s syscall.Signal) error { return p.sendKill(s, false) }

// killTimeout is the time that the processes of a command have to end after SIGKILL.
const killTimeout = 10 * time.Second

// Kill ends the command's tree: SIGTERM to its group, and SIGKILL to every process after
// grace, or as soon as force is closed. It returns when no process is left. It returns an error when a process does not
// end, as in an uninterruptible wait: then only Init.Close remains.
func (p *Process) Kill(grace time.Duration, force <-chan struct{}) error {
	if grace > 0 {
		if err := p.sendKill(unix.SIGTERM, false); err != nil {
			return err
		}
		if p.waitEmpty(grace, force) {
			return nil
		}
	}
	if err := p.sendKill(unix.SIGKILL, true); err != nil {
		return err
	}
	if !p.waitEmpty(killTimeout, nil) {
		return fmt.Errorf("kill command: a process is left after %s", killTimeout)
	}
	return nil
}

// waitEmpty waits until the tree is empty, at most d and until force is closed.
func (p *Process) waitEmpty(d time.Duration, force <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.empty:
		return true
	case <-force:
	case <-t.C:
	}
	return false
}

func (p *Process) sendKill(s syscall.Signal, whole bool) error {
	b := []byte{msgKill, 0, 0, 0}
	if whole {
		b[1] = 1
	}
	b = order.AppendUint32(b, uint32(s))
	b = order.AppendUint64(b, p.serial)
	err := send(p.init.control, b)
	if ended(err) {
		<-p.init.Dead() // then nothing is left
		return nil
	}
	if err != nil {
		return fmt.Errorf("signal command: %w", err)
	}
	return nil
}

// ended reports whether an error of a socket means that the init has closed its end or
// that Close was called.
func ended(err error) bool {
	return errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF)
}

// abort ends a command whose init has ended.
func (p *Process) abort(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.exited:
	default:
		p.err = err
		close(p.exited)
	}
	p.reportLeftover()
	close(p.empty)
}

// reportLeftover lets Leftover return. It is called with mu held.
func (p *Process) reportLeftover() {
	select {
	case <-p.known:
	default:
		close(p.known)
	}
}
