package tools

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// maxMessage bounds one message of a client, in bytes: two files of the largest size.
const maxMessage = 2*maxFile + 1<<20

// Serve serves one client over a stream, a message a line. It returns when the client has
// closed its end, or ctx ends. Calls that still run are cancelled then.
func (t *Toolbox) Serve(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reader := &untilEnd{ReadCloser: in, ended: make(chan struct{})}
	session, err := t.server.Connect(ctx, &mcp.IOTransport{Reader: reader, Writer: out, MaxLineLength: maxMessage}, nil)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- session.Wait() }()
	select {
	case err = <-done:
	case <-reader.ended:
		t.end() // the SDK waits for calls that run
		err = <-done
	case <-ctx.Done():
		t.end()
		_ = session.Close() // the error of the stream that ends
		<-done
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// untilEnd says when its reader has ended.
type untilEnd struct {
	io.ReadCloser
	ended chan struct{}
	once  sync.Once
}

func (u *untilEnd) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err != nil {
		u.once.Do(func() { close(u.ended) })
	}
	return n, err
}
