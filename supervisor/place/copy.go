package place

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// stuckWait is how long a stream may take nothing after the connection to the supervisor has ended.
const stuckWait = 15 * time.Second

// copyBoth copies bytes between a stream and a connection to a supervisor, until one of
// them ends. It closes both. It returns true if the supervisor ended the connection.
func copyBoth(s Stream, conn io.ReadWriteCloser) (ended bool) { return copyUntil(s, conn, stuckWait) }

// copyUntil is copyBoth. stuck is the interval at which it looks for a stream that takes nothing.
func copyUntil(s Stream, conn io.ReadWriteCloser, stuck time.Duration) (ended bool) {
	var broken atomic.Bool
	var copied sync.WaitGroup
	copied.Go(func() {
		_, err := io.Copy(conn, s)
		broken.Store(err == nil || !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrClosed) && !errors.Is(err, syscall.EPIPE))
		_ = conn.Close()
	})
	to := &remembering{Writer: s}
	done := make(chan struct{})
	copied.Go(func() { to.free(s, conn, stuck, done) })
	_, _ = io.Copy(to, conn) // each end tells its error itself
	ended = !broken.Load() && to.err == nil
	close(done)
	_ = conn.Close()
	_ = s.SetReadDeadline(time.Unix(1, 0)) // ends the copy above; the stream still gets the messages
	copied.Wait()
	return ended
}

// remembering is a writer that stores its error.
type remembering struct {
	io.Writer
	err     error
	written atomic.Int64 // bytes
}

func (r *remembering) Write(p []byte) (int, error) {
	n, err := r.Writer.Write(p)
	r.err = err
	r.written.Add(int64(n))
	return n, err
}

// free closes a stream that takes nothing more after the connection has ended: the bytes that wait keep its end from being read, and
// nobody else ends the stream. It returns when done is closed.
func (r *remembering) free(s io.Closer, conn any, stuck time.Duration, done <-chan struct{}) {
	look := time.NewTicker(stuck)
	defer look.Stop()
	for before := int64(-1); ; {
		select {
		case <-done:
			return
		case <-look.C:
		}
		now := r.written.Load()
		if now == before && hungUp(conn) {
			_ = s.Close() // ends the write
			return
		}
		before = now
	}
}

// hungUp reports whether an end of a socket was closed. See poll(2).
func hungUp(conn any) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	found := false
	err = raw.Control(func(fd uintptr) {
		state := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(state, 0)
		found = err == nil && n == 1 && state[0].Revents&(unix.POLLRDHUP|unix.POLLHUP) != 0
	})
	return err != nil || found // this end is closed
}
