package netns

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// lookups is nil if this kernel looks up TCP sockets, or says why it does not. Without it, no
// process of a connection is known, and it is not known who listens.
var lookups = sync.OnceValue(func() error {
	_, err := Lookups()
	return err
})

// Lookups says of which protocols this kernel looks up sockets. A kernel without inet_diag, or
// without the module of a protocol, answers each lookup as if there were no such socket. See
// inet_diag_lock_handler in net/ipv4/inet_diag.c. So a socket is looked up that is there.
func Lookups() (string, error) {
	s, err := machineSockets()
	if err != nil {
		return "", err
	}
	defer func() { _ = s.Close() }() // nothing is written
	if err := s.finds(unix.IPPROTO_TCP); err != nil {
		return "", err
	}
	if s.finds(unix.IPPROTO_UDP) != nil {
		return "TCP", nil
	}
	return "TCP, UDP", nil
}

// finds looks up a socket of this process with a protocol. Without an address of loopback
// nothing can be tried, and the kernel is believed.
func (s *Sockets) finds(protocol byte) error {
	kind := unix.SOCK_STREAM
	if protocol == unix.IPPROTO_UDP {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	defer func() { _ = unix.Close(fd) }() // nothing is written
	if unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}) != nil || kind == unix.SOCK_STREAM && unix.Listen(fd, 1) != nil {
		return nil
	}
	name, err := unix.Getsockname(fd)
	at, ok := name.(*unix.SockaddrInet4)
	if err != nil || !ok {
		return fmt.Errorf("socket lookup: %w", err)
	}
	own, peer := netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)), netip.AddrPortFrom(netip.AddrFrom4(at.Addr), 0)
	if protocol == unix.IPPROTO_UDP {
		own, peer = peer, own // as for an incoming packet
	}
	_, err = s.inode(protocol, own, peer)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("a socket that is there is not found: %w", err)
	}
	return err
}

// machineSockets looks up sockets of this process's network.
func machineSockets() (*Sockets, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, fmt.Errorf("socket lookup: %w", err)
	}
	return NewSockets(os.NewFile(uintptr(fd), "machine's sockets"))
}
