package target

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenView opens a process for [Target.Resolve] alone: its memory, which a
// supervisor without privilege may not open when the process is undumpable, is
// left alone. The caller closes it.
func OpenView(pid int) (*Target, error) {
	proc, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /proc/%d: %w", pid, err)
	}
	return &Target{TID: pid, proc: proc, mem: -1, root: -1, pages: pagePool.Get().(*pages)}, nil
}
