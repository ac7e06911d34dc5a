package trial

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// watchTimeout bounds the wait for the event of a change that was made.
const watchTimeout = 10 * time.Second

// probeFanotify watches a directory as a file server does and makes a file in it: the
// event must name the directory and its author.
func probeFanotify() (string, error) {
	const flags = unix.FAN_CLASS_NOTIF | unix.FAN_REPORT_DFID_NAME | unix.FAN_CLOEXEC | unix.FAN_NONBLOCK
	return watched(func(dir string) (int, error) {
		group, err := unix.FanotifyInit(flags, unix.O_RDONLY)
		if err != nil {
			return -1, fmt.Errorf("fanotify_init: %w", err)
		}
		if err := unix.FanotifyMark(group, unix.FAN_MARK_ADD|unix.FAN_MARK_ONLYDIR, unix.FAN_CREATE|unix.FAN_EVENT_ON_CHILD,
			unix.AT_FDCWD, dir); err != nil {
			closeFD(group)
			return -1, fmt.Errorf("fanotify_mark: %w", err)
		}
		return group, nil
	}, func(event []byte) error {
		// See fanotify(7) for the layout: the author is at the end of the head.
		var head unix.FanotifyEventMetadata
		if len(event) < int(unsafe.Sizeof(head)) {
			return fmt.Errorf("an event of %d bytes", len(event))
		}
		if pid := int32(binary.NativeEndian.Uint32(event[20:])); int(pid) != os.Getpid() {
			return fmt.Errorf("the event names process %d instead of %d", pid, os.Getpid())
		}
		return nil
	})
}

// probeInotify does the same by inotify, whose events name no author.
func probeInotify() (string, error) {
	return watched(func(dir string) (int, error) {
		ino, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return -1, fmt.Errorf("inotify_init1: %w", err)
		}
		if _, err := unix.InotifyAddWatch(ino, dir, unix.IN_CREATE|unix.IN_ONLYDIR); err != nil {
			closeFD(ino)
			return -1, fmt.Errorf("inotify_add_watch: %w", err)
		}
		return ino, nil
	}, func([]byte) error { return nil })
}

// watched makes a file in a directory that watch watches, and checks its event.
func watched(watch func(dir string) (int, error), check func(event []byte) error) (_ string, err error) {
	dir, err := os.MkdirTemp("", "agentsh-watch-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	fd, err := watch(dir)
	if err != nil {
		return "", err
	}
	defer closeFD(fd)
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		return "", err
	}
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(ready, int(watchTimeout.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("poll: %w", err)
		}
		if n == 0 {
			return "", errors.New("a change raised no event")
		}
		break
	}
	buf := make([]byte, 4096)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return "", fmt.Errorf("read of an event: %w", err)
	}
	return "", check(buf[:n])
}
