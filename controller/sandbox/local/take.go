package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// Take implements [sandbox.Taker]. Only a sandbox with [sandbox.Spec.Keep] outlives its
// controller.
func (b *Backend) Take(_ context.Context, runID string) (sandbox.Sandbox, error) {
	if !idPattern().MatchString(runID) {
		return nil, fmt.Errorf("run id %q: letters, digits and dashes only", runID)
	}
	d := &directory{state: b.cfg.State, path: filepath.Join(b.cfg.State.Sandboxes(), runID)}
	if _, err := os.Stat(filepath.Join(d.path, layout.KeptKeys)); err != nil || !isLeased(d.path) {
		return nil, errors.New("its sandbox ended with its controller: without --keep-sandbox it cannot be taken over")
	}
	var err error
	if d.info, err = readInfo(d.path); err != nil {
		return nil, err
	}
	t := &taken{box: box{dir: d, keep: 1, gone: make(chan struct{}), cause: sandbox.ErrGone}}
	if t.process, err = openProcess(d.info); err != nil {
		return nil, err
	}
	go t.wait()
	return t, nil
}

// taken is a sandbox whose supervisor another controller started.
type taken struct {
	box
	process int // pidfd of the supervisor

	closing sync.Once
}

// openProcess opens the supervisor of a sandbox by a pidfd.
func openProcess(i info) (int, error) {
	fd, err := unix.PidfdOpen(i.PID, 0)
	if err == nil {
		// Read after the descriptor is open: it then belongs to the same process, or there is none.
		if !i.Alive() {
			err = errors.Join(unix.ESRCH, unix.Close(fd))
		}
	}
	if err != nil {
		return -1, fmt.Errorf("its supervisor has ended: %w", err)
	}
	return fd, nil
}

// wait waits for the end of the supervisor. Every taken has one such goroutine.
func (t *taken) wait() {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(t.process), Events: unix.POLLIN}}, -1)
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			break
		}
	}
	t.log.ReadFile(t.dir.messages())
	if last := t.log.LastMessage(); last != "" {
		t.cause = fmt.Errorf("%w: supervisor: %s", sandbox.ErrGone, last)
	}
	close(t.gone)
}

// Ready implements [sandbox.Sandbox]. The supervisor answers when the connection of its
// controller has ended.
func (t *taken) Ready(ctx context.Context) (wire.Hello, error) {
	client, err := Kept{ID: t.ID(), dir: t.dir.path, state: t.dir.state}.Dial(ctx, "agentctl")
	if err != nil {
		return wire.Hello{}, t.orCause(err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return wire.Hello{}, errors.Join(sandbox.ErrGone, client.Close())
	}
	t.client, t.Client = client, client
	return client.Hello(), nil
}

// end sends a signal to the supervisor.
func (t *taken) end(s syscall.Signal) {
	_ = unix.PidfdSendSignal(t.process, s, nil, 0) // an error means that it has ended
}

// Stop implements [sandbox.Sandbox].
func (t *taken) Stop(ctx context.Context) error {
	t.mu.Lock()
	client := t.client
	t.client, t.stopped = nil, true
	t.mu.Unlock()
	select {
	case <-t.gone: // and the descriptor may be closed
	default:
		t.end(unix.SIGTERM)
	}
	if client != nil {
		_ = client.Close() // its error is that of the connection
	}
	for _, limit := range []time.Duration{stopWait, endWait} {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-t.gone:
			return nil
		case <-timer.C:
		case <-ctx.Done():
		}
		t.end(unix.SIGKILL)
	}
	return fmt.Errorf("supervisor %d does not end", t.dir.info.PID)
}

// Keep implements [sandbox.Sandbox]. A run that was taken over ends.
func (*taken) Keep(context.Context) (time.Time, error) {
	return time.Time{}, errors.New("a sandbox that was taken over ends with its run")
}

// Delete implements [sandbox.Sandbox].
func (t *taken) Delete(ctx context.Context) error {
	err := t.Stop(ctx)
	t.closing.Do(func() { err = errors.Join(err, t.remove()) })
	if err != nil {
		return fmt.Errorf("delete sandbox %s: %w", t.ID(), err)
	}
	return nil
}

// remove removes the directory. Its lease was that of the supervisor.
func (t *taken) remove() error {
	select {
	case <-t.gone:
		_ = unix.Close(t.process)
	default: // it does not end, and wait uses the descriptor
		return nil
	}
	var err error
	if t.dir.lease, err = statedir.TakeLock(leaseOf(t.dir.path), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	return t.dir.remove()
}

var (
	_ sandbox.Sandbox = (*taken)(nil)
	_ sandbox.Taker   = (*Backend)(nil)
)
