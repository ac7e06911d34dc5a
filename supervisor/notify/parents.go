package notify

import (
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// parents are processes that started others. Each is held open by a pidfd: while that
// process lives, its number cannot mean another one, and nothing needs to be read to know
// it again. It is safe for concurrent use.
type parents struct {
	mu    sync.Mutex
	known map[int]parent // by number
}

// parent is a process that was a parent at least once.
type parent struct {
	target.Process
	fd int // -1: seen once
}

// maxParentsKnown bounds the pidfds, and so the processes.
const maxParentsKnown = 64

// alive returns the process that has the number pid, if that is certain.
func (k *parents) alive(pid int) (target.Process, bool) {
	k.mu.Lock() // until the end: else the descriptor may become another's
	defer k.mu.Unlock()
	p, found := k.known[pid]
	return p.Process, found && p.fd >= 0 && lives(p.fd)
}

// lives reports whether the process of a pidfd has not ended. See pidfd_open(2).
func lives(pidfd int) bool {
	fds := [1]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds[:], 0)
		if err != unix.EINTR { // a signal interrupts it, although it does not wait
			return err == nil && n == 0
		}
	}
}

// add stores a process, and opens a pidfd when it was stored before.
func (k *parents) add(process target.Process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before, found := k.known[process.PID]
	if found && before.fd >= 0 {
		_ = unix.Close(before.fd)
	}
	if !found && len(k.known) >= maxParentsKnown {
		k.drop()
	}
	p := parent{process, -1}
	if found && before.Process == process {
		p.fd = openPidfd(process)
	}
	k.known[process.PID] = p
}

// openPidfd opens a pidfd of a process; -1: that is not possible.
func openPidfd(p target.Process) int {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return -1
	}
	if now, err := target.Identify(p.PID); err != nil || now.Process != p {
		_ = unix.Close(fd) // the number belongs to another process now
		return -1
	}
	return fd
}

// drop removes all processes. It is called with mu held, or without other callers.
func (k *parents) drop() {
	for _, p := range k.known {
		if p.fd >= 0 {
			_ = unix.Close(p.fd)
		}
	}
	clear(k.known)
}
