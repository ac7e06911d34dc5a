package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// destroyGrace is how long a session may take to end when it is asked to, and
// destroyBound how long its processes may take to die by force.
const (
	destroyGrace = 20 * time.Second
	destroyBound = 10 * time.Second
)

// Destroy ends a session and returns when no process of it is left and its name
// is free: its supervisor is asked, and killed when it does not end. The error
// has ErrNoSession in its chain when none of that name runs.
func (r *Registry) Destroy(ctx context.Context, name string) error {
	one, err := r.Find(name)
	if err != nil {
		return err
	}
	supervisor, err := openProcess(one.PID)
	if err != nil {
		return fmt.Errorf("session %s: %w", name, err)
	}
	defer supervisor.Close()
	// The process is identified after it was opened: now the number cannot be reused.
	if id, err := target.Identify(one.PID); err != nil || id.Start != one.StartTime {
		r.removeDead(name)
		return nil
	}
	parts, err := openProcesses(one.Parts)
	defer parts.close()
	if err != nil {
		return fmt.Errorf("session %s: %w", name, err)
	}
	if err := end(ctx, supervisor); err != nil {
		return fmt.Errorf("session %s: %w", name, err)
	}
	for _, p := range parts {
		if err := p.wait(ctx, destroyBound); err != nil {
			return fmt.Errorf("session %s: a process is left: %w", name, err)
		}
	}
	r.removeDead(name)
	return nil
}

// end ends a supervisor: asked first, then by force.
func end(ctx context.Context, p *process) error {
	if err := p.signal(unix.SIGTERM); err != nil {
		return err
	}
	err := p.wait(ctx, destroyGrace)
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return errors.Join(p.signal(unix.SIGKILL), p.wait(ctx, destroyBound))
}

// process is a process that is waited for though it is no child. See
// pidfd_open(2). A nil process has ended.
type process struct{ *os.File }

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return &process{os.NewFile(uintptr(fd), "process")}, nil
}

type processes []*process

func openProcesses(pids []int) (processes, error) {
	var out processes
	for _, pid := range pids {
		p, err := openProcess(pid)
		if err != nil {
			return out, err
		}
		out = append(out, p)
	}
	return out, nil
}

func (list processes) close() {
	for _, p := range list {
		p.Close()
	}
}

// Close closes the descriptor.
func (p *process) Close() {
	if p != nil {
		_ = p.File.Close() // nothing was written
	}
}

// signal sends a signal; a process that has ended takes none.
func (p *process) signal(s unix.Signal) error {
	if p == nil {
		return nil
	}
	raw, err := p.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), s, nil, 0) })
	if errors.Is(sent, unix.ESRCH) {
		sent = nil
	}
	return errors.Join(err, sent)
}

// wait waits until the process has ended, at most d.
func (p *process) wait(ctx context.Context, d time.Duration) error {
	if p == nil {
		return nil
	}
	if err := p.SetReadDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := p.SyscallConn()
	if err != nil {
		return err
	}
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
			if !errors.Is(err, unix.EINTR) { // else the end of a process that has ended would not be seen again
				return err == nil && n == 1
			}
		}
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}
