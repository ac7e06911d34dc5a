package netns

import (
	"errors"
	"fmt"
	"net"
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
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	var at net.Addr
	if protocol == unix.IPPROTO_UDP {
		c, err := net.ListenPacket("udp4", "127.0.0.1:0")
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		defer c.Close()
		at = c.LocalAddr()
	} else {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		defer l.Close()
		at = l.Addr()
	}
	own, err := netip.ParseAddrPort(at.String())
	if err != nil {
		return err
	}
	peer := netip.AddrPortFrom(loopback, 0)
	if protocol == unix.IPPROTO_UDP {
		own, peer = peer, own // as for an incoming packet
	}
	_, err = s.inode(protocol, own, peer)
	if errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("%s is not found: %w", at, err)
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
