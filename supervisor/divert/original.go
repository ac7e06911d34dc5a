package divert

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Original tells where a diverted connection was meant to go. See
// linux/netfilter_ipv4.h, SO_ORIGINAL_DST; the number is the same for IPv6.
func Original(c net.Conn) (netip.AddrPort, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}, errors.New("original destination: not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
	}
	local, err := addrPort(c.LocalAddr())
	if err != nil {
		return netip.AddrPort{}, err
	}
	level := unix.SOL_IP
	if local.Addr().Is6() {
		level = unix.SOL_IPV6
	}
	var sa unix.RawSockaddrInet6 // of either family: the larger
	length := uint32(unsafe.Sizeof(sa))
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), unix.SO_ORIGINAL_DST,
			uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&length)), 0)
	})
	if err == nil && errno != 0 {
		err = errno
	}
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
	}
	port := binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(&sa.Port))[:])
	if sa.Family == unix.AF_INET {
		v4 := (*unix.RawSockaddrInet4)(unsafe.Pointer(&sa))
		return netip.AddrPortFrom(netip.AddrFrom4(v4.Addr), port), nil
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), port), nil
}

func addrPort(a net.Addr) (netip.AddrPort, error) {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}, fmt.Errorf("address %v is not of TCP", a)
	}
	at := tcp.AddrPort()
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), nil
}

// Sockets looks up sockets of one namespace. It is safe for concurrent use.
type Sockets struct {
	mu   sync.Mutex
	file *os.File
	seq  uint32
}

// NewSockets takes over a socket of NETLINK_SOCK_DIAG in the namespace.
func NewSockets(f *os.File) (*Sockets, error) {
	timeout := unix.NsecToTimeval(int64(diagTimeout))
	if err := unix.SetsockoptTimeval(int(f.Fd()), unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout); err != nil {
		return nil, errors.Join(fmt.Errorf("socket lookup: %w", err), f.Close())
	}
	return &Sockets{file: f}, nil
}

// diagTimeout bounds the wait for the kernel, which answers within the send.
const diagTimeout = 5 * time.Second

// Close closes the lookup socket.
func (s *Sockets) Close() error { return s.file.Close() }

// TCP is the inode number of the TCP socket with these two ends: its own
// address, and the one it connected to. See sock_diag(7).
func (s *Sockets) TCP(own, peer netip.AddrPort) (uint64, error) {
	return s.inode(unix.IPPROTO_TCP, own, peer)
}

// UDP is [Sockets.TCP] for UDP. The kernel looks it up as for a packet that
// comes in, with the ends the other way round. See udp_dump_one in net/ipv4/udp_diag.c.
func (s *Sockets) UDP(own, peer netip.AddrPort) (uint64, error) {
	return s.inode(unix.IPPROTO_UDP, peer, own)
}

func (s *Sockets) inode(protocol byte, own, peer netip.AddrPort) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	m := &messages{}
	m.message(unix.SOCK_DIAG_BY_FAMILY, 0, inetRequest(protocol, own, peer), func(*attributes) {})
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
			continue // the answer to a question that nobody waited for
		}
		return inodeIn(answer[:n])
	}
}

// inetRequest is struct inet_diag_req_v2. See linux/inet_diag.h.
func inetRequest(protocol byte, own, peer netip.AddrPort) []byte {
	b := make([]byte, 0, 56)
	family := byte(unix.AF_INET6)
	if own.Addr().Is4() {
		family = unix.AF_INET
	}
	b = append(b, family, protocol, 0, 0)
	b = binary.NativeEndian.AppendUint32(b, ^uint32(0)) // every state
	b = binary.BigEndian.AppendUint16(b, own.Port())
	b = binary.BigEndian.AppendUint16(b, peer.Port())
	for _, a := range []netip.Addr{own.Addr(), peer.Addr()} {
		var field [16]byte
		copy(field[:], a.AsSlice())
		b = append(b, field[:]...)
	}
	b = binary.NativeEndian.AppendUint32(b, 0)             // any interface
	return binary.NativeEndian.AppendUint64(b, ^uint64(0)) // any cookie
}

// inodeIn reads struct inet_diag_msg, which ends with the inode number.
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
