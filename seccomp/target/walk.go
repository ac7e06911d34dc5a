package target

import (
	"errors"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is the maximum number of symbolic links that the kernel follows in
// one path.
const maxLinks = 40

// walker resolves a path one component at a time, as the kernel would for the thread. It is
// for paths that one openat2 call cannot resolve: those that leave their start, and those
// with links of procfs, which would mean this process.
type walker struct {
	t     *Target
	at    int // descriptor of the directory reached; owned
	root  unix.Stat_t
	links int
	route *Walk // gets the route; nil: it is not recorded
}

// walk resolves l from the directory start, which stays open.
func (t *Target) walk(start int, l Lookup) (int, error) { return t.walkRecording(start, l, nil) }

func (t *Target) walkRecording(start int, l Lookup, route *Walk) (int, error) {
	w := &walker{t: t, route: route}
	root, err := t.rootFD()
	if err != nil {
		return -1, err
	}
	if err := unix.Fstat(root, &w.root); err != nil {
		return -1, err
	}
	if w.at, err = unix.FcntlInt(uintptr(start), unix.F_DUPFD_CLOEXEC, 0); err != nil {
		return -1, err
	}
	if err := w.follow(l.Path, !l.NoFollow); err != nil {
		_ = unix.Close(w.at)
		return -1, err
	}
	return w.at, nil
}

// follow moves to path. followLast says whether a link at its end is followed.
func (w *walker) follow(path string, followLast bool) error {
	rest := path
	for rest != "" {
		if rest[0] == '/' && len(rest) == len(path) {
			if err := w.move(dupRoot(w.t)); err != nil {
				return err
			}
		}
		rest = strings.TrimLeft(rest, "/")
		name, more, slash := strings.Cut(rest, "/")
		rest = more
		last := strings.Trim(rest, "/") == ""
		link, err := w.step(name, !last || slash || followLast)
		if err != nil {
			return err
		}
		if link != "" {
			if w.links++; w.links > maxLinks || len(link)+len(rest) >= MaxPath {
				return unix.ELOOP
			}
			path = link
			if slash {
				path += "/" + rest
			}
			rest = path
		}
	}
	return nil
}

func dupRoot(t *Target) (int, error) {
	root, err := t.rootFD()
	if err != nil {
		return -1, err
	}
	return unix.FcntlInt(uintptr(root), unix.F_DUPFD_CLOEXEC, 0)
}

func (w *walker) move(fd int, err error) error {
	if err != nil {
		return err
	}
	_ = unix.Close(w.at)
	w.at = fd
	return nil
}

// step moves to one component. If that is a link to follow, it does not move and returns the
// text of the link. Links of procfs without a text are followed.
func (w *walker) step(name string, follow bool) (link string, err error) {
	switch name {
	case "", ".":
		return "", w.directory()
	case "..":
		var here unix.Stat_t
		if err := unix.Fstat(w.at, &here); err != nil {
			return "", err
		}
		if here.Dev == w.root.Dev && here.Ino == w.root.Ino {
			return "", nil
		}
		return "", w.move(unix.Openat(w.at, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0))
	}
	if err := w.recordDirectory(); err != nil {
		return "", err
	}
	fd, err := unix.Openat(w.at, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	var s unix.Stat_t
	if err == nil {
		if err = unix.Fstat(fd, &s); err != nil {
			_ = unix.Close(fd)
		}
	}
	switch {
	case (name == "self" || name == "thread-self") && follow && (err == nil || errors.Is(err, unix.ENOENT)) && procDir(w.at) == procTop:
		// In a pid namespace that this process is not in, the link does not exist.
		if err == nil {
			_ = unix.Close(fd)
		}
		return w.self(name)
	case err != nil:
		return "", err
	case s.Mode&unix.S_IFMT != unix.S_IFLNK || !follow:
		return "", w.move(fd, nil)
	case procDir(w.at) == procBelow:
		// exe, cwd, root, fd/N: the kernel goes to the file itself.
		_ = unix.Close(fd)
		if w.links++; w.links > maxLinks {
			return "", unix.ELOOP
		}
		return "", w.move(unix.Openat(w.at, name, unix.O_PATH|unix.O_CLOEXEC, 0))
	}
	defer func() { _ = unix.Close(fd) }()
	text, err := readlinkat(fd, "")
	if err != nil {
		return "", err
	}
	return text, w.recordLink(name, text)
}

// directory fails if the current file is not a directory.
func (w *walker) directory() error {
	var s unix.Stat_t
	if err := unix.Fstat(w.at, &s); err != nil {
		return err
	}
	if s.Mode&unix.S_IFMT != unix.S_IFDIR {
		return unix.ENOTDIR
	}
	return nil
}

// Positions of a directory in procfs.
const (
	procNot = iota
	procTop
	procBelow
)

// procDir reports what a directory is in procfs, if anything. The root of
// procfs has inode number 1, PROC_ROOT_INO in linux/proc_ns.h. It may ask the server
// of a file system.
func procDir(fd int) int {
	var fs unix.Statfs_t
	var s unix.Stat_t
	if unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.PROC_SUPER_MAGIC || unix.Fstat(fd, &s) != nil {
		return procNot
	}
	if s.Ino == 1 {
		return procTop
	}
	return procBelow
}

// self returns the text of /proc/self or /proc/thread-self for the thread. It
// has numbers of the thread's own pid namespace.
func (w *walker) self(name string) (string, error) {
	text, err := readProc(w.t.proc, "status")
	if err != nil {
		return "", err
	}
	inner := func(field string) (string, error) {
		numbers := strings.Fields(statusField(text, field))
		if len(numbers) == 0 {
			return "", unix.ENOENT
		}
		last := numbers[len(numbers)-1]
		_, err := strconv.Atoi(last)
		return last, err
	}
	tgid, err := inner("NStgid")
	if err != nil || name == "self" {
		return tgid, err
	}
	tid, err := inner("NSpid")
	return tgid + "/task/" + tid, err
}
