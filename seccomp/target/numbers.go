package target

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Numbers returns the numbers of a thread's process, from the pid namespace of this process to
// that of the thread. status is of the thread. gVisor has no field NStgid: there the numbers
// are those of a process descriptor. See pidfd_open(2) and proc_pid_fdinfo(5).
func Numbers(status []byte) ([]string, error) {
	if n := strings.Fields(statusField(status, "NStgid")); len(n) > 0 {
		return n, nil
	}
	pid, err := strconv.Atoi(statusField(status, "Tgid"))
	if err != nil {
		return nil, fmt.Errorf("its status names no thread group: %w", err)
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("pidfd_open: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	return numbersOf(fd)
}

// numbersOf returns the numbers of the process that a descriptor refers to.
func numbersOf(pidfd int) ([]string, error) {
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return nil, err
	}
	n := strings.Fields(statusField(text, "NSpid"))
	if len(n) == 0 {
		return nil, errors.New("the kernel does not tell its numbers")
	}
	return n, nil
}

// openProcess returns a process descriptor of p, which is a process of the pid namespace of t,
// for a kernel on which a directory of procfs is none. All processes are looked at.
func openProcess(t *Target, p Peer) (int, error) {
	namespace, err := readlinkat(t.proc, "ns/pid")
	if err != nil {
		return -1, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return -1, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if link, err := os.Readlink("/proc/" + e.Name() + "/ns/pid"); err != nil || link != namespace {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		n, err := numbersOf(fd)
		if err == nil && n[len(n)-1] == strconv.Itoa(p.PID) {
			if now, err := Identify(pid); err == nil && now.Start == p.Start {
				return fd, nil
			}
		}
		_ = unix.Close(fd)
	}
	return -1, peerError(p.PID, unix.ENOENT)
}
