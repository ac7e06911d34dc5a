// Package listen provides a listener that survives the exhaustion of
// descriptors or memory, and listens at addresses that people write.
package listen

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// TCP listens at an IP address with a port. 0.0.0.0 is all addresses of IPv4, and none of
// IPv6, which [net.Listen] adds. The caller closes the listener.
func TCP(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
	network := "tcp"
	if at.Addr().Is4() {
		network = "tcp4"
	}
	return (&net.ListenConfig{}).Listen(ctx, network, at.String())
}

// Sparing is a listener that stays usable when the process or the machine has
// no descriptor or memory for one more connection. Accept then closes that
// connection and continues with the next. Only one goroutine may call Accept.
type Sparing struct {
	net.Listener
	// Refused is called before each refused connection is closed; nil: it is not.
	Refused func(net.Conn, error)

	spare *os.File // gives its descriptor to the connection that is refused
}

// longest bounds one wait of Accept for a free descriptor.
const longest = time.Second

// Accept returns the next connection that has a descriptor. It must not be
// called again after an error.
func (s *Sparing) Accept() (net.Conn, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, longest) {
		s.save()
		conn, err := s.Listener.Accept()
		if err != nil && Exhausted(err) {
			if s.spare == nil {
				<-time.After(wait) // there is no event for a file that another goroutine closes
				continue
			}
			if conn, err = s.shed(err); conn == nil && err == nil {
				continue
			}
		}
		if err != nil && s.spare != nil {
			_ = s.spare.Close() // a descriptor of /dev/null
			s.spare = nil
		}
		return conn, err
	}
}

// save opens the spare descriptor if it is closed and a descriptor is free.
func (s *Sparing) save() {
	if s.spare == nil {
		s.spare, _ = os.Open(os.DevNull) // without one Accept waits
	}
}

// shed closes the spare descriptor and accepts the next connection with it. It
// closes the connection unless another descriptor is free by now. Both results
// are nil if the connection was closed, or if another goroutine took the
// descriptor.
func (s *Sparing) shed(why error) (net.Conn, error) {
	_ = s.spare.Close() // a descriptor of /dev/null
	s.spare = nil
	conn, err := s.Listener.Accept()
	if err != nil {
		if Exhausted(err) {
			return nil, nil
		}
		return nil, err
	}
	if s.save(); s.spare != nil {
		return conn, nil
	}
	if s.Refused != nil {
		s.Refused(conn, why)
	}
	_ = conn.Close() // nobody serves it
	return nil, nil
}

// Exhausted reports whether err says that the process or the machine has no
// descriptors or no memory left.
func Exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) ||
		errors.Is(err, syscall.ENOMEM)
}
