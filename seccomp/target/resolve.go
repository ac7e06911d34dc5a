package target

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Handle is one file. Its O_PATH descriptor refers to the same file even if
// names change.
type Handle struct {
	// Path is its path inside the root of the thread it was resolved for, links
	// resolved. Empty: it has none, as a memfd or an unlinked file.
	Path string
	Stat unix.Stat_t
	fd   int

	memory bool // fd can be read
	kept   int  // one more than a descriptor to read, which Head left to Copy; 0: none
}

// Close closes the handle.
func (h *Handle) Close() {
	h.closeKept()
	_ = unix.Close(h.fd)
}

func (h *Handle) closeKept() {
	if h.kept > 0 {
		_ = unix.Close(h.kept - 1)
		h.kept = 0
	}
}

// Same reports whether the handle refers to the file with this device and inode
// number.
func (h *Handle) Same(dev, ino uint64) bool { return h.Stat.Dev == dev && h.Stat.Ino == ino }

// ReadOnly reports whether the file's mount is read-only for the thread. Then
// no command of its session can change the content. Times are weaker evidence.
// On a FUSE mount they may be cached, and a write to mapped memory changes them
// only at writeback. See statfs(2), f_flags.
func (h *Handle) ReadOnly() (bool, error) {
	// statfs(2) asks the server of a FUSE mount. An access check asks nobody, and fails with
	// EROFS on what is read-only. See do_faccessat in fs/open.c.
	const noDevice = 0 // the major number of file systems without one
	if unix.Major(h.Stat.Dev) == noDevice && unix.Faccessat2(h.fd, "", unix.W_OK, unix.AT_EMPTY_PATH|unix.AT_EACCESS) == nil {
		return false, nil
	}
	var s unix.Statfs_t
	if err := unix.Fstatfs(h.fd, &s); err != nil {
		return false, fmt.Errorf("look at the mount of %s: %w", h.Path, err)
	}
	return s.Flags&unix.ST_RDONLY != 0, nil
}

// Regular reports whether the handle is a regular file.
func (h *Handle) Regular() bool { return h.Stat.Mode&unix.S_IFMT == unix.S_IFREG }

// Open opens the file for reading. It opens regular files only: others could block or have
// side effects.
func (h *Handle) Open() (*os.File, error) {
	fd, err := h.open()
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), h.Path), nil
}

func (h *Handle) open() (int, error) {
	if !h.Regular() {
		return -1, fmt.Errorf("open %s: not a regular file: %w", h.Path, unix.EACCES)
	}
	fd, err := unix.Open(procFD(h.fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", h.Path, err)
	}
	return fd, nil
}

// reader returns a descriptor for reading at any position. own: the caller closes it.
func (h *Handle) reader() (fd int, own bool, err error) {
	switch {
	case h.memory:
		return h.fd, false, nil
	case h.kept > 0:
		return h.kept - 1, false, nil
	}
	fd, err = h.open()
	return fd, true, err
}

// Head returns the first bytes of the file, at most n. If they begin with "#!", a [Handle.Copy]
// that follows does not open the file again.
func (h *Handle) Head(n int) ([]byte, error) {
	fd, own, err := h.reader()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, n)
	have, err := readAt(fd, buf, 0)
	switch {
	case own && err == nil && bytes.HasPrefix(buf[:have], []byte("#!")):
		h.kept = fd + 1
	case own:
		_ = unix.Close(fd)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", h.Path, err)
	}
	return buf[:have], nil
}

// readAt reads until p is full or the file ends.
func readAt(fd int, p []byte, from int64) (have int, err error) {
	for have < len(p) {
		n, err := unix.Pread(fd, p[have:], from+int64(have))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return have, err
		case n == 0:
			return have, nil
		default:
			have += n
		}
	}
	return have, nil
}

// Sizes of the buffer of a copy, in bytes: a file can be longer than its status says.
const (
	minBuffer = 4 << 10
	maxBuffer = 128 << 10
)

// CopyTo writes at most limit bytes of the file to w, and returns their number.
func (h *Handle) CopyTo(w io.Writer, limit int64) (written int64, err error) {
	fd, own, err := h.reader()
	if err != nil {
		return 0, err
	}
	if own {
		defer func() { _ = unix.Close(fd) }()
	}
	buf := make([]byte, min(limit, max(h.Stat.Size+1, minBuffer), maxBuffer))
	for written < limit && err == nil {
		var n int
		n, err = readAt(fd, buf[:min(limit-written, int64(len(buf)))], written)
		if n == 0 {
			break
		}
		if err == nil {
			_, err = w.Write(buf[:n])
		}
		written += int64(n)
	}
	if err != nil {
		return written, fmt.Errorf("read %s: %w", h.Path, err)
	}
	return written, nil
}

