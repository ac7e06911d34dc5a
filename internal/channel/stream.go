package channel

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"syscall"
)

// Pair makes a connected pair of Unix stream sockets. It returns this process's end,
// and the other end as a file for a child process. The caller closes both.
func Pair() (net.Conn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make socket pair: %w", err)
	}
	own, other := os.NewFile(uintptr(fds[0]), "channel"), os.NewFile(uintptr(fds[1]), "channel peer")
	defer own.Close()
	conn, err := FromFile(own)
	if err != nil {
		other.Close()
		return nil, nil, err
	}
	return conn, other, nil
}

// FromFile makes a connection from a connected socket, for example one that a parent
// process passed. It duplicates the descriptor; the caller closes f.
func FromFile(f *os.File) (net.Conn, error) {
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("use descriptor %q as channel: %w", f.Name(), err)
	}
	return conn, nil
}

// Dial connects to a stream. The only scheme is unix:///path.
func Dial(ctx context.Context, address string) (net.Conn, error) {
	file, err := unixPath(address)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", file)
	if err != nil {
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return conn, nil
}

// Listen listens for streams. The only scheme is unix:///path. Only the owner can
// connect to the socket, from its creation on. Listen replaces a socket on which no
// process listens. Closing the listener removes the socket.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	file, err := unixPath(address)
	if err != nil {
		return nil, err
	}
	if err := requireFree(ctx, file); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listenAt(ctx, "unix", file)
}

// ListenPackets is Listen for a socket of packets, at a path where there is none.
func ListenPackets(ctx context.Context, file string) (net.Listener, error) {
	return listenAt(ctx, "unixpacket", file)
}

// listenAt makes a socket for this user alone, which appears when it listens.
func listenAt(ctx context.Context, network, file string) (net.Listener, error) {
	dir := filepath.Join(filepath.Dir(file), "."+rand.Text()[:8])
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", file, err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // an empty directory of this function
	made := filepath.Join(dir, "s")
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, network, made)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", file, err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(made, 0o600), os.Rename(made, file)); err != nil {
		return nil, fmt.Errorf("listen on %s: %w", file, errors.Join(err, l.Close()))
	}
	return &unixListener{l, file}, nil
}

// unixListener removes its socket when it is closed.
type unixListener struct {
	net.Listener
	file string
}

// Addr is the path of the socket, which was made under another name.
func (l *unixListener) Addr() net.Addr { return &net.UnixAddr{Name: l.file, Net: "unix"} }

func (l *unixListener) Close() error {
	err := l.Listener.Close()
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	return errors.Join(err, os.Remove(l.file))
}

func unixPath(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("channel address: %w", err)
	}
	if u.Scheme != "unix" || u.Host != "" || !filepath.IsAbs(u.Path) || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("channel address %q: only unix:///path is offered", address)
	}
	return u.Path, nil
}

// requireFree returns an error if a path exists, unless it is a socket on which no
// process listens.
func requireFree(ctx context.Context, file string) error {
	info, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is not a socket", file)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", file)
	if err == nil {
		_ = conn.Close()
		return fmt.Errorf("somebody listens on %s", file)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return err
	}
	return nil
}
