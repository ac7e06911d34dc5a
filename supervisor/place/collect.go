package place

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/statedir"
	"agentsh/internal/wire"
	"agentsh/seccomp/target"
)

// collect ends and removes the sandboxes of an owner that the owner does not use.
func (p *places) collect(ctx context.Context, req wire.PlaceRequest) (wire.PlaceCollected, error) {
	if !names().MatchString(req.Owner) {
		return wire.PlaceCollected{}, fmt.Errorf("owner %.100q: letters, digits and dashes only", req.Owner)
	}
	unlock, err := p.State.Lock()
	if err != nil {
		return wire.PlaceCollected{}, err
	}
	all := p.all()
	unlock()
	var done wire.PlaceCollected
	for _, b := range all {
		if b.labels.Owner != req.Owner || slices.Contains(req.Keep, b.labels.ID) {
			continue
		}
		one := wire.PlaceLeftover{ID: b.labels.ID}
		if !req.DryRun {
			if err := p.end(ctx, b); err != nil {
				one.Error = err.Error()
			}
		}
		done.Sandboxes = append(done.Sandboxes, one)
	}
	return done, nil
}

// end ends the supervisor of a sandbox and removes the sandbox.
func (p *places) end(ctx context.Context, b *sandbox) error {
	ctx, cancel := context.WithTimeoutCause(ctx, endWait, errors.New("its supervisor does not end"))
	defer cancel()
	if err := b.kill(ctx); err != nil {
		return err
	}
	unlock, err := p.State.Lock() // a sandbox that is being made has no lease for a moment
	if err != nil {
		return err
	}
	err = b.lock()
	unlock()
	if errors.Is(err, unix.EWOULDBLOCK) && b.labels.PID == 0 {
		return errors.New("its supervisor is being started: collect again")
	}
	if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, fs.ErrNotExist) {
		return nil // the process that started the supervisor removes it
	}
	if err != nil {
		return err
	}
	return b.remove()
}

// alive reports whether the supervisor runs. Another process may have its number.
func (b *sandbox) alive() bool {
	if b.labels.PID <= 1 || b.labels.Boot != "" && b.labels.Boot != statedir.BootID() {
		return false
	}
	found, err := target.Identify(b.labels.PID)
	return err == nil && found.Start == b.labels.Start
}

// kill kills the supervisor, if it is alive, and waits for its end. See pidfd_open(2).
func (b *sandbox) kill(ctx context.Context) error {
	if !b.alive() {
		return nil
	}
	fd, err := unix.PidfdOpen(b.labels.PID, 0)
	if err != nil {
		return nil // it has ended
	}
	defer func() { _ = unix.Close(fd) }()
	// Looked at after the descriptor is open: it then belongs to the same process.
	if !b.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill supervisor %d: %w", b.labels.PID, err)
	}
	const look = 200 * time.Millisecond // interval of the check for the end of ctx
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(look.Milliseconds()))
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for supervisor %d: %w", b.labels.PID, err)
		}
	}
	return context.Cause(ctx)
}
