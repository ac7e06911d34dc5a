package launch

import (
	"errors"
	"os/exec"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/siginfo"
)

// own are the children that this process waits for.
var own = &children{pids: map[int]bool{}}

type children struct {
	mu   sync.Mutex
	pids map[int]bool
}

// start starts a child that is known before anybody can reap it.
func (c *children) start(cmd *exec.Cmd) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := cmd.Start()
	if err == nil {
		c.pids[cmd.Process.Pid] = true
	}
	return err
}

func (c *children) forget(pid int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pids, pid)
}

// ReapOthers takes the exit status of ended children that this process did not start by
// this package. Only the init of a pid namespace gets such children. It returns at the first
// one that this process waits for: call it again. See waitid(2), WNOWAIT.
func ReapOthers() {
	for {
		own.mu.Lock()
		more := reapOne()
		own.mu.Unlock()
		if !more {
			return
		}
	}
}

// reapOne reaps one child, and reports whether it did.
func reapOne() bool {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_ALL, 0, &info, unix.WEXITED|unix.WNOWAIT|unix.WNOHANG, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return false // there is no child
		}
	}
	pid := siginfo.PID(&info)
	if pid == 0 || own.pids[pid] {
		return false
	}
	got, err := unix.Wait4(pid, nil, unix.WNOHANG, nil)
	return err == nil && got == pid
}
