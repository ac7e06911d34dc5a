package channel

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// ownNamespace is the pid namespace of this process, which never changes.
var ownNamespace = sync.OnceValues(func() (os.FileInfo, error) { return os.Stat("/proc/self/ns/pid") })

// CheckCaller refuses a caller of a Unix socket unless it runs as this user or root.
// It also refuses a caller in another pid namespace; every command of a session is in
// one. It returns the caller's credentials. See unix(7), SO_PEERCRED.
func CheckCaller(conn net.Conn) (unix.Ucred, error) {
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return unix.Ucred{}, errors.New("the connection is no socket")
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return unix.Ucred{}, err
	}
	var peer *unix.Ucred
	var asked error
	if err := raw.Control(func(fd uintptr) { peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return unix.Ucred{}, err
	}
	switch {
	case asked != nil:
		return unix.Ucred{}, asked
	case peer.Uid != 0 && int(peer.Uid) != os.Geteuid():
		return *peer, fmt.Errorf("process %d of user %d is not of this user", peer.Pid, peer.Uid)
	case peer.Pid == 0:
		return *peer, errors.New("a process of another pid namespace")
	case peer.Uid == 0 && os.Geteuid() != 0:
		return *peer, nil // this user cannot read root's namespaces
	}
	own, err := ownNamespace()
	if err != nil {
		return *peer, err
	}
	theirs, err := os.Stat("/proc/" + strconv.Itoa(int(peer.Pid)) + "/ns/pid")
	if err != nil {
		return *peer, fmt.Errorf("process %d: %w", peer.Pid, err)
	}
	if !os.SameFile(own, theirs) {
		return *peer, fmt.Errorf("process %d runs in another pid namespace", peer.Pid)
	}
	return *peer, nil
}
