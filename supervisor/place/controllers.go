package place

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"agentsh/internal/resume"
	"agentsh/internal/wire"
)

// controllers are the connections of the controllers of a sandbox, one after the other.
type controllers struct {
	resume wire.Resume

	mu     sync.Mutex
	conn   *resume.Conn // of the last controller
	served *resume.Conn // the one that is served, or was
	over   bool         // no further controller is accepted
}

func newControllers(r wire.Resume) *controllers {
	first := resume.New(r.Token, time.Duration(r.Seconds)*time.Second, false)
	return &controllers{resume: r, conn: first, served: first}
}

// Conn is the connection of the last controller.
func (c *controllers) Conn() *resume.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.conn
}

// errTaken ends the connection of a controller whose place another one has taken.
var errTaken = errors.New("another controller has taken the sandbox over")

// nonceWait is the time for a stream to say its nonce.
const nonceWait = 10 * time.Second

// take makes the connection of a controller that takes the place of the last one. The stream
// begins with its nonce. It returns nil if the session has ended.
func (c *controllers) take(s net.Conn) *resume.Conn {
	nonce := make([]byte, resume.NonceSize)
	if err := s.SetReadDeadline(time.Now().Add(nonceWait)); err != nil {
		return nil
	}
	if _, err := io.ReadFull(s, nonce); err != nil {
		return nil
	}
	if err := s.SetReadDeadline(time.Time{}); err != nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return nil
	}
	c.conn.Fail(errTaken)
	c.conn = resume.New(resume.NextToken(c.resume.Token, nonce), time.Duration(c.resume.Seconds)*time.Second, false)
	return c.conn
}

// next is the connection of a controller that has taken the place of the one that was served;
// nil: there is none, and no further one is accepted.
func (c *controllers) next() net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.served == c.conn {
		c.over = true
		return nil
	}
	c.served = c.conn
	return c.conn
}

// farewell is how long a controller may take to answer the end of the connection, over each stream. One that has to learn why the
// session failed has its lease.
const farewell = 5 * time.Second

// dismiss ends the connection of the last controller, which then knows why the session failed; nil: it did not.
func (c *controllers) dismiss(ctx context.Context, why error) {
	last, wait := c.end(), farewell
	if why != nil && ctx.Err() == nil {
		last.CloseFor(why.Error())
		wait = max(wait, time.Duration(c.resume.Seconds)*time.Second)
	}
	_ = last.Close() // the server may have closed it
	last.Wait(wait)
}

// end accepts no further controller. It returns the connection of the last one.
func (c *controllers) end() *resume.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	return c.conn
}
