package target

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Bytes reads n bytes at addr.
func (t *Target) Bytes(addr uint64, n int) ([]byte, error) {
	data := make([]byte, 0, n)
	for len(data) < n {
		part, err := t.bytesAt(addr + uint64(len(data)))
		if err != nil {
			return nil, err
		}
		data = append(data, part[:min(len(part), n-len(data))]...)
	}
	return data, nil
}

// SocketInode returns the inode number of the socket of a descriptor of the
// thread. The error is EBADF or ENOTSOCK if there is none.
func (t *Target) SocketInode(fd int) (uint64, error) {
	if fd < 0 {
		return 0, unix.EBADF
	}
	link, err := readlinkat(t.proc, "fd/"+strconv.Itoa(fd))
	if errors.Is(err, unix.ENOENT) {
		return 0, unix.EBADF
	}
	if err != nil {
		return 0, fmt.Errorf("look at descriptor %d: %w", fd, err)
	}
	number, ok := strings.CutPrefix(link, "socket:[")
	if !ok {
		return 0, unix.ENOTSOCK
	}
	return strconv.ParseUint(strings.TrimSuffix(number, "]"), 10, 64)
}

// Duplicate returns a descriptor of this process for an open file of the thread. The caller
// closes it. See pidfd_getfd(2).
func (t *Target) Duplicate(fd int) (*os.File, error) {
	own, err := t.duplicate(fd)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(own), "duplicate"), nil
}

// Stream reports whether a descriptor of the thread is a stream socket. It returns false on
// errors.
func (t *Target) Stream(fd int) bool {
	own, err := t.duplicate(fd)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(own) }()
	kind, err := unix.GetsockoptInt(own, unix.SOL_SOCKET, unix.SO_TYPE)
	return err == nil && kind == unix.SOCK_STREAM
}

func (t *Target) duplicate(fd int) (int, error) {
	pidfd, err := unix.PidfdOpen(t.TID, unix.PIDFD_THREAD)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.9
		id, idErr := t.Identity()
		if idErr != nil {
			return -1, idErr
		}
		pidfd, err = unix.PidfdOpen(id.PID, 0)
	}
	if err != nil {
		return -1, fmt.Errorf("open thread %d: %w", t.TID, err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	own, err := unix.PidfdGetfd(pidfd, fd, 0)
	if errors.Is(err, unix.EPERM) {
		return -1, fmt.Errorf("pidfd_getfd: %w (doc/platforms/docker.md has profiles of containers that allow it)", err)
	}
	if err != nil {
		return -1, fmt.Errorf("duplicate descriptor %d of thread %d: %w", fd, t.TID, err)
	}
	return own, nil
}
