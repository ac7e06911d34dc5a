package tools

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// lastAnswers is how long a client may take to read the answers of its calls when the tools end. Their commands are ended
// before. It is a variable for tests.
var lastAnswers = 5 * time.Second

// Serve serves one client over a stream, a message a line. A line that is no message is answered with an error. Serve returns when the
// client has closed its end, or ctx ends. Calls that still run are cancelled then, and answered with the cause of ctx; a client
// that does not read the answers for a time keeps what writes to it until the process ends.
func (t *Toolbox) Serve(ctx context.Context, in io.ReadCloser, out io.WriteCloser) error {
	serving, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	writer := &countedAnswers{WriteCloser: out}
	reader := newMessages(in, writer.aside)
	session, err := t.server.Connect(serving, &mcp.IOTransport{Reader: reader, Writer: writer, MaxLineLength: -1}, nil) // reader bounds it
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- session.Wait() }()
	select {
	case err = <-done:
	case <-reader.ended:
		t.end(errClosed) // the SDK waits for calls that run
		err = <-done
	case <-ctx.Done():
		answered := writer.expect(t.calls.number())
		t.end(closedBy(ctx))
		limit, stop := context.WithTimeout(serving, lastAnswers)
		defer stop()
		select { // the SDK drops answers when it closes
		case <-answered:
		case <-done:
		case <-limit.Done():
		}
		go func() { _ = session.Close() }() // the error of the stream that ends
		select {
		case <-done:
		case <-limit.Done():
		}
		return nil
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// countedAnswers counts the answers to a client.
type countedAnswers struct {
	io.WriteCloser
	writing sync.Mutex // one line at a time

	mu   sync.Mutex
	left int           // answers that are expected
	done chan struct{} // closed when they are written; nil: none are
}

// expect returns what is closed after n more answers.
func (c *countedAnswers) expect(n int) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left, c.done = n, make(chan struct{})
	if n == 0 {
		close(c.done)
	}
	return c.done
}

// aside writes a line that is no answer of the SDK. A client that has gone needs none.
func (c *countedAnswers) aside(line []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_, _ = c.WriteCloser.Write(line)
}

// Write writes one message, as the SDK does.
func (c *countedAnswers) Write(p []byte) (int, error) {
	c.writing.Lock()
	n, err := c.WriteCloser.Write(p)
	c.writing.Unlock()
	if bytes.Contains(p[:min(len(p), 300)], []byte(`"method":`)) { // a notification or a request
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left > 0 {
		if c.left--; c.left == 0 {
			close(c.done)
		}
	}
	return n, err
}
