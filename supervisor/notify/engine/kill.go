package engine

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Kill kills the process of a thread. A thread that has ended is no error. Another
// supervisor above this one may deny kill(2), or never answer it. So kill(2) is the last of
// three calls. The second is that of the Go runtime's own preemption.
func Kill(tid int) error {
	fd, err := unix.PidfdOpen(tid, 0)
	if err == nil {
		err = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		_ = unix.Close(fd) // nothing to flush
	}
	if err == nil || errors.Is(err, unix.ESRCH) {
		return nil
	}
	process, err := processOf(tid) // no pidfd has a thread that is not the first
	if err == nil {
		err = unix.Tgkill(process, tid, unix.SIGKILL)
	}
	if err == nil || errors.Is(err, unix.ESRCH) || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := unix.Kill(tid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill thread %d: %w", tid, err)
	}
	return nil
}

// processOf is the number of the process of a thread. See proc_pid_status(5).
func processOf(tid int) (int, error) {
	status, err := os.ReadFile("/proc/" + strconv.Itoa(tid) + "/status")
	if err != nil {
		return 0, err
	}
	_, after, _ := bytes.Cut(status, []byte("\nTgid:"))
	line, _, _ := bytes.Cut(after, []byte("\n"))
	return strconv.Atoi(string(bytes.TrimSpace(line)))
}
