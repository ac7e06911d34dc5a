package notify

import (
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// parents are processes that started others, each held by a pidfd: while that
// says that the process lives, its number means it, and nothing need be read to
// know it again. It is safe for concurrent use.
type parents struct {
	mu   sync.Mutex
	held map[int]parent // by number
}

// parent is a process that was a parent at least once.
type parent struct {
	target.Process
	fd int // -1: seen once
}

// maxHeld bounds the pidfds, and with them the processes remembered.
const maxHeld = 64

// alive tells who has the number pid, if that is certain.
func (k *parents) alive(pid int) (target.Process, bool) {
	k.mu.Lock() // until the end: else the descriptor may become another's
	defer k.mu.Unlock()
	p, known := k.held[pid]
	return p.Process, known && p.fd >= 0 && lives(p.fd)
}

// lives reports whether the process of a pidfd has not ended. See pidfd_open(2).
func lives(pidfd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds[:], 0)
	return err == nil && n == 0
}

// saw remembers a process, and holds it when it was seen before.
func (k *parents) saw(process target.Process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, known := k.held[process.PID]
	if known && before.fd >= 0 {
		_ = unix.Close(before.fd)
	}
	if !known && len(k.held) >= maxHeld {
		k.drop()
	}
	p := parent{process, -1}
	if known && before.Process == process {
		p.fd = hold(process)
	}
	k.held[process.PID] = p
}

// hold opens a pidfd of a process; -1: that cannot be done.
func hold(p target.Process) int {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1
	}
	if now, err := target.Identify(p.PID); err != nil || now.Process != p {
		_ = unix.Close(fd) // the number has changed hands
		return -1
	}
	return fd
}

// drop forgets everybody. It is called with mu held, or when nobody else calls.
func (k *parents) drop() {
	for _, p := range k.held {
		if p.fd >= 0 {
			_ = unix.Close(p.fd)
		}
	}
	clear(k.held)
}