func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// Lookup is a path as an argument of a system call.
type Lookup struct {
	Dir      int    // directory descriptor of the thread, or AT_FDCWD
	Path     string // empty with EmptyPath: the descriptor itself
	NoFollow bool   // the last component must not be a symbolic link
}

// Resolve finds the file that l means for the thread: in its root, from its working
// directory or descriptor, and with its own /proc/self. The caller closes the handle. The
// error wraps the errno that the kernel would return.
func (t *Target) Resolve(l Lookup) (*Handle, error) {
	fd, walked, err := t.lookup(l)
	if err != nil {
		return nil, fmt.Errorf("resolve %q: %w", l.Path, err)
	}
	h := &Handle{fd: fd}
	if err := unix.Fstat(fd, &h.Stat); err != nil {
		h.Close()
		return nil, fmt.Errorf("resolve %q: %w", l.Path, err)
	}
	if h.Stat.Mode&unix.S_IFMT == unix.S_IFLNK {
		h.Close()
		return nil, fmt.Errorf("resolve %q: %w", l.Path, unix.ELOOP)
	}
	if err := t.name(h, walked); err != nil {
		h.Close()
		return nil, fmt.Errorf("resolve %q: %w", l.Path, err)
	}
	return h, nil
}

// ResolveCached is Resolve for an absolute path, without waiting: it returns nil unless every
// name of the path is in the kernel's memory, and the file is one that known accepts. Only
// the status that needs no request to a file system is read before.
func (t *Target) ResolveCached(l Lookup, known func(*unix.Statx_t) bool) *Handle {
	if !strings.HasPrefix(l.Path, "/") {
		return nil
	}
	root, err := t.rootFD()
	if err != nil {
		return nil
	}
	const cached = 0x20 // RESOLVE_CACHED
	flags := uint64(unix.O_PATH | unix.O_CLOEXEC)
	if l.NoFollow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err := unix.Openat2(root, l.Path, &unix.OpenHow{
		Flags: flags, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | cached,
	})
	if err != nil {
		return nil
	}
	h := &Handle{fd: fd}
	var s unix.Statx_t
	const status = unix.STATX_BASIC_STATS
	if unix.Statx(fd, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, status, &s) != nil || !known(&s) ||
		unix.Fstat(fd, &h.Stat) != nil || t.name(h, true) != nil {
		h.Close()
		return nil
	}
	return h
}

// Quick reports whether the status and the first bytes of the file are read without a
// request to another program or machine.
func (h *Handle) Quick() bool {
	var s unix.Statfs_t
	if unix.Fstatfs(h.fd, &s) != nil {
		return false
	}
	switch s.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.OVERLAYFS_SUPER_MAGIC,
		unix.SQUASHFS_MAGIC, unix.EROFS_SUPER_MAGIC_V1, unix.F2FS_SUPER_MAGIC:
		return true
	}
	return false
}

// lookup opens the file. walked is true if the kernel found it in one walk from
// the thread's root. Then the file is at its path, and nothing is mounted over
// it.
func (t *Target) lookup(l Lookup) (fd int, walked bool, err error) {
	if l.Path == "" {
		if l.Dir < 0 {
			return -1, false, unix.ENOENT
		}
		fd, err = t.descriptor(l.Dir)
		return fd, false, err
	}
	root, err := t.rootFD()
	if err != nil {
		return -1, false, err
	}
	start, walked := root, true
	resolve := uint64(unix.RESOLVE_IN_ROOT)
	if !strings.HasPrefix(l.Path, "/") {
		if start, err = t.start(l.Dir); err != nil {
			return -1, false, err
		}
		defer func() { _ = unix.Close(start) }()
		// A link to an absolute path, or a .. above the start, fails here and
		// is walked below. The start may be a directory that has no name.
		resolve, walked = unix.RESOLVE_BENEATH, false
	}
	flags := uint64(unix.O_PATH | unix.O_CLOEXEC)
	if l.NoFollow {
		flags |= unix.O_NOFOLLOW
	}
	fd, err = openat2(start, l.Path, &unix.OpenHow{Flags: flags, Resolve: resolve | unix.RESOLVE_NO_MAGICLINKS})
	switch {
	case err == nil:
		return fd, walked, nil
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ENAMETOOLONG):
		return -1, false, err
	case errors.Is(err, unix.ENOENT) && !strings.Contains(l.Path, "/"):
		// Most missing files are in an existing directory without procfs in
		// their path. The result is the same for the thread.
		return -1, false, err
	}
	fd, err = t.walk(start, l)
	return fd, false, err
}

