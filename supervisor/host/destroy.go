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
type process struct {
	*os.File // nil: a filter above refuses pidfd_open, and the number must do
	id       target.Process
}

func openProcess(pid int) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if errors.Is(err, unix.EPERM) {
		id, err := target.Identify(pid)
		if err != nil {
			return nil, nil //nolint:nilerr // it has ended
		}
		return &process{id: id.Process}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	return &process{File: os.NewFile(uintptr(fd), "process")}, nil
}

// ended reports whether a process without a descriptor has ended, waited for or not. See
// proc_pid_exe(5).
func (p *process) ended() bool {
	id, err := target.Identify(p.id.PID)
	_, noProgram := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.id.PID))
	return err != nil || id.Process != p.id || errors.Is(noProgram, os.ErrNotExist)
}

// waitByNumber looks for the end of a process without a descriptor.
func (p *process) waitByNumber(ctx context.Context, d time.Duration) error {
	const pause = 10 * time.Millisecond
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for end := time.Now().Add(d); !p.ended(); {
		if time.Now().After(end) {
			return os.ErrDeadlineExceeded
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
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
	if p != nil && p.File != nil {
		_ = p.File.Close() // nothing was written
	}
}

// signal sends a signal; a process that has ended takes none.
func (p *process) signal(s unix.Signal) error {
	if p == nil {
		return nil
	}
	if p.File == nil {
		if err := unix.Kill(p.id.PID, s); err != nil && !p.ended() {
			return fmt.Errorf("process %d: %w", p.id.PID, err)
		}
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
	if p.File == nil {
		return p.waitByNumber(ctx, d)
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
