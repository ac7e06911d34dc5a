package reasons

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// stderr is the standard error of a process.
type stderr struct {
	process target.Process
	pidfd   int
}

// Close releases the process.
func (s stderr) Close() { _ = unix.Close(s.pidfd) }

// file identifies an open file.
type file struct{ dev, ino uint64 }

// stderrFile returns the file that is the standard error of a process.
func stderrFile(pid int) (file, bool) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/"+strconv.Itoa(pid)+"/fd/2", &st); err != nil {
		return file{}, false
	}
	return file{st.Dev, st.Ino}, writable(&st)
}

// writable reports whether a refusal may be written to a file. A file of a file
// server is left out: the server may wait for the caller.
func writable(st *unix.Stat_t) bool {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFREG:
		return true
	case unix.S_IFCHR:
		major := unix.Major(st.Rdev)
		return major >= 136 && major <= 143 // pseudo-terminals: Documentation/admin-guide/devices.txt
	}
	return false
}

// open opens a process. It reports whether the process is alive.
func open(p target.Process) (stderr, bool) {
	fd, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		return stderr{}, false
	}
	if now, err := target.Identify(p.PID); err != nil || now.Process != p {
		_ = unix.Close(fd)
		return stderr{}, false
	}
	return stderr{p, fd}, true
}

// stores reports whether a file system only stores what is written to a file. Files
// of the kernel act on it, by the rights of the writer, and a file server may wait.
// See statfs(2).
func stores(kind int64) bool {
	switch kind {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC, unix.RAMFS_MAGIC,
		unix.OVERLAYFS_SUPER_MAGIC, unix.BCACHEFS_SUPER_MAGIC, 0x2fc12fc1: // ZFS
		return true
	}
	return false
}

// private reports whether a socket is one of a pair. A service that is connected by
// an address may trust the supervisor, whom the kernel names as the sender, more than
// the command: see SCM_CREDENTIALS in unix(7).
func private(fd int) bool {
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil || kind != unix.SOCK_STREAM && kind != unix.SOCK_SEQPACKET {
		return false
	}
	own, err := unix.Getsockname(fd)
	if err != nil || !unnamed(own) {
		return false
	}
	peer, err := unix.Getpeername(fd)
	return err == nil && unnamed(peer)
}

func unnamed(a unix.Sockaddr) bool {
	u, ok := a.(*unix.SockaddrUnix)
	return ok && (u.Name == "" || u.Name == "@") // x/sys/unix writes @ for a NUL, and for no name
}

// write writes lines unless a reader would have to be waited for. The descriptor
// that it uses is the process's own. It writes only to what keeps or passes on text
// without regard to its writer: ordinary files, pipes, pairs of sockets, terminals.
func (s stderr) write(lines string) bool {
	fd, err := unix.PidfdGetfd(s.pidfd, 2, 0)
	if err != nil {
		return false
	}
	f := os.NewFile(uintptr(fd), "stderr")
	defer f.Close()
	var st unix.Stat_t
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE == unix.O_RDONLY || flags&unix.O_PATH != 0 || unix.Fstat(fd, &st) != nil || !writable(&st) {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFSOCK:
		return private(fd) && unix.Sendto(fd, []byte(lines), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) == nil
	case unix.S_IFREG:
		var fs unix.Statfs_t
		if unix.Fstatfs(fd, &fs) != nil || !stores(fs.Type) {
			return false
		}
		n, err := unix.Write(fd, []byte(lines))
		return err == nil && n == len(lines)
	}
	// A second open file: O_NONBLOCK of the first one belongs to the process as well.
	again, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(again) }()
	n, err := unix.Write(again, []byte(lines))
	return err == nil && n == len(lines)
}
