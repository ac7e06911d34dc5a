// Package listen keeps servers alive that run out of descriptors or memory.
package listen

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// Sparing is a listener whose Accept does not fail when the process or the
// machine has no descriptor or memory left for one more connection: the
// connection is closed, and Accept goes on with the next. Only one goroutine may
// call Accept.
type Sparing struct {
	net.Listener
	// Refused is told of each connection that is about to be closed; nil: nobody.
	Refused func(net.Conn, error)

	spare *os.File // gives its descriptor to the connection that is refused
}

// longest is how long Accept waits at most for descriptors where it could keep
// none to spare.
const longest = time.Second

// Accept returns the next connection that there is room for. After an error it
// is not called again.
func (s *Sparing) Accept() (net.Conn, error) {
	for wait := time.Millisecond; ; wait = min(2*wait, longest) {
		s.save()
		conn, err := s.Listener.Accept()
		if err != nil && Exhausted(err) {
			if s.spare == nil {
				<-time.After(wait) // nothing tells when another goroutine closes a file
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

// save keeps a descriptor to spare, if there is one.
func (s *Sparing) save() {
	if s.spare == nil {
		s.spare, _ = os.Open(os.DevNull) // without one Accept waits
	}
}

// shed takes the next connection with the descriptor that was spared, and closes
// it unless there is another one by now. Both results are nil when it did, or
// when somebody else got the descriptor.
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

// Exhausted reports an error that says that the process or the machine has no
// descriptors or no memory left.
func Exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.ENOBUFS) ||
		errors.Is(err, syscall.ENOMEM)
}
