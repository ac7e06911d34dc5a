package launch

// #cgo CFLAGS: -O2 -Wall -Wextra -Wshadow -std=gnu11
// #cgo LDFLAGS: -pthread
import "C"

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/siginfo"
	"agentsh/internal/threads"
	"agentsh/internal/wire"
)

// Init is the running init of one session. Its methods are safe for concurrent
// use.
type Init struct {
	control   *net.UnixConn
	start     *net.UnixConn
	starting  sync.Mutex // one message on start at a time
	child     *child
	guard     *threads.Guard // ends the session when no thread can be started
	setup     setupResult
	tagBase   uint64        // of a session without namespaces; 0: the kernel ends its processes
	done      chan struct{} // closed when the reader of control has ended
	terminals terminals
	commands  commands
}

// terminals are requests for terminals and their answers.
type terminals struct {
	answers chan *message
	turn    sync.Mutex // one request at a time
}

// commands are the commands of an init by serial number.
type commands struct {
	mu      sync.Mutex
	serial  uint64
	known   map[uint64]*Process
	failure error // why the init ended, when it said so
}

// NewInit starts a session. It returns when its init has proven that the restrictions
// hold. For every FUSE mount it calls onFUSE with the mount's tag and descriptor. onFUSE
// owns the descriptor, and the mount must have a server when onFUSE returns. ctx ends the
// setup, not the session.
func NewInit(ctx context.Context, c Config, onFUSE func(tag string, fd *os.File) error) (*Init, error) {
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("start session: %w", err)
	}
	if c.NoNamespaces {
		c.tagBase = newTagBase()
	}
	file, err := c.setup().file()
	if err != nil {
		return nil, fmt.Errorf("plan session: %w", err)
	}
	defer file.Close()
	i, err := spawnInit(&c)
	if err != nil {
		return nil, fmt.Errorf("start session init: %w", err)
	}
	if i.guard, err = threads.NewGuard(i.control); err != nil {
		i.abandon()
		return nil, fmt.Errorf("set up session: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = i.control.SetReadDeadline(time.Unix(1, 0)) })
	err = i.handshake(file, onFUSE, &c)
	err = errors.Join(err, i.setup.probing.close())
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if ctx.Err() != nil {
			err = errors.Join(ctx.Err(), err)
		}
		if none := i.guard.Close(); none != nil {
			err = none
		}
		i.abandon()
		return nil, fmt.Errorf("set up session: %w", err)
	}
	go i.read()
	if i.Unjudged() {
		go i.child.keepRunning()
	}
	return i, nil
}

// spawnInit executes this program as the init, in its namespaces.
func spawnInit(c *Config) (*Init, error) {
	control, theirControl, err := pair()
	if err != nil {
		return nil, err
	}
	defer theirControl.Close()
	start, theirStart, err := pair()
	if err != nil {
		return nil, errors.Join(err, control.Close())
	}
	defer theirStart.Close()
	cmd := &exec.Cmd{
		Path:        "/proc/self/exe",
		Args:        []string{"agentsh-init"},
		Env:         []string{},
		Dir:         "/",
		ExtraFiles:  []*os.File{theirControl, theirStart},
		SysProcAttr: c.attributes(),
	}
	child, err := startLimited(func() (*child, error) { return startChild(cmd) })
	if err != nil {
		return nil, errors.Join(err, control.Close(), start.Close())
	}
	return &Init{
		control: control, start: start, child: child,
		setup:     setupResult{sockets: map[string]*os.File{}, missing: map[string]error{}},
		terminals: terminals{answers: make(chan *message, 1)},
		commands:  commands{known: map[uint64]*Process{}},
		done:      make(chan struct{}), tagBase: c.tagBase,
	}, nil
}

// attributes are the namespaces and, in a user namespace, the ids of the init.
func (c *Config) attributes() *syscall.SysProcAttr {
	if c.NoNamespaces {
		return &syscall.SysProcAttr{}
	}
	a := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | OtherNamespaces(),
	}
	if !c.Network.Shared {
		a.Cloneflags |= unix.CLONE_NEWNET
	}
	c.User.namespace(a)
	return a
}

// namespace makes a new process be the user in a user namespace, if it has one.
func (u *User) namespace(a *syscall.SysProcAttr) {
	if !u.Namespace {
		return
	}
	uid, gid := u.HostUID, u.HostGID
	if uid == 0 && gid == 0 {
		uid, gid = os.Geteuid(), os.Getegid()
	}
	a.Cloneflags |= unix.CLONE_NEWUSER
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: u.UID, HostID: uid, Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: u.GID, HostID: gid, Size: 1}}
	// Root must not take its groups along. Others cannot change theirs.
	root := os.Geteuid() == 0
	a.GidMappingsEnableSetgroups = root
	a.Credential = &syscall.Credential{Uid: uint32(u.UID), Gid: uint32(u.GID), NoSetGroups: !root}
	// execve by another id than 0 keeps ambient capabilities only
	a.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_NET_ADMIN, unix.CAP_NET_BIND_SERVICE, unix.CAP_SETPCAP}
}

