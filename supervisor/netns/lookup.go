package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Sockets looks up sockets of one namespace. It is safe for concurrent use.
type Sockets struct {
	mu   sync.Mutex
	file *os.File
	seq  uint32
}

// NewSockets takes over a netlink socket of NETLINK_SOCK_DIAG that was opened in
// the namespace.
func NewSockets(f *os.File) (*Sockets, error) {
	timeout := unix.NsecToTimeval(int64(diagTimeout))
	if err := unix.SetsockoptTimeval(int(f.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(fmt.Errorf("socket lookup: %w", err), f.Close())
	}
	return &Sockets{file: f}, nil
}

// diagTimeout bounds the wait for an answer. The kernel makes it within the send.
const diagTimeout = 5 * time.Second

// Close closes the lookup socket. Lookups afterwards fail.
func (s *Sockets) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.file.Close()
}

// TCP returns the inode number of the TCP socket with a local address and a peer.
// See sock_diag(7).
func (s *Sockets) TCP(local, peer netip.AddrPort) (uint64, error) {
	return s.inode(unix.IPPROTO_TCP, local, peer)
}

// UDP is [Sockets.TCP] for UDP. The kernel looks the socket up as for an incoming
// packet, with both addresses exchanged. See udp_dump_one in net/ipv4/udp_diag.c.
func (s *Sockets) UDP(local, peer netip.AddrPort) (uint64, error) {
	return s.inode(unix.IPPROTO_UDP, peer, local)
}

// listens reports whether a TCP socket takes connections to an address. If that is not
// known, it is so.
func (s *Sockets) listens(at netip.AddrPort) bool {
	_, err := s.TCP(at, netip.AddrPortFrom(at.Addr(), 0))
	return !errors.Is(err, unix.ENOENT)
}

func (s *Sockets) inode(protocol byte, local, peer netip.AddrPort) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	m := &messages{}
	m.message(unix.SOCK_DIAG_BY_FAMILY, 0, inetRequest(protocol, local, peer), func(*attributes) {})
	binary.NativeEndian.PutUint16(m.data[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(m.data[8:], s.seq)
	fd := int(s.file.Fd())
	if err := unix.Sendto(fd, m.data, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, fmt.Errorf("socket lookup: %w", err)
	}
	answer := make([]byte, 8192)
	for {
		n, _, err := unix.Recvfrom(fd, answer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("socket lookup: %w", err)
		}
		if n < unix.NLMSG_HDRLEN || binary.NativeEndian.Uint32(answer[8:]) != s.seq {
			continue // the answer to a request that timed out
		}
		return inodeIn(answer[:n])
	}
}

// inetRequest encodes struct inet_diag_req_v2. See linux/inet_diag.h.
func inetRequest(protocol byte, local, peer netip.AddrPort) []byte {
	b := make([]byte, 0, 56)
	family := byte(unix.AF_INET6)
	if local.Addr().Is4() {
		family = unix.AF_INET
	}
	b = append(b, family, protocol, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, ^uint32(0)) // every state
	b = binary.BigEndian.AppendUint16(b, local.Port())
	b = binary.BigEndian.AppendUint16(b, peer.Port())
	for _, a := range []netip.Addr{local.Addr(), peer.Addr()} {
		var field [16]byte
		copy(field[:], a.AsSlice())
		b = append(b, field[:]...)
	}
	b = binary.NativeEndian.AppendUint32(b, 1)             // lo: sockets bound to it too
	return binary.NativeEndian.AppendUint64(b, ^uint64(0)) // any cookie
}

// inodeIn reads the inode number at the end of a struct inet_diag_msg.
func inodeIn(answer []byte) (uint64, error) {
	const head, size, at = unix.NLMSG_HDRLEN, 72, 68
	if binary.NativeEndian.Uint16(answer[4:]) == unix.NLMSG_ERROR && len(answer) >= head+4 {
		return 0, fmt.Errorf("socket lookup: %w", unix.Errno(-int32(binary.NativeEndian.Uint32(answer[head:]))))
	}
	if len(answer) < head+size {
		return 0, errors.New("socket lookup: malformed answer")
	}
	n := binary.NativeEndian.Uint32(answer[head+at:])
	if n == 0 {
		return 0, errors.New("socket lookup: the socket is closed")
	}
	return uint64(n), nil
}
