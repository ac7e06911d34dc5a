package place

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/socket"
	"agentsh/supervisor/cgroup"
	"agentsh/supervisor/launch"
)

// containerLook is the interval at which process 1 of a container looks for sandboxes.
const containerLook = time.Second

// ServeContainer is process 1 of a container that a controller made for one sandbox. It
// reaps processes. It ends, and with it the container, when there was no sandbox for the
// time idle, or when ctx ends.
func ServeContainer(ctx context.Context, o Options, idle time.Duration) error {
	return newPlaces(o).first(ctx, idle, reap)
}

// ServeMachine is process 1 of a virtual machine that a controller made for one sandbox. It
// answers the streams that arrive at a listener, which it closes, and reaps processes. It
// ends when there was no sandbox for the time idle, or when ctx ends.
func ServeMachine(ctx context.Context, l *socket.Listener, o Options, idle time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		served <- ServeListener(ctx, l, o)
		cancel()
	}()
	err := newPlaces(o).first(ctx, idle, launch.ReapOthers)
	cancel()
	return errors.Join(err, <-served)
}

// first is what the first process of a container or machine does until its end. reap
// takes the exit status of processes that have ended.
func (p *places) first(ctx context.Context, idle time.Duration, reap func()) error {
	if idle <= 0 {
		return fmt.Errorf("%s without a sandbox: a positive duration", idle)
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	defer signal.Stop(ended)
	look := time.NewTicker(containerLook)
	defer look.Stop()
	for until := time.Now().Add(idle); time.Now().Before(until); {
		reap()
		used, alive := p.used()
		switch {
		case alive:
			until = time.Now().Add(idle)
		case used: // its sandbox has ended: its last messages are on their way
			until = earlier(until, time.Now().Add(farewell))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ended:
		case <-look.C:
		}
	}
	return nil
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// reap takes the exit status of every child that has ended. Only the init of a pid
// namespace gets children that it did not start.
func reap() {
	for {
		pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// used reports whether there was a sandbox, and whether its supervisor is alive.
func (p *places) used() (used, alive bool) {
	if _, err := os.Lstat(p.dir); err != nil {
		return false, false
	}
	for _, b := range p.all() {
		alive = alive || b.alive()
	}
	return true, alive
}

// killedForMemory says how many processes the kernel killed because memory was full, since
// there were before of them; empty: none, or the number is unknown.
func killedForMemory(before int) string {
	n, err := cgroup.ContainerOOMKills()
	if err != nil || n <= before {
		return ""
	}
	return fmt.Sprintf(": memory was full, and the kernel killed %d of the processes here", n-before)
}
