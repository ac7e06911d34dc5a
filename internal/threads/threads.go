// Package threads keeps a program alive that cannot start a thread: the limit of
// processes is reached, by RLIMIT_NPROC, a pids control group or the machine. The Go
// runtime would abort it. With this package the thread that needs another one waits. After
// five seconds it ends what has a [Guard], which makes room.
package threads

// #cgo CFLAGS: -O2 -Wall -Wextra -std=gnu11
// #cgo LDFLAGS: -pthread -Wl,--wrap=pthread_create
// #include "threads.h"
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNone is the error of what was ended because no thread could be started.
var ErrNone = errors.New("no thread could be started: the limit of processes is reached")

// Guard is what ends when no thread can be started.
type Guard struct {
	socket int
	slot   C.int
	once   sync.Once
	ended  bool
}

// NewGuard returns a guard that shuts a connection down. The connection may be closed
// before the guard.
func NewGuard(conn syscall.Conn) (*Guard, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("guard a session: %w", err)
	}
	g := &Guard{slot: -1}
	var failed error
	if err = raw.Control(func(fd uintptr) { g.socket, failed = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err == nil {
		err = failed
	}
	if err != nil {
		return nil, fmt.Errorf("guard a session: %w", err)
	}
	if g.slot = C.threads_guard(C.int(g.socket)); g.slot < 0 {
		_ = unix.Close(g.socket)
		return nil, errors.New("guard a session: there are too many")
	}
	return g, nil
}

// Close ends the guard. It returns ErrNone if the guard shut its connection down. A later
// call returns the same. It may be called on nil.
func (g *Guard) Close() error {
	if g == nil {
		return nil
	}
	g.once.Do(func() {
		g.ended = C.threads_release(g.slot) != 0
		_ = unix.Close(g.socket)
	})
	if g.ended {
		return ErrNone
	}
	return nil
}

// Short reports whether a thread could not be started within the last second. What can
// do without a further thread should.
func Short() bool {
	since := time.Duration(C.threads_failed()) * time.Millisecond
	return since >= 0 && since < time.Second
}

// Reserve has the Go runtime keep n threads that wait for work. It starts them beside the
// caller. The function that it returns waits until they are there.
func Reserve(n int) (wait func()) {
	var all sync.WaitGroup
	free := make(chan struct{})
	var ready sync.WaitGroup
	ready.Add(n)
	for range n {
		all.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ready.Done()
			<-free
		})
	}
	go func() {
		ready.Wait()
		close(free)
	}()
	return all.Wait
}
