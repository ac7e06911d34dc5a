package resume

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// limited is a stream that ends after a number of written bytes, which may be within a
// frame.
type limited struct {
	net.Conn
	mu   sync.Mutex
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	n := min(len(p), l.left)
	l.left -= n
	l.mu.Unlock()
	if n == len(p) {
		return l.Conn.Write(p)
	}
	n, _ = l.Conn.Write(p[:n])
	return n, errors.Join(io.ErrClosedPipe, l.Close())
}

// ends are two ends of a connection whose streams break.
type ends struct {
	dialer, acceptor *Conn
	streams          int
	done             chan struct{} // closed when both are over
}

// connect carries streams until the connection is over. limit returns the number of bytes
// that each end can write to the next stream.
func connect(lease time.Duration, limit func(n int) int) *ends {
	token := bytes.Repeat([]byte{7}, TokenSize)
	e := &ends{dialer: New(token, lease, true), acceptor: New(token, lease, false), done: make(chan struct{})}
	go func() {
		defer close(e.done)
		var accepted sync.WaitGroup
		defer accepted.Wait()
		for {
			a, b := net.Pipe()
			e.streams++
			accepted.Go(func() {
				_ = e.acceptor.Carry(&limited{Conn: b, left: limit(e.streams)})
				_ = b.Close()
			})
			over := e.dialer.Carry(&limited{Conn: a, left: limit(e.streams)})
			_ = a.Close()
			if over {
				return
			}
		}
	}()
	return e
}

func noise(seed uint64, n int) []byte {
	out := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range out {
		out[i] = byte(r.Uint32())
	}
	return out
}

// exchange sends data both ways at once, and compares what arrives.
func exchange(t *testing.T, e *ends, size int) {
	t.Helper()
	var both sync.WaitGroup
	for i, c := range []*Conn{e.dialer, e.acceptor} {
		both.Go(func() {
			if _, err := io.Copy(c, bytes.NewReader(noise(uint64(i), size))); err != nil {
				t.Errorf("write: %v", err)
			}
		})
		both.Go(func() {
			got := make([]byte, size)
			if _, err := io.ReadFull(c, got); err != nil {
				t.Errorf("read: %v", err)
			}
			if !bytes.Equal(got, noise(uint64(1-i), size)) {
				t.Error("other bytes arrived")
			}
		})
	}
	both.Wait()
}

// finish closes both ends and waits.
func finish(t *testing.T, e *ends) {
	t.Helper()
	if err := e.dialer.Close(); err != nil {
		t.Error(err)
	}
	if n, err := e.acceptor.Read(make([]byte, 1)); n != 0 || !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %d, %v", n, err)
	}
	if err := e.acceptor.Close(); err != nil {
		t.Error(err)
	}
	<-e.done
}

func TestBytesArriveOnceOverStreamsThatBreakAnywhere(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(seed, 2))
			var mu sync.Mutex
			e := connect(time.Hour, func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				if n > 100 {
					return 1 << 30
				}
				return r.IntN(1 << (4 + r.IntN(13)))
			})
			exchange(t, e, 1<<20)
			finish(t, e)
			if e.streams < 20 {
				t.Errorf("%d streams", e.streams)
			}
		})
	}
}

func TestAStreamMayBreakAtEachOfItsFirstBytes(t *testing.T) {
	for at := range 120 {
		e := connect(time.Hour, func(n int) int {
			if n <= 3 {
				return at
			}
			return 1 << 30
		})
		exchange(t, e, 100)
		finish(t, e)
	}
}

func TestTheEndSurvivesBrokenStreams(t *testing.T) {
	for at := range 60 {
		e := connect(time.Hour, func(n int) int { return 30 + (7*n+at)%61 })
		if _, err := e.dialer.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		if err := e.dialer.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(e.acceptor)
		if string(got) != "last words" || err != nil {
			t.Fatalf("%q, %v", got, err)
		}
		if err := e.acceptor.Close(); err != nil {
			t.Fatal(err)
		}
		e.dialer.Fail(ErrLost) // its peer is over, and may not have told it
		<-e.done
	}
}

