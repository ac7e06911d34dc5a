package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/statedir"
)

// Process is a process of this machine, which another one with its number is not taken for.
type Process struct {
	PID   int    `json:"pid,omitempty"`
	Start uint64 `json:"start_time,omitempty"` // proc(5), /proc/PID/stat, field 22
	Boot  string `json:"boot_id,omitempty"`    // in which it was started
}

// ProcessOf describes a running process.
func ProcessOf(pid int) (Process, error) {
	start, err := startTime(pid)
	return Process{PID: pid, Start: start, Boot: statedir.BootID()}, err
}

// endWait is the time limit for a killed process to end.
const endWait = time.Minute

// startTime is the start time of a process, in clock ticks since boot. See
// proc(5), /proc/PID/stat, field 22. The name in field 2 may contain any
// character.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	const field = 22 - 3
	if len(fields) <= field {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	return strconv.ParseUint(string(fields[field]), 10, 64)
}

// Alive reports whether the process runs. Another process may have its number.
func (p Process) Alive() bool {
	start, err := startTime(p.PID)
	return err == nil && start == p.Start && (p.Boot == "" || p.Boot == statedir.BootID())
}

// End kills the process if it still runs, and waits until it has ended. Another process with the
// same id is not touched.
func (p Process) End(ctx context.Context) error {
	if p.PID <= 1 {
		return nil
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", p.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// Read the start time after the descriptor is open: it then belongs to the same
	// process, or there is none.
	if !p.Alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", p.PID, err)
	}
	return waitPidfd(ctx, fd, p.PID)
}

// Wait waits until the process has ended, however long that takes.
func (p Process) Wait() {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return // there is none
	}
	defer func() { _ = unix.Close(fd) }()
	for p.Alive() {
		if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1); n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// waitPidfd waits until a process has ended. See pidfd_open(2): the descriptor
// becomes readable.
func waitPidfd(ctx context.Context, fd, pid int) error {
	deadline := time.Now().Add(endWait)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("process %d does not end", pid)
		}
		const look = 200 * time.Millisecond // interval of the check for a cancelled context
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(min(left, look).Milliseconds())+1)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
