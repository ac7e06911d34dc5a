package netns

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// UnixSockets returns the paths of the machine's Unix sockets, links resolved. See
// proc_net(5), unix. Any user can bind any name: a name that leads to no socket is
// left out and is no error.
func UnixSockets() ([]string, error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, fmt.Errorf("list unix sockets: %w", err)
	}
	defer f.Close()
	var names []string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		_, name, ok := strings.Cut(lines.Text(), " /")
		if !ok {
			continue
		}
		resolved, err := socketPath("/" + name)
		if err != nil {
			return nil, fmt.Errorf("unix socket /%s: %w", name, err)
		}
		if resolved != "" {
			names = append(names, resolved)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("list unix sockets: %w", err)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// socketPath returns the path of the socket that a name leads to; empty: it leads
// to none. A name through the descriptors of a process, as /proc/self/fd/3/socket,
// meant those of the process that bound it, and is not followed. Errors are those
// of this process, as too many open files.
func socketPath(name string) (string, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(unix.AT_FDCWD, name, &how)
	for errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
		fd, err = unix.Openat2(unix.AT_FDCWD, name, &how)
	}
	if err != nil {
		for _, own := range []unix.Errno{unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.ENOSYS, unix.EINVAL} {
			if errors.Is(err, own) {
				return "", err
			}
		}
		return "", nil //nolint:nilerr // removed, or out of reach
	}
	defer func() { _ = unix.Close(fd) }()
	var opened, named unix.Stat_t
	if err := unix.Fstat(fd, &opened); err != nil || opened.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return "", nil //nolint:nilerr // its file system has no answer
	}
	resolved, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return "", err
	}
	if err := unix.Lstat(resolved, &named); err != nil || named.Dev != opened.Dev || named.Ino != opened.Ino {
		return "", nil //nolint:nilerr // it was removed meanwhile
	}
	return resolved, nil
}