// TestWhyAnEndClosedArrives has the accepting end say it over streams that break, and wait until the other end knows.
func TestWhyAnEndClosedArrives(t *testing.T) {
	for at := range 60 {
		e := connect(time.Hour, func(n int) int { return 40 + (7*n+at)%61 })
		if said := e.dialer.Reason(); said != "" {
			t.Fatalf("%q before the end", said)
		}
		e.acceptor.CloseFor("no room")
		if _, err := e.dialer.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if said := e.dialer.Reason(); said != "no room" {
			t.Fatalf("it said %q", said)
		}
		if err := e.dialer.Close(); err != nil {
			t.Fatal(err)
		}
		<-e.done
		if e.dialer.Reason() != "no room" || e.acceptor.Reason() != "" {
			t.Fatalf("%q, %q", e.dialer.Reason(), e.acceptor.Reason())
		}
		e.acceptor.Fail(ErrLost) // its peer is over, and may not have told it
		e.acceptor.Wait(time.Hour)
	}
	long := New(make([]byte, TokenSize), time.Hour, false)
	long.CloseFor(string(noise(1, maxReason+1)))
	if len(long.reason) != maxReason {
		t.Errorf("a reason of %d bytes", len(long.reason))
	}
	long.Fail(ErrLost)
}

// Where streams are slow to come back, all of them together may take longer than an end is waited for.
func TestEachStreamRenewsThePatienceOfAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := bytes.Repeat([]byte{7}, TokenSize)
		dialer, acceptor := New(token, time.Hour, true), New(token, time.Hour, false)
		acceptor.CloseFor("no room")
		waited := make(chan struct{})
		go func() {
			acceptor.Wait(10 * time.Second)
			close(waited)
		}()
		for range 6 { // both ends begin, and the reason is cut
			a, b := net.Pipe()
			go func() { _ = acceptor.Carry(&limited{Conn: b, left: 8}) }()
			dialer.Carry(a)
			_ = a.Close()
			select {
			case <-waited:
				t.Fatal("it waits no more")
			case <-time.After(8 * time.Second): // of the bubble
			}
		}
		a, b := net.Pipe()
		began := time.Now()
		go func() { _ = acceptor.Carry(b) }()
		go func() { _ = dialer.Carry(a) }() // it does not close the connection
		<-waited
		if took := time.Since(began); took != 10*time.Second || dialer.Reason() != "no room" {
			t.Errorf("after %s, %q", took, dialer.Reason())
		}
		dialer.Fail(ErrLost)
	})
}

func TestAWriterWaitsForItsReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := connect(time.Hour, func(int) int { return 1 << 30 })
		const size = maxStored + maxUnread + 1<<20
		written := make(chan error, 1)
		go func() {
			_, err := e.dialer.Write(noise(0, size))
			written <- err
		}()
		<-time.After(10 * deadAfter) // of the bubble; the stream lives although nobody reads
		select {
		case err := <-written:
			t.Errorf("everything was stored: %v", err)
		default:
		}
		got := make([]byte, size)
		if _, err := io.ReadFull(e.acceptor, got); err != nil || !bytes.Equal(got, noise(0, size)) {
			t.Errorf("read: %v", err)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
		if e.streams != 1 {
			t.Errorf("%d streams", e.streams)
		}
		finish(t, e)
	})
}

func TestAConnectionWithoutAStreamIsLostAfterItsLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(make([]byte, TokenSize), time.Minute, false)
		begun := time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrLost) || time.Since(begun) != time.Minute {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
		if _, err := c.Write(make([]byte, 1)); !errors.Is(err, ErrLost) {
			t.Error(err)
		}
	})
}

