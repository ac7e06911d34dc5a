package place

import (
	"bytes"
	"errors"
	"net"
	"sync"
	"testing"

	"agentsh/internal/resume"
	"agentsh/internal/wire"
)

// nonceOf is a stream that begins with a nonce.
func nonceOf(t *testing.T, b byte) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	go func() { _, _ = far.Write(bytes.Repeat([]byte{b}, resume.NonceSize)) }() // ends with the pipe
	return near
}

func TestTheLastOfManyControllersIsServed(t *testing.T) {
	c := newControllers(wire.Resume{Token: make([]byte, resume.TokenSize), Seconds: 60})
	first := c.Conn()
	streams := make([]net.Conn, 8)
	for i := range streams {
		streams[i] = nonceOf(t, byte(i))
	}
	taken := make([]*resume.Conn, len(streams))
	var all sync.WaitGroup
	for i, s := range streams {
		all.Go(func() { taken[i] = c.take(s) })
	}
	all.Wait()
	last := c.Conn()
	for _, conn := range append(taken, first) {
		if conn == last {
			continue
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, errTaken) {
			t.Errorf("a connection that was taken over ends with %v", err)
		}
	}
	if last == first || c.next() != net.Conn(last) {
		t.Error("the last controller is not served")
	}
	if c.next() != nil {
		t.Error("it is served twice")
	}
	if c.take(nonceOf(t, 9)) != nil {
		t.Error("a session that has ended was taken over")
	}
	if c.end() != last {
		t.Error("another connection is the last one")
	}
}