func openat2(dir int, path string, how *unix.OpenHow) (int, error) {
	for range 16 {
		fd, err := unix.Openat2(dir, path, how)
		if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
	return -1, unix.EAGAIN // something in the path is renamed all the time
}

// rootFD opens the thread's root once.
func (t *Target) rootFD() (int, error) {
	if t.root >= 0 {
		return t.root, nil
	}
	fd, err := unix.Openat(t.proc, "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	t.root = fd
	return fd, nil
}

// start opens the directory that a relative path starts from.
func (t *Target) start(dir int) (int, error) {
	if dir == unix.AT_FDCWD && t.cwd != nil {
		return unix.Openat(t.cwd.fd, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	if dir == unix.AT_FDCWD {
		return unix.Openat(t.proc, "cwd", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	fd, err := t.descriptor(dir)
	if err != nil {
		return -1, err
	}
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil || s.Mode&unix.S_IFMT != unix.S_IFDIR {
		_ = unix.Close(fd)
		return -1, unix.ENOTDIR
	}
	return fd, nil
}

// descriptor opens the file behind one of the thread's descriptors.
func (t *Target) descriptor(n int) (int, error) {
	if n < 0 {
		return -1, unix.EBADF
	}
	fd, err := unix.Openat(t.proc, "fd/"+strconv.Itoa(n), unix.O_PATH|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		err = unix.EBADF
	}
	return fd, err
}

// name finds the path of h inside the thread's root. It returns an error for a
// file that is not below the root. A file without a name has an empty path. A
// file from a walk is at its path. For other files that is checked.
func (t *Target) name(h *Handle, walked bool) error {
	if h.Stat.Nlink == 0 {
		return nil
	}
	path, err := readlinkat(unix.AT_FDCWD, procFD(h.fd))
	if err != nil {
		return err
	}
	root, err := t.rootName()
	if err != nil {
		return err
	}
	inside, ok := insideRoot(path, root)
	if !ok {
		return fmt.Errorf("%s is outside the thread's root: %w", path, unix.EACCES)
	}
	deleted := strings.HasSuffix(inside, deletedSuffix) // or called so
	if walked && !deleted || t.means(inside, h) {
		h.Path = inside
	} else if !deleted {
		return fmt.Errorf("%s is not what the thread would find there: %w", path, unix.EACCES)
	}
	return nil
}

// means reports whether path, which has no links, refers to h in the thread's
// root.
func (t *Target) means(path string, h *Handle) bool {
	root, err := t.rootFD()
	if err != nil {
		return false
	}
	fd, err := openat2(root, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	var s unix.Stat_t
	return unix.Fstat(fd, &s) == nil && h.Same(s.Dev, s.Ino)
}

// StatIn returns the status of the file that a path means in a root. It is a faster
// [ResolveIn] for many files.
func StatIn(root *os.File, path string) (unix.Stat_t, error) {
	var st unix.Stat_t
	fd, err := openIn(root, path)
	if err != nil {
		return st, err
	}
	err = unix.Fstat(fd, &st)
	_ = unix.Close(fd)
	return st, err
}

func openIn(root *os.File, path string) (int, error) {
	fd, err := openat2(int(root.Fd()), path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("resolve %s: %w", path, err)
	}
	return fd, nil
}

// ResolveIn opens the file that an absolute path means in a root directory, without a
// thread. It refuses links of procfs. The caller closes the handle.
func ResolveIn(root *os.File, path string) (*Handle, error) {
	fd, err := openIn(root, path)
	if err != nil {
		return nil, err
	}
	h := &Handle{fd: fd}
	if err := h.nameIn(root); err != nil {
		h.Close()
		return nil, fmt.Errorf("resolve %s: %w", path, err)
	}
	return h, nil
}

func (h *Handle) nameIn(root *os.File) error {
	if err := unix.Fstat(h.fd, &h.Stat); err != nil {
		return err
	}
	path, err := readlinkat(unix.AT_FDCWD, procFD(h.fd))
	if err != nil {
		return err
	}
	top, err := readlinkat(unix.AT_FDCWD, procFD(int(root.Fd())))
	if err != nil {
		return err
	}
	inside, ok := insideRoot(path, top)
	if !ok {
		return unix.EACCES
	}
	h.Path = inside
	return nil
}

// Now returns the status that the file has now. That of a copy is its own.
func (h *Handle) Now() (st unix.Stat_t, err error) {
	err = unix.Fstat(h.fd, &st)
	return st, err
}

// Refresh reads the file's status again.
func (h *Handle) Refresh() error { return unix.Fstat(h.fd, &h.Stat) }

// Entry returns the status of a name in a directory, and the text of a symbolic link. It
// follows none.
func (h *Handle) Entry(name string) (st unix.Stat_t, text string, err error) {
	if err = unix.Fstatat(h.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		text, err = readlinkat(h.fd, name)
	}
	return st, text, err
}

// ReadDir lists a directory.
func (h *Handle) ReadDir() ([]os.DirEntry, error) {
	fd, err := unix.Openat(h.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", h.Path, err)
	}
	f := os.NewFile(uintptr(fd), h.Path)
	defer f.Close()
	return f.ReadDir(-1)
}
