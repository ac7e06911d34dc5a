package notify

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/seccomp/target"
)

// socket is a duplicate of a descriptor of the session: the same open file.
type socket struct {
	fd     int
	domain int
}

// openTCP duplicates a TCP socket of a thread. The error is errNotTCP for a socket of
// another kind. The caller closes the result.
func openTCP(t *target.Target, fd int) (*socket, error) {
	f, err := t.Duplicate(fd)
	if err != nil {
		return nil, err
	}
	defer f.Close() // not the copy below
	duplicate, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	runtime.KeepAlive(f)
	if err != nil {
		return nil, fmt.Errorf("duplicate socket: %w", err)
	}
	s := &socket{fd: duplicate}
	var kind, protocol int
	for _, o := range []struct {
		name int
		to   *int
	}{{unix.SO_DOMAIN, &s.domain}, {unix.SO_TYPE, &kind}, {unix.SO_PROTOCOL, &protocol}} {
		if *o.to, err = unix.GetsockoptInt(duplicate, unix.SOL_SOCKET, o.name); err != nil {
			s.close()
			return nil, fmt.Errorf("read options of socket: %w", err)
		}
	}
	if s.domain != unix.AF_INET && s.domain != unix.AF_INET6 || kind != unix.SOCK_STREAM || protocol != unix.IPPROTO_TCP {
		s.close()
		return nil, errNotTCP
	}
	return s, nil
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// emulateConnect connects the caller's socket to a destination. A socket of another kind
// than TCP is left to the kernel if the session has its own network, and denied otherwise.
func (h *sockets) emulateConnect(c *call, t *target.Target, fd int, a sockaddr, to *Destination) (answer, error) {
	s, err := openTCP(t, fd)
	if errors.Is(err, errNotTCP) {
		if h.network.Shared {
			return deny(unix.EPERM), nil
		}
		return proceed, nil
	}
	if err != nil {
		return noAnswer, err
	}
	defer s.close()
	if !c.valid() {
		return noAnswer, errGone
	}
	if s.domain != a.family {
		return deny(unix.EAFNOSUPPORT), nil
	}
	peer, errno := s.peer(a.inet.Addr(), to)
	if errno != 0 {
		return deny(errno), nil
	}
	if _, err := unix.Getpeername(s.fd); err == nil {
		return result(unix.Connect(s.fd, peer)) // connected already: the kernel says what follows
	}
	local, err := s.bound(a.inet.Addr())
	if err != nil {
		return noAnswer, err
	}
	if !h.network.Shared && !local.Addr().IsLoopback() {
		return deny(unix.EADDRNOTAVAIL), nil // the session's network drops the answers to it
	}
	forget := to.Register(local)
	stuck := time.AfterFunc(connectTime, func() { _ = unix.Shutdown(s.fd, unix.SHUT_RDWR) })
	errno, _ = errnoOf(unix.Connect(s.fd, peer))
	stuck.Stop()
	if errno == 0 {
		return success, nil
	}
	if errno != unix.EINPROGRESS && errno != unix.EALREADY {
		forget()
	}
	return deny(errno), nil
}

// connectTime bounds a connect(2) of this process to a listener of its own, which the kernel
// completes at once. A command may have its socket drop the answer.
const connectTime = 3 * time.Second

// peer is the address to connect to, of the socket's family.
func (s *socket) peer(asked netip.Addr, to *Destination) (unix.Sockaddr, unix.Errno) {
	if s.domain == unix.AF_INET {
		return sockaddrOf(to.V4, false), 0
	}
	if !asked.Is4In6() && to.V6.IsValid() {
		return sockaddrOf(to.V6, true), 0
	}
	if only, err := unix.GetsockoptInt(s.fd, unix.SOL_IPV6, unix.IPV6_V6ONLY); err != nil || only != 0 {
		return nil, unix.ENETUNREACH
	}
	return sockaddrOf(to.V4, true), 0
}

func sockaddrOf(a netip.AddrPort, six bool) unix.Sockaddr {
	if six {
		return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
}

var (
	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	loopback6 = netip.IPv6Loopback()
)

// bound returns the source address of the socket's connection to loopback. It binds an
// unbound socket to a port.
func (s *socket) bound(asked netip.Addr) (netip.AddrPort, error) {
	local, err := s.name()
	if err != nil {
		return netip.AddrPort{}, err
	}
	from := loopback4
	if s.domain == unix.AF_INET6 && !asked.Is4In6() {
		from = loopback6
	}
	if local.Port() == 0 {
		bindTo := from
		if s.domain == unix.AF_INET6 && from == loopback4 {
			bindTo = netip.AddrFrom16(from.As16())
		}
		if err := unix.Bind(s.fd, sockaddrOf(netip.AddrPortFrom(bindTo, 0), s.domain == unix.AF_INET6)); err != nil {
			return netip.AddrPort{}, fmt.Errorf("bind socket: %w", err)
		}
		if local, err = s.name(); err != nil {
			return netip.AddrPort{}, err
		}
	}
	if !local.Addr().IsUnspecified() {
		from = local.Addr()
	}
	return netip.AddrPortFrom(from.Unmap(), local.Port()), nil
}

// name is the socket's own address.
func (s *socket) name() (netip.AddrPort, error) {
	sa, err := unix.Getsockname(s.fd)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("address of socket: %w", err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port)), nil
	}
	return netip.AddrPort{}, errNotTCP
}

