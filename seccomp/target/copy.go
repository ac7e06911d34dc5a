package target

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrTooLarge means that a file is too large to copy.
var ErrTooLarge = errors.New("the file is too large")

// Copy returns a handle for the content that the file has now. Nobody can change that any
// more: it is the file itself if its mount is read-only, else a sealed copy in memory of at
// most limit bytes. Path and Stat are those of the file, except for the size of the copy.
// The caller closes the result. See memfd_create(2).
func (h *Handle) Copy(limit int64) (*Handle, error) {
	fixed, err := h.ReadOnly()
	if err != nil {
		return nil, err
	}
	if fixed {
		fd, err := unix.FcntlInt(uintptr(h.fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("copy %s: %w", h.Path, err)
		}
		return &Handle{Path: h.Path, Stat: h.Stat, fd: fd}, nil
	}
	defer h.closeKept()
	fd, err := memoryFile()
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", h.Path, err)
	}
	copied := &Handle{Path: h.Path, Stat: h.Stat, fd: fd, memory: true}
	if copied.Stat.Size, err = fill(fd, h, limit); err != nil {
		copied.Close()
		return nil, fmt.Errorf("copy %s: %w", h.Path, err)
	}
	return copied, nil
}

// memoryFile makes an empty file in memory that can be sealed. Kernels before
// Linux 6.3 do not know MFD_NOEXEC_SEAL.
func memoryFile() (int, error) {
	fd, err := unix.MemfdCreate("agentsh", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) {
		fd, err = unix.MemfdCreate("agentsh", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	return fd, err
}

// descriptor writes to a descriptor.
type descriptor int

func (d descriptor) Write(p []byte) (written int, err error) {
	for written < len(p) {
		n, err := unix.Write(int(d), p[written:])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return written, err
		}
		written += max(n, 0)
	}
	return written, nil
}

// fill copies a file into a memory file and seals it.
func fill(fd int, from *Handle, limit int64) (int64, error) {
	n, err := from.CopyTo(descriptor(fd), limit+1)
	if err != nil {
		return 0, err
	}
	if n > limit {
		return 0, fmt.Errorf("%w: at most %d bytes", ErrTooLarge, limit)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return n, err
}

// Walk describes how the kernel finds a file by a path.
type Walk struct {
	// Fixed says that no command can change where the path leads. The path is absolute,
	// and every directory and link on it is on a read-only mount.
	Fixed bool
	// Links are the texts of the symbolic links on the route, by their paths.
	Links map[string]string
}

// Walk finds a file as [Target.Resolve] does and records the route. It fails if that does
// not lead to the file h.
func (t *Target) Walk(l Lookup, h *Handle) (Walk, error) {
	root, err := t.rootFD()
	if err != nil {
		return Walk{}, err
	}
	start, absolute := root, len(l.Path) > 0 && l.Path[0] == '/'
	route := &Walk{Fixed: absolute, Links: map[string]string{}}
	if l.Path == "" {
		return *route, nil
	}
	if !absolute {
		if start, err = t.start(l.Dir); err != nil {
			return Walk{}, err
		}
		defer func() { _ = unix.Close(start) }()
	}
	fd, err := t.walkRecording(start, l, route)
	if err != nil {
		return Walk{}, fmt.Errorf("walk to %q: %w", l.Path, err)
	}
	end := &Handle{Path: h.Path, fd: fd}
	defer end.Close()
	if err := end.Refresh(); err != nil {
		return Walk{}, err
	}
	if !end.Same(h.Stat.Dev, h.Stat.Ino) {
		return Walk{}, fmt.Errorf("walk to %q: it was exchanged meanwhile: %w", l.Path, unix.EAGAIN)
	}
	if route.Fixed {
		route.Fixed, err = end.ReadOnly()
	}
	return *route, err
}

// recordDirectory records a directory in which a walk looks up a name.
func (w *walker) recordDirectory() error {
	if w.route == nil || !w.route.Fixed {
		return nil
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(w.at, &fs); err != nil {
		return err
	}
	w.route.Fixed = fs.Flags&unix.ST_RDONLY != 0 && fs.Type != unix.PROC_SUPER_MAGIC
	return nil
}

// recordLink records a symbolic link in the directory that a walk is in.
func (w *walker) recordLink(name, text string) error {
	if w.route == nil {
		return nil
	}
	at, err := readlinkat(unix.AT_FDCWD, procFD(w.at))
	if err != nil {
		return err
	}
	root, err := w.t.rootName()
	if err != nil {
		return err
	}
	if inside, ok := insideRoot(at, root); ok {
		w.route.Links[joinName(inside, name)] = text
	}
	return nil
}

func joinName(dir, name string) string {
	if dir == "/" {
		return "/" + name
	}
	return dir + "/" + name
}
