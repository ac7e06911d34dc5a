package outside

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// pairs is a listener without an address: dial connects to it, and nothing else can.
type pairs struct {
	accepted chan net.Conn
	done     chan struct{}
	once     sync.Once
}

// dial makes a connection.
func (p *pairs) dial(ctx context.Context) (net.Conn, error) {
	here, there, err := pair()
	if err != nil {
		return nil, err
	}
	select {
	case p.accepted <- there:
		return here, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-p.done:
		err = net.ErrClosed
	}
	return nil, errors.Join(err, here.Close(), there.Close())
}

// pair makes two sockets that are connected.
func pair() (here, there net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	a, b := os.NewFile(uintptr(fds[0]), "proxy"), os.NewFile(uintptr(fds[1]), "proxy")
	defer func() { _, _ = a.Close(), b.Close() }() // FileConn has copies
	if here, err = net.FileConn(a); err != nil {
		return nil, nil, err
	}
	if there, err = net.FileConn(b); err != nil {
		return nil, nil, errors.Join(err, here.Close())
	}
	return here, there, nil
}

func (p *pairs) Accept() (net.Conn, error) {
	select {
	case c := <-p.accepted:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pairs) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pairs) Addr() net.Addr { return &net.UnixAddr{Name: "proxy", Net: "unix"} }