// listen emulates listen(2) where no network namespace keeps sockets on loopback. It
// uses a duplicate, so that the descriptor cannot mean another socket meanwhile. A
// socket without an address gets one of loopback first.
func (h *sockets) listen(c *call) (answer, error) {
	t, err := target.Open(c.TID)
	if err != nil {
		return noAnswer, err
	}
	defer t.Close()
	fd, backlog := int(int32(c.Args[0])), int(int32(c.Args[1]))
	s, err := openTCP(t, fd)
	if errors.Is(err, errNotTCP) {
		return h.listenOther(c, t, fd, backlog)
	}
	if errno, ok := errnoOf(err); ok {
		return deny(errno), nil
	}
	if err != nil {
		return noAnswer, err
	}
	defer s.close()
	if !c.valid() {
		return noAnswer, errGone
	}
	local, err := s.bound(loopback6)
	if err != nil {
		return noAnswer, err
	}
	if at, err := s.name(); err != nil || !at.Addr().IsLoopback() {
		h.reportListen(t, netip.AddrPortFrom(at.Addr(), local.Port()))
		return deny(unix.EACCES), nil
	}
	return result(unix.Listen(s.fd, backlog))
}

// listenOther emulates listen for another kind of socket, as the user of the
// commands: who connects to a Unix socket can read who listens.
func (h *sockets) listenOther(c *call, t *target.Target, fd, backlog int) (answer, error) {
	f, err := t.Duplicate(fd)
	if err != nil {
		return noAnswer, err
	}
	defer f.Close()
	if !c.valid() {
		return noAnswer, errGone
	}
	listened := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the identity it took
		for _, id := range []struct {
			call   uintptr
			number int
		}{{unix.SYS_SETRESGID, h.network.GID}, {unix.SYS_SETRESUID, h.network.UID}} {
			if _, _, errno := unix.RawSyscall(id.call, uintptr(id.number), uintptr(id.number), uintptr(id.number)); errno != 0 {
				listened <- errno
				return
			}
		}
		listened <- unix.Listen(int(f.Fd()), backlog)
	}()
	return result(<-listened)
}

// reportListen writes the event of a socket that may not listen.
func (h *sockets) reportListen(t *target.Target, at netip.AddrPort) {
	e := wire.Event{
		Type: wire.EventNet, Target: at.String(), Op: "listen", Decision: "deny", Mechanism: "seccomp",
		Message: "the network is the machine's: sockets listen on its loopback only", Hint: "bind to 127.0.0.1 or ::1",
	}
	if p, command, err := h.images.identify(t); err == nil {
		e.Process, e.Command = &p, command
	}
	h.record.report(e)
}
