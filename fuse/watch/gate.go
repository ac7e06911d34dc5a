package watch

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// queue is a descriptor from which events are read. The gate is nil if there is none.
//
// The descriptor itself is unknown to the runtime's poller: that would wake a thread at each
// event, also at those of this process.
type queue struct {
	gate  *os.File // an epoll instance that is readable once after arm
	fd    int
	parse func([]byte) (events []Event, lost bool)
	// length returns how much of FIONREAD the events in a buffer are.
	length func([]byte) int
}

// newQueue takes over a descriptor. The gate is armed.
func newQueue(fd int, parse func([]byte) ([]Event, bool), length func([]byte) int) (queue, error) {
	gate, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		_ = unix.Close(fd)
		return queue{}, fmt.Errorf("epoll_create1: %w", err)
	}
	if err = unix.SetNonblock(gate, true); err == nil {
		err = unix.EpollCtl(gate, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT})
	}
	if err != nil {
		_, _ = unix.Close(gate), unix.Close(fd)
		return queue{}, fmt.Errorf("wait for events: %w", err)
	}
	return queue{os.NewFile(uintptr(gate), "events"), fd, parse, length}, nil
}

// opened reports whether the queue of a gate has got events. The gate is then closed until
// it is armed again.
func opened(gate uintptr) bool {
	var event [1]unix.EpollEvent
	n, err := unix.EpollWait(int(gate), event[:], 0)
	return err == nil && n > 0
}

// arm opens the gate as soon as the queue has events. It reports false if the queue is closed.
func (q queue) arm() (ok bool) {
	conn, err := q.gate.SyscallConn()
	if err != nil {
		return false
	}
	err = conn.Control(func(gate uintptr) {
		ok = unix.EpollCtl(int(gate), unix.EPOLL_CTL_MOD, q.fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT}) == nil
	})
	return ok && err == nil
}

// wait returns when the armed gate opens. It reports false if the queue is closed.
func (q queue) wait() bool {
	conn, err := q.gate.SyscallConn()
	return err == nil && conn.Read(opened) == nil
}

func (q queue) close() {
	q.gate.Close()
	_ = unix.Close(q.fd) // nothing was written
}
