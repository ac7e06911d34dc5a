package supervisor

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"agentsh/internal/wire"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/streams"
)

// killGrace is how long a command has between TERM and KILL, while its caller is there.
const killGrace = 2 * time.Second

// running is a started command.
type running struct {
	process  *launch.Process
	streams  *streams.Streams
	tty      bool
	deadline time.Duration // 0: none
	gone     <-chan struct{}
}

// wait follows a running command to its end.
func (r running) wait(ctx context.Context, control <-chan wire.Control) (*wire.Exit, error) {
	var timeout <-chan time.Time
	if r.deadline > 0 {
		timer := time.NewTimer(r.deadline)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		select {
		case <-r.process.Exited():
			return ended(r.process)
		case <-timeout:
			if err := r.kill(); err != nil {
				return nil, err
			}
			exit, err := ended(r.process)
			if err == nil {
				exit.Kind, exit.Message = wire.ExitDeadline, fmt.Sprintf("ended after its deadline of %s", r.deadline)
			}
			return exit, err
		case <-ctx.Done():
			if err := r.kill(); err != nil {
				return nil, err
			}
			return ended(r.process)
		case m := <-control:
			if err := r.act(m); err != nil {
				return nil, err
			}
		}
	}
}

// maxSignal is the highest number of a signal. See signal(7).
const maxSignal = 64

// act carries out a request of the caller about a running command.
func (r running) act(m wire.Control) error {
	switch {
	case m.Kill:
		return r.kill()
	case m.Signal > 0 && m.Signal <= maxSignal:
		return r.process.Signal(syscall.Signal(m.Signal))
	case m.TTY != nil:
		_ = r.streams.Resize(m.TTY) // the terminal may have gone
	case m.CloseOutput != 0:
		r.streams.CloseOutput(m.CloseOutput)
	}
	return nil
}

// kill ends the command with all its processes. With a terminal it sends HUP
// first: interactive shells ignore TERM.
func (r running) kill() error {
	if r.tty {
		if err := r.process.Signal(syscall.SIGHUP); err != nil {
			return err
		}
	}
	return r.process.Kill(killGrace, r.gone)
}

// ended is how a command's first process ended.
func ended(process *launch.Process) (*wire.Exit, error) {
	status, err := process.Wait()
	if err != nil {
		return nil, err
	}
	exit := &wire.Exit{Kind: wire.ExitExited, Code: status.ExitCode(), Rusage: wire.Rusage{
		UserMicros: status.Rusage.User.Microseconds(), SystemMicros: status.Rusage.System.Microseconds(), MaxRSSBytes: status.Rusage.MaxRSS,
	}}
	if status.Signaled() {
		exit.Kind, exit.Code, exit.Signal = wire.ExitSignaled, 0, int(status.Signal())
	}
	return exit, nil
}
