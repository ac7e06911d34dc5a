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

// endWait is the time limit for a killed supervisor to end.
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

// alive reports whether the supervisor runs. Another process may have its number.
func (i info) alive() bool {
	start, err := startTime(i.PID)
	return err == nil && start == i.Start && (i.Boot == "" || i.Boot == statedir.BootID())
}

// endProcess kills the supervisor of a sandbox if it still runs, and waits
// until it has ended. Another process with the same id is not touched.
func endProcess(ctx context.Context, i info) error {
	if i.PID <= 1 {
		return nil
	}
	fd, err := unix.PidfdOpen(i.PID, 0)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open supervisor %d: %w", i.PID, err)
	}
	defer func() { _ = unix.Close(fd) }()
	// Read the start time after the descriptor is open: it then belongs to the same
	// process, or there is none.
	if !i.alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill supervisor %d: %w", i.PID, err)
	}
	return waitPidfd(ctx, fd, i.PID)
}

// waitPidfd waits until a process has ended. See pidfd_open(2): the descriptor
// becomes readable.
func waitPidfd(ctx context.Context, fd, pid int) error {
	deadline := time.Now().Add(endWait)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("supervisor %d does not end", pid)
		}
		const look = 200 * time.Millisecond // interval of the check for a cancelled context
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(min(left, look).Milliseconds())+1)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for supervisor %d: %w", pid, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}
