package streams

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

func TestOutputWrittenBeforeTheEndIsDelivered(t *testing.T) {
	var stdout, stderr bytes.Buffer
	p, err := newPipes(wire.Streams{Stdout: &stdout, Stderr: &stderr}, nil)
	if err != nil {
		t.Fatal(err)
	}
	late, err := dup(p.Child[1]) // a background process that outlives the command
	if err != nil {
		t.Fatal(err)
	}
	p.Start(nil)
	want := strings.Repeat("x", 60<<10)
	if _, err := p.Child[1].WriteString(want); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Child[2].WriteString("e"); err != nil {
		t.Fatal(err)
	}
	p.Release()
	rest, err := p.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if stdout.String() != want || stderr.String() != "e" {
		t.Errorf("got %d bytes and %q", stdout.Len(), stderr.String())
	}
	if got := *p.Written(); got != (wire.OutputEnd{Stdout: int64(len(want)), Stderr: 1}) {
		t.Errorf("counted %+v", got)
	}
	if _, err := late.WriteString("late"); err != nil {
		t.Errorf("a late write fails: %v", err)
	}
	late.Close()
	<-rest
	if stdout.String() != want {
		t.Error("what was written after the end was delivered")
	}
}

func TestStdinIsPassedAndEnds(t *testing.T) {
	p, err := newPipes(wire.Streams{Stdin: strings.NewReader("hello")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Start(strings.NewReader("hello"))
	got := make([]byte, 16)
	n, err := p.Child[0].Read(got)
	if err != nil || string(got[:n]) != "hello" {
		t.Errorf("read %q, %v", got[:n], err)
	}
	p.Release()
	rest, err := p.Finish()
	if err != nil {
		t.Fatal(err)
	}
	<-rest
}

// dup gives a second descriptor of the same open file.
func dup(f *os.File) (*os.File, error) {
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), os.O_WRONLY, 0)
}

// held is a writer whose first write waits.
type held struct {
	bytes.Buffer
	release chan struct{}
}

func (h *held) Write(b []byte) (int, error) {
	<-h.release
	return h.Buffer.Write(b)
}

// A pipe that was filled by splice(2) has more bytes than its size says.
func TestOutputThatWasSplicedIsDelivered(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	from, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	sent := strings.Repeat("0123456789abcdef", 1<<16)
	go func() {
		_, _ = io.WriteString(to, sent)
		_ = to.Close()
	}()
	stdout := &held{release: make(chan struct{})}
	p, err := newPipes(wire.Streams{Stdout: stdout}, nil)
	if err != nil {
		t.Fatal(err)
	}
	late, err := dup(p.Child[1])
	if err != nil {
		t.Fatal(err)
	}
	raw, err := from.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	p.Start(nil)
	var n int64
	if err := raw.Read(func(fd uintptr) bool {
		for n < int64(len(sent)) {
			m, err := unix.Splice(int(fd), nil, int(p.Child[1].Fd()), nil, 1<<20, unix.SPLICE_F_NONBLOCK)
			if errors.Is(err, unix.EAGAIN) {
				left, err := unix.IoctlGetInt(int(p.Child[1].Fd()), unix.TIOCINQ)
				return err != nil || left > 100<<10 // full, and not only slow
			}
			if err != nil || m == 0 {
				return true
			}
			n += m
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	p.Release()
	ended := make(chan error, 1)
	go func() {
		_, err := p.Finish()
		ended <- err
	}()
	close(stdout.release)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got := p.Written().Stdout; got != n || stdout.String() != sent[:n] || n < 100<<10 {
		t.Errorf("%d of %d bytes were delivered", got, n)
	}
	_ = late.Close()
}