// handshake sends the setup and serves the init until it is ready.
func (i *Init) handshake(setup *os.File, onFUSE func(string, *os.File) error, c *Config) error {
	if err := send(i.control, []byte{msgSetup}, setup); err != nil {
		return fmt.Errorf("send setup: %w", err)
	}
	if c.Guarded != nil {
		c.Guarded()
	}
	for {
		m, err := receive(i.control)
		if err != nil {
			return fmt.Errorf("session init ended: %w", err)
		}
		switch m.kind {
		case msgReady:
			return i.setup.check()
		case msgRoot:
			if c.Rooted != nil {
				c.Rooted(i.PID())
			}
		case msgProbes:
			err = i.setup.addProofs(m.data)
		case msgFUSE:
			err = i.mountFUSE(m, onFUSE)
		case msgBeside:
			err = i.sendFilter(m, c.Beside)
		default:
			err = i.setup.add(m)
		}
		if err != nil {
			return err
		}
	}
}

// mountFUSE passes a mount to onFUSE, and lets the init continue.
func (i *Init) mountFUSE(m *message, onFUSE func(string, *os.File) error) error {
	fds, err := m.descriptors(1)
	if err != nil {
		return err
	}
	if onFUSE == nil {
		m.closeFDs()
		return fmt.Errorf("FUSE mount %s: nobody serves it", m.data)
	}
	if err := onFUSE(string(m.data), fds[0]); err != nil {
		return fmt.Errorf("serve FUSE mount %s: %w", m.data, err)
	}
	return send(i.control, []byte{msgServed})
}

// sendFilter answers an init whose commands are traced.
func (i *Init) sendFilter(m *message, beside func(bool) ([]byte, error)) error {
	if len(m.data) != 1 || beside == nil {
		return fmt.Errorf("session init asks for a filter: %w", unix.EBADMSG)
	}
	filter, err := beside(m.data[0] != 0)
	if err != nil {
		return err
	}
	s := newSpec()
	s.bytes(filter)
	file, err := s.file()
	if err != nil {
		return err
	}
	defer file.Close()
	return send(i.control, []byte{msgFilter}, file)
}

// abandon ends an init whose setup failed.
func (i *Init) abandon() {
	i.child.kill()
	<-i.child.done
	_, _ = i.control.Close(), i.start.Close()
	i.setup.close()
}

// Traced reports whether commands must be traced, because there is no listener. The error
// is what the kernel said to one; nil: none was asked for.
func (i *Init) Traced() (bool, error) { return i.setup.traced, i.setup.why }

// Unjudged reports whether no call of a command is stopped: see [Config].
func (i *Init) Unjudged() bool { return i.setup.unjudged }

// Listener is the listener of the session's filter. The caller closes it.
func (i *Init) Listener() *os.File { return i.setup.listener }

// Socket returns the socket with a tag of [Network.Sockets], or nil. The caller
// closes it.
func (i *Init) Socket(tag string) *os.File { return i.setup.sockets[tag] }

// Missing is the error of the optional part of the setup with this tag, or nil.
func (i *Init) Missing(tag string) error { return i.setup.missing[tag] }

// Refused lists the operations that the init tried and that were refused.
func (i *Init) Refused() []Proof { return i.setup.refused }

// PID is the init's process id in the supervisor's pid namespace.
func (i *Init) PID() int { return i.child.pid }

// Dead is closed when the init has ended, and every process of the session with
// it.
func (i *Init) Dead() <-chan struct{} { return i.child.done }

// Close ends the session. It kills the init, and the kernel then kills every process of
// the pid namespace. It returns when no process is left. A second Close waits as well.
func (i *Init) Close() error {
	i.stop()
	<-i.done
	i.dropPTY()
	return nil
}

// stop ends the init and all processes of the session, and waits for their end.
func (i *Init) stop() {
	_ = i.guard.Close() // it has a descriptor of control; Err reports what it did
	if i.tagBase != 0 {
		// When its sockets close, the init kills the processes that it started.
		_, _ = i.control.Close(), i.start.Close()
		select {
		case <-i.child.done:
		case <-time.After(endGrace):
		}
	}
	i.child.kill()
	<-i.child.done
	_, _ = i.control.Close(), i.start.Close()
	if i.tagBase != 0 {
		killMarked(i.tagBase) // an init that was killed leaves processes
	}
}

