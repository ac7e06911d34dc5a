package target

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenView opens a process for everything except its memory. A supervisor
// without privilege may not open the memory of an undumpable process. The
// caller closes it.
func OpenView(pid int) (*Target, error) {
	proc, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /proc/%d: %w", pid, err)
	}
	t := &Target{TID: pid, proc: proc, mem: -1, root: -1, pages: pagePool.Get().(*pages)}
	t.length = [cachedPages]int{}
	return t, nil
}

// Enter sets the directory from which relative paths start, as chdir(2) of the thread would.
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

// Root is a root directory that many threads have.
type Root struct {
	file *os.File
	name string // as procfs names it
}

// NewRoot returns a root directory. The caller keeps f open and closes it.
func NewRoot(f *os.File) (*Root, error) {
	name, err := readlinkat(unix.AT_FDCWD, procFD(int(f.Fd())))
	if err != nil {
		return nil, fmt.Errorf("look at the root directory: %w", err)
	}
	return &Root{f, name}, nil
}

// Within sets the root of the thread, so that it need not be looked up. The caller must know
// it for certain: a filter refuses chroot, pivot_root and other mount namespaces.
func (t *Target) Within(r *Root) {
	t.root, t.rootAt, t.shared = int(r.file.Fd()), r.name, true
}
