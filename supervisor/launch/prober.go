package launch

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"agentsh/seccomp"
)

// answers refuses the calls that the init tries before it is ready. No loop answers calls
// yet, and the init must see that they fail.
type answers struct {
	listener *seccomp.Listener
	done     chan error
}

// refuseAll refuses every notified call until close.
func refuseAll(listener *os.File) (*answers, error) {
	fd, err := unix.FcntlInt(listener.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("listener: %w", err)
	}
	f := os.NewFile(uintptr(fd), "listener")
	l, err := seccomp.NewListener(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	a := &answers{l, make(chan error, 1)}
	go func() {
		for {
			var n seccomp.Notification
			err := l.Receive(&n)
			if err == nil {
				err = l.Deny(n.ID, unix.EPERM)
			}
			if err != nil && !errors.Is(err, seccomp.ErrGone) {
				a.done <- err
				return
			}
		}
	}()
	return a, nil
}

// close stops answering. It returns when the goroutine has ended.
func (a *answers) close() error {
	if a == nil {
		return nil
	}
	err := a.listener.Close()
	<-a.done // it was closed, or the init has ended, which is reported elsewhere
	return err
}
