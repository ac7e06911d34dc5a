// Package sshcommand has the two commands that sessions of ssh start in a sandbox beside
// those of its own: the transfer of files, and a forwarded connection. They are commands
// like any other, so the policy judges their files and connections.
package sshcommand

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/pkg/sftp"

	"agentsh/internal/wire"
)

// stream is a reader and a writer.
type stream struct {
	io.Reader
	io.Writer
}

// Close is called when the client has left. Nothing is read or written then.
func (stream) Close() error { return nil }

// ServeFiles serves sftp until in ends. Relative names are below the working directory.
func ServeFiles(in io.Reader, out io.Writer) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	s, err := sftp.NewServer(stream{in, out}, sftp.WithServerWorkingDirectory(dir))
	if err == nil {
		err = s.Serve()
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return err
}

// connectWait is the time for a connection to be made.
const connectWait = 2 * time.Minute

// Forward connects to HOST:PORT or unix:PATH, and copies in to the connection and the
// connection to out. It says on said what happens: see [wire.ForwardConnected].
func Forward(ctx context.Context, address string, in io.Reader, out, said io.Writer) error {
	network := "tcp"
	if path, isPath := strings.CutPrefix(address, wire.ForwardUnix); isPath {
		network, address = "unix", path
	}
	d := net.Dialer{Timeout: connectWait}
	conn, err := d.DialContext(ctx, network, address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := fmt.Fprintln(said, wire.ForwardConnected); err != nil {
		return err
	}
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := io.Copy(conn, in); err != nil {
			return // the other direction says why
		}
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // fails only with the connection
		}
	})
	n, err := io.Copy(out, conn)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(said, wire.ForwardEnd, n); err != nil {
		return err
	}
	sending.Wait()
	return nil
}
