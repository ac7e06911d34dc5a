package tools

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"sync"
)

// connections limits the connections of a listener. When there are too many, the oldest one closes that has not shown the
// token: clients without it keep no other client out. It is safe for concurrent use.
type connections struct {
	net.Listener
	most int

	mu        sync.Mutex
	open      int
	strangers *list.List    // of *connection, oldest first
	room      chan struct{} // closed when a connection closes; nil: nobody waits
	closed    chan struct{}
	end       func()
}

// connection is one connection of a client.
type connection struct {
	net.Conn
	of   *connections
	at   *list.Element // among the strangers; nil: it is none, or closed
	gone bool
}

func limitConnections(l net.Listener, most int) *connections {
	c := &connections{Listener: l, most: most, strangers: list.New(), closed: make(chan struct{})}
	c.end = sync.OnceFunc(func() { close(c.closed) })
	return c
}

// Accept implements [net.Listener].
func (c *connections) Accept() (net.Conn, error) {
	for room := c.wait(); room != nil; room = c.wait() {
		select {
		case <-room:
		case <-c.closed:
			return nil, net.ErrClosed
		}
	}
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	one := &connection{Conn: conn, of: c}
	c.mu.Lock()
	one.at = c.strangers.PushBack(one)
	c.open++
	var oldest *connection
	if front := c.strangers.Front(); c.open > c.most && front != one.at { // else all others have just shown the token
		oldest = front.Value.(*connection)
	}
	c.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // nobody waits for it
	}
	return one, nil
}

// wait is a channel that is closed when there may be room; nil: there is.
func (c *connections) wait() chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open < c.most || c.strangers.Len() > 0 {
		return nil
	}
	if c.room == nil {
		c.room = make(chan struct{})
	}
	return c.room
}

// Close implements [net.Listener].
func (c *connections) Close() error {
	c.end()
	return c.Listener.Close()
}

// Close closes a connection. It may be called several times.
func (o *connection) Close() error {
	o.leave(true)
	return o.Conn.Close()
}

// leave says that a connection is no stranger any more.
func (o *connection) leave(closed bool) {
	c := o.of
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.at != nil {
		c.strangers.Remove(o.at)
		o.at = nil
	}
	if !closed || o.gone {
		return
	}
	o.gone = true
	c.open--
	if c.room != nil {
		close(c.room)
		c.room = nil
	}
}

// connectionKey is the key of the connection in the context of a request.
type connectionKey struct{}

func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, conn)
}

// known says that the connections of requests have shown the token.
func known(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if one, is := r.Context().Value(connectionKey{}).(*connection); is {
			one.leave(false)
		}
		next.ServeHTTP(w, r)
	})
}
