package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/channel"
	"agentsh/internal/siginfo"
)

// program is a carrier whose streams are the standard input and output of a program.
type program struct {
	address string
	argv    []string
}

func (p program) String() string { return p.address }

func (program) Shell() bool { return true }

func (p program) Check() error {
	_, err := exec.LookPath(p.argv[0])
	return err
}

// Open starts the program. It has a session of its own, so that Ctrl-C reaches only the
// controller.
func (p program) Open(ctx context.Context) (Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	ours, theirs, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	s := &pipe{Conn: ours, gone: make(chan struct{}), closed: make(chan struct{}), over: make(chan struct{})}
	s.cmd = exec.Command(p.argv[0], p.argv[1:]...) //nolint:noctx // it ends with its stream
	s.cmd.Stdin, s.cmd.Stdout = theirs, theirs
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	messages, err := s.cmd.StderrPipe()
	if err == nil {
		err = s.cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	go s.wait(messages) // ends with the program: Close and Kill see to it
	return s, nil
}

// pipe is a running program and its standard input and output.
type pipe struct {
	net.Conn
	cmd      *exec.Cmd
	messages sandbox.Tail  // its standard error
	gone     chan struct{} // closed when the program has ended
	err      error         // of its end; set before gone is closed
	closed   chan struct{} // closed when the stream is closed
	over     chan struct{} // closed when the program is reaped
	once     sync.Once

	mu     sync.Mutex
	reaped bool // another process may have the number of the program
}

// messageWait is the time for messages after the end of the program. A child of it may hold standard error open.
const messageWait = time.Second

// wait waits for the end of the program and for that of the stream. It then kills what the program left in its process group, and reaps
// the program. Until then no other process group can have its number. See waitid(2), WNOWAIT.
func (s *pipe) wait(messages io.Reader) {
	defer close(s.over)
	copied := make(chan struct{})
	go func() { // ends with the last writer, or with cmd.Wait
		_, _ = io.Copy(&s.messages, messages)
		close(copied)
	}()
	s.err = ended(s.cmd.Process.Pid)
	limit := time.NewTimer(messageWait)
	defer limit.Stop()
	select {
	case <-copied:
	case <-limit.C:
	}
	close(s.gone)
	<-s.closed
	s.mu.Lock()
	_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	_ = s.cmd.Wait() // its result is known
	s.reaped = true
	s.mu.Unlock()
	<-copied
}

// ended waits for the end of a child and does not reap it. It returns nil if the child ended with success.
func ended(pid int) error {
	var info unix.Siginfo
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) {
		err = unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
	}
	status := siginfo.Status(&info)
	switch {
	case err != nil:
		return fmt.Errorf("wait: %w", err)
	case !siginfo.Exited(&info):
		return fmt.Errorf("signal: %s", syscall.Signal(status))
	case status != 0:
		return fmt.Errorf("exit status %d", status)
	}
	return nil
}

// Close implements [net.Conn].
func (s *pipe) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// Gone implements [Stream].
func (s *pipe) Gone() <-chan struct{} { return s.gone }

// otherKey is what the warning of ssh about the key of a host means.
const otherKey = "the host shows another key than the known one"

// Cause is the last message of the ended program, or its status.
func (s *pipe) Cause() error {
	last := s.messages.LastMessage()
	if strings.Contains(last, "REMOTE HOST IDENTIFICATION HAS CHANGED") { // in a frame of several lines
		return errors.New(otherKey)
	}
	if last != "" {
		return errors.New(last)
	}
	if s.err != nil {
		return fmt.Errorf("%s: %w", s.cmd.Args[0], s.err)
	}
	return nil
}

// Kill ends the program and what it started in its process group.
func (s *pipe) Kill() {
	_ = s.Close()
	s.mu.Lock()
	if !s.reaped {
		_ = syscall.Kill(-s.cmd.Process.Pid, syscall.SIGKILL)
	}
	s.mu.Unlock()
	<-s.over
}