// read handles what the init reports until it ends. Close waits for it.
func (i *Init) read() {
	defer close(i.done)
	for {
		m, err := receive(i.control)
		if err == nil {
			err = i.report(m)
		}
		if errors.Is(err, ErrMalformed) {
			i.commands.fail(err)
		}
		if err != nil {
			i.ended(err)
			return
		}
	}
}

// report handles one message of a running init. An error is [ErrMalformed].
func (i *Init) report(m *message) error {
	switch m.kind {
	case msgMarked, msgExit, msgTree, msgEmpty:
		return i.commands.report(m)
	case msgPTY:
		select {
		case i.terminals.answers <- m:
		default:
			m.closeFDs() // the caller has gone
		}
	case msgDied:
		step, errno := m.failure()
		i.commands.fail(fmt.Errorf("%s: %w", step, errno))
	default:
		m.closeFDs()
		return fmt.Errorf("%w: its kind is %q", ErrMalformed, m.kind)
	}
	return nil
}

// Err waits for the end of the init and returns its cause.
func (i *Init) Err() (wire.Cause, error) {
	<-i.done
	err := i.commands.why()
	none := i.guard.Close()
	switch {
	case none != nil:
		return wire.CauseThreads, none
	case errors.Is(err, ErrMalformed), errors.Is(err, unix.EBADMSG):
		return wire.CauseMessage, err
	case errors.Is(err, ErrSessionEnded):
		err = nil
	}
	text := "agentsh-init: " + i.child.exitText()
	if err != nil {
		return wire.CauseInit, fmt.Errorf("%s: %w", text, err)
	}
	return wire.CauseInit, errors.New(text)
}

// ended ends all commands of an init that has ended.
func (i *Init) ended(err error) {
	i.stop()
	i.commands.abort(err)
}

// OpenPTY opens a terminal in the session's own devpts, so that its name is valid inside.
// The caller closes both ends. The slave is for the three streams of a command with
// Command.TTY.
func (i *Init) OpenPTY(ctx context.Context) (master, slave *os.File, err error) {
	i.terminals.turn.Lock()
	defer i.terminals.turn.Unlock()
	i.dropPTY() // of a caller that did not wait
	if err := send(i.control, []byte{msgOpenPTY}); err != nil {
		return nil, nil, fmt.Errorf("request a terminal: %w", err)
	}
	select {
	case m := <-i.terminals.answers:
		if len(m.data) < 7 {
			m.closeFDs()
			return nil, nil, fmt.Errorf("open terminal: malformed message")
		}
		if errno := syscall.Errno(order.Uint32(m.data[3:])); errno != 0 {
			return nil, nil, fmt.Errorf("open terminal: %w", errno)
		}
		fds, err := m.descriptors(2)
		if err != nil {
			return nil, nil, fmt.Errorf("open terminal: %w", err)
		}
		return fds[0], fds[1], nil
	case <-i.done:
		return nil, nil, fmt.Errorf("open terminal: %w", ErrSessionEnded)
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("open terminal: %w", ctx.Err())
	}
}

// dropPTY closes a terminal for which no caller waits.
func (i *Init) dropPTY() {
	select {
	case m := <-i.terminals.answers:
		m.closeFDs()
	default:
	}
}

// child is a process of this program. The thread that forked it lives as long as the
// child: the kernel sends the signal of PR_SET_PDEATHSIG at the end of that thread. See
// prctl(2).
type child struct {
	pid  int
	proc *os.Process
	done chan struct{} // closed after the wait
	err  error         // of the wait; read after done
}

// startChild starts cmd on a thread of its own, which also waits for it. Where another
// supervisor never answers its execve, the error says so after seconds.
func startChild(cmd *exec.Cmd) (*child, error) {
	c := &child{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := watchExecve(func() error { return own.start(cmd) })
		if cmd.Process != nil {
			c.proc, c.pid = cmd.Process, cmd.Process.Pid
			if err != nil {
				_ = cmd.Wait() // it was killed
				own.forget(c.pid)
			}
		}
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			own.forget(c.pid)
			close(c.done)
		}
	}()
	return c, <-started
}

// keepRunning continues the child when it is stopped, and returns at its end. Where nothing
// stops their calls, commands of the same user can stop the init. It would neither tell of
// their ends nor end the session. See waitid(2): SIGCONT ends the state that WNOWAIT leaves.
func (c *child) keepRunning() {
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, c.pid, &info, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || !siginfo.Stopped(&info) || c.proc.Signal(unix.SIGCONT) != nil {
			return
		}
	}
}

// kill sends SIGKILL. It ignores a child that has ended.
func (c *child) kill() { _ = c.proc.Kill() }

// exitText describes how a child ended.
func (c *child) exitText() string {
	<-c.done
	if c.err == nil {
		return "exit status 0"
	}
	return strings.TrimSpace(c.err.Error())
}
