package tools

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/text"
)

// Turns has the servers of a workspace on this machine change files one after the other: each holds the lock
// of the directory meanwhile, as of flock(2). The kernel gives the lock back when a process ends in any way. On a file
// system without such locks there are no turns.
type Turns struct {
	dir *os.File // open until this process ends

	mu     sync.Mutex
	wanted bool       // a call waits for the lock
	result chan error // of the goroutine that waits for the lock; nil: there is none
}

// NewTurns takes turns in changes below a directory of this machine.
func NewTurns(dir string) (*Turns, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("take turns with other servers of the workspace: %w", err)
	}
	return &Turns{dir: f}, nil
}

// turnWait is how long a call waits for another server. It is a variable for tests.
var turnWait = 2 * time.Minute

// take waits for the lock, and returns how to give it back. One call at a time takes it. Nil turns have nobody to wait for.
func (t *Turns) take(ctx context.Context) (leave func(), err error) {
	if t == nil {
		return func() {}, nil
	}
	t.mu.Lock()
	t.wanted = true
	if t.result == nil {
		t.result = make(chan error, 1)
		go t.lock(t.result) // it cannot be cancelled: the next call waits for its result
	}
	result := t.result
	t.mu.Unlock()
	limit := time.NewTimer(turnWait)
	defer limit.Stop()
	select {
	case err = <-result:
		if err != nil {
			return nil, fmt.Errorf("take turns with other servers of the workspace: %w", err)
		}
		return t.unlock, nil
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-limit.C:
		err = fmt.Errorf("another program has had the lock of %s for %s, as servers of these tools have while they change a file: "+
			"nothing was changed; call again, or end that program ('lslocks' lists it)", text.Visible(t.dir.Name()), turnWait)
	}
	t.giveUp(result)
	return nil, err
}

// lock waits for the lock, and passes it on. If nobody wants it any more, it is given back.
func (t *Turns) lock(result chan<- error) {
	var err error
	for {
		if err = unix.Flock(int(t.dir.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if slices.Contains([]error{unix.EBADF, unix.ENOLCK, unix.EOPNOTSUPP, unix.ENOSYS}, err) {
		err = nil // a file system without such locks, as NFS for directories
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result = nil
	switch {
	case t.wanted:
		result <- err
	case err == nil:
		t.unlock()
	}
}

// giveUp says that nobody wants the lock. It may have come meanwhile.
func (t *Turns) giveUp(result <-chan error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.wanted = false
	select {
	case err := <-result:
		if err == nil {
			t.unlock()
		}
	default:
	}
}

// unlock fails only for a file that is not open.
func (t *Turns) unlock() { _ = unix.Flock(int(t.dir.Fd()), unix.LOCK_UN) }