// TestStreamsThatNeverBeginAreNone has a peer that leaves each stream before its first byte.
func TestStreamsThatNeverBeginAreNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, dials := range []bool{true, false} {
			c := New(make([]byte, TokenSize), time.Minute, dials)
			begun := time.Now()
			for over := false; !over && time.Since(begun) < time.Hour; <-time.After(time.Second) {
				a, b := net.Pipe()
				go func() {
					_, _ = io.CopyN(io.Discard, b, TokenSize+8)
					_ = b.Close()
				}()
				if !dials {
					_ = b.Close()
				}
				over = c.Carry(a)
				_ = a.Close()
			}
			if d := time.Since(begun); d > time.Minute+2*time.Second {
				t.Errorf("dials: %v: lost after %s", dials, d)
			}
			c.Fail(ErrLost)
		}
	})
}

func TestASilentStreamIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		token := make([]byte, TokenSize)
		dialer, acceptor := New(token, time.Hour, true), New(token, time.Hour, false)
		a, b := net.Pipe()
		var carried sync.WaitGroup
		begun := time.Now()
		carried.Go(func() {
			if dialer.Carry(a) {
				t.Error("it is over")
			}
		})
		go func() { // reads and says nothing after the first answer
			_, _ = io.CopyN(io.Discard, b, TokenSize+8)
			_, _ = b.Write(make([]byte, 8))
			_, _ = io.Copy(io.Discard, b)
		}()
		carried.Wait()
		if d := time.Since(begun); d != deadAfter {
			t.Errorf("after %s", d)
		}
		dialer.Fail(ErrLost)
		acceptor.Fail(ErrLost)
	})
}

func TestAnotherTokenIsRefused(t *testing.T) {
	acceptor := New(make([]byte, TokenSize), time.Hour, false)
	defer acceptor.Fail(ErrLost)
	a, b := net.Pipe()
	other := New(bytes.Repeat([]byte{1}, TokenSize), time.Hour, true)
	done := make(chan bool)
	go func() { done <- other.Carry(a) }()
	if acceptor.Carry(b) {
		t.Error("a stranger ended the connection")
	}
	_ = b.Close()
	if <-done {
		t.Error("the stranger is over")
	}
	other.Fail(ErrLost)
}

func TestAPeerThatAcknowledgesWhatWasNotSentEndsTheConnection(t *testing.T) {
	for name, frames := range map[string]string{
		"at the beginning": "\x00\x00\x00\x00\x00\x00\x00\x09",
		"later":            "\x00\x00\x00\x00\x00\x00\x00\x00a\x00\x00\x00\x00\x00\x00\x00\x09",
		"a huge frame":     "\x00\x00\x00\x00\x00\x00\x00\x00d\xff\x00\x00\x00\x00\x00\x00\x09",
		"an empty frame":   "\x00\x00\x00\x00\x00\x00\x00\x00d\x00\x00\x00\x00\x00\x00\x00\x00",
		"a huge reason":    "\x00\x00\x00\x00\x00\x00\x00\x00r\x00\x00\x00\x00\x00\x01\x00\x00",
		"an unknown frame": "\x00\x00\x00\x00\x00\x00\x00\x00?\x00\x00\x00\x00\x00\x00\x00\x00",
	} {
		c := New(make([]byte, TokenSize), time.Hour, true)
		a, b := net.Pipe()
		go func() {
			_, _ = io.CopyN(io.Discard, b, TokenSize+8)
			_, _ = io.WriteString(b, frames)
			_, _ = io.Copy(io.Discard, b)
		}()
		if !c.Carry(a) {
			t.Errorf("%s: it goes on", name)
		}
		_ = b.Close()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, errProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := New(make([]byte, TokenSize), time.Hour, true)
		if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		if _, err := c.Write(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		if err := c.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Write(make([]byte, 1)); err != nil {
			t.Error(err)
		}
		c.Fail(ErrLost)
	})
}
