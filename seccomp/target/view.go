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
	t := &Target{TID: pid, proc: proc, mem: -1, root: -1, pages: pagePool.Get().(*pages)}
	t.length = [cachedPages]int{}
	return t, nil
}

// Enter makes dir, found as the thread finds it, the directory that relative
// paths start from, as chdir(2) would for the thread.
func (t *Target) Enter(dir string) error {
	h, err := t.Resolve(Lookup{Dir: unix.AT_FDCWD, Path: dir})
	if err != nil {
		return err
	}
	if h.Stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		h.Close()
		return fmt.Errorf("enter %s: %w", dir, unix.ENOTDIR)
	}
	if t.cwd != nil {
		t.cwd.Close()
	}
	t.cwd = h
	return nil
}
