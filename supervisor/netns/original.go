package netns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Original returns the destination that a redirected connection had before
// nf_tables changed it. See linux/netfilter_ipv4.h, SO_ORIGINAL_DST; the number
// is the same for IPv6.
func Original(c net.Conn) (netip.AddrPort, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return netip.AddrPort{}, errors.New("original destination: not a TCP connection")
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("original destination: %w", err)
	}
	local := tcpAddr(c.LocalAddr())
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
