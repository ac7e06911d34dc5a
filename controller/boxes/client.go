package boxes

import (
	"io"
	"sync"
	"time"
)

// readWait is how long a client may take to read a message once its stream has ended, or this program was
// asked to end.
const readWait = 10 * time.Second

// client writes messages to a client. One that does not read holds its calls up, but not their end.
type client struct {
	lines   chan []byte
	gone    chan struct{} // closed when the client gets no more
	give    func()        // closes gone
	written chan struct{} // closed after the last message

	mu      sync.Mutex
	ending  bool        // each message has a limited time
	writing bool        // a message is being written
	late    *time.Timer // gives the client up; nil: it may take its time
}

func newClient(to io.Writer) *client {
	c := &client{lines: make(chan []byte), gone: make(chan struct{}), written: make(chan struct{})}
	c.give = sync.OnceFunc(func() { close(c.gone) })
	go func() { // ends with flush, or with the process if the client does not read
		defer close(c.written)
		for {
			select {
			case line := <-c.lines:
				if line == nil {
					return
				}
				c.write(true)
				_, _ = to.Write(line) // of a client that has gone the stream ends
				c.write(false)
			case <-c.gone:
				return
			}
		}
	}()
	return c
}

// end bounds the time for each message from now on.
func (c *client) end() { c.limit(func() { c.ending = true }) }

// write says whether a message is being written.
func (c *client) write(now bool) { c.limit(func() { c.writing = now }) }

// limit changes the state, and begins or ends the time for a message.
func (c *client) limit(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
	if c.late != nil {
		c.late.Stop()
		c.late = nil
	}
	if c.ending && c.writing {
		c.late = time.AfterFunc(readWait, c.give)
	}
}

// send sends a message, a line.
func (c *client) send(line []byte) {
	select {
	case c.lines <- line:
	case <-c.gone:
	}
}

// flush waits until the client has all messages, or has had its time. The caller has called end, and
// sends nothing afterwards.
func (c *client) flush() {
	c.send(nil)
	select {
	case <-c.written:
	case <-c.gone:
	}
}
