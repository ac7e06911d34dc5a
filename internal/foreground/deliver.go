package foreground

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// StreamError is the failure of a standard stream of this process.
type StreamError struct {
	Stream string
	Err    error
	// Reported says that the error is printed only: the command was not ended, and
	// its own exit status counts. This is the case if the input was empty. It is
	// also the case if nobody read the output after a signal or a timeout had ended
	// the command.
	Reported bool
}

func (e *StreamError) Error() string {
	verb := "written"
	if e.Stream == streamNames[0] {
		verb = "read"
	}
	return fmt.Sprintf("%s could not be %s: %v", e.Stream, verb, e.Err)
}

func (e *StreamError) Unwrap() error { return e.Err }

// Hint returns advice for a person, or an empty text.
func (e *StreamError) Hint() string {
	if e.Reported {
		return ""
	}
	return "the command and all that it started were ended: repeat it with its output or input somewhere else, as '>FILE' on a disk with room"
}

// Code returns the exit status of this process. ended is the exit status of the
// command.
func (e *StreamError) Code(ended int) int {
	if e.Reported {
		return ended
	}
	return 125
}

var streamNames = [...]string{"standard input", "standard output", "standard error"}

// forcedWait bounds a write after the command was asked to end.
const forcedWait = 2 * time.Second

var errForced = fmt.Errorf("nobody read it for %s after the command was ended", forcedWait)

// Connect returns f with the streams of this process connected to its command.
// If an output cannot be written, the command's whole process tree is ended and
// the error is a [*StreamError]. If the reader of an output has gone, the
// command's output is closed too: its next write gets SIGPIPE. closed makes the
// result of a command that did not notice the closed output. After ctx has
// ended, a write may take two seconds.
func Connect[R any](f Execute[R], closed func(R) R) Execute[R] {
	return func(ctx context.Context, request wire.ExecRequest, streams wire.Streams) (R, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		pipe := make(chan os.Signal, 1) // never read: a write to a closed pipe fails instead of ending this process
		signal.Notify(pipe, syscall.SIGPIPE)
		defer signal.Stop(pipe)
		c := &connection{end: cancel, forced: ctx.Done()}
		if streams.Stdin != nil {
			streams.Stdin = &input{r: streams.Stdin, c: c}
		}
		stdout, stderr := c.output(1, streams.Stdout), c.output(2, streams.Stderr)
		streams.Stdout, streams.Stderr = stdout, stderr
		r, err := f(ctx, request, streams)
		stdout.close()
		stderr.close()
		if failed := c.failure(); failed != nil {
			return r, failed
		}
		if c.closed.Load() && err == nil {
			r = closed(r)
		}
		return r, err
	}
}

// Messages returns a writer for messages of this process to w. ctx is the
// context of main. After a signal has ended it, each message may take two
// seconds.
func Messages(ctx context.Context, w io.Writer) io.Writer { return message(ctx, 2, w) }

// Result is [Messages] for the standard output.
func Result(ctx context.Context, w io.Writer) io.Writer { return message(ctx, 1, w) }

func message(ctx context.Context, n int, w io.Writer) io.Writer {
	return (&connection{end: func() {}, forced: ctx.Done()}).output(n, w)
}

// SignalsEnd restores the default action of signals: they end this process.
func SignalsEnd() { signal.Reset(passed()...) }

// connection records failures of the streams of one command.
type connection struct {
	end    func()
	forced <-chan struct{}
	closed atomic.Bool // the reader of an output has gone

	mu     sync.Mutex
	failed *StreamError // the first that ended the command, else the first
}

// fail records a stream that failed, and ends the command.
func (c *connection) fail(e *StreamError) {
	c.mu.Lock()
	if c.failed == nil || c.failed.Reported && !e.Reported {
		c.failed = e
	}
	c.mu.Unlock()
	if !e.Reported {
		c.end()
	}
}

func (c *connection) failure() *StreamError {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

func (c *connection) output(n int, w io.Writer) *output {
	if w == nil {
		w = io.Discard
	}
	o := &output{c: c, stream: streamNames[n], w: w, work: make(chan []byte), done: make(chan error, 1)}
	go o.serve() // ends with close, or with the process where a write never returns
	return o
}

// output is an output of this process. A goroutine makes its writes, so that a
// blocked write can be abandoned. Only one Write may run at a time.
type output struct {
	c      *connection
	stream string
	w      io.Writer
	buf    []byte // copy of the data: an abandoned write may still read it
	work   chan []byte
	done   chan error
	err    error // final
	ended  sync.Once
}

func (o *output) serve() {
	for p := range o.work {
		o.done <- writeAll(o.w, p)
	}
}

func (o *output) close() { o.ended.Do(func() { close(o.work) }) }

// File returns the file that is written to, or nil.
func (o *output) File() *os.File { return FileOf(o.w) }

// Write writes all of p. After an error every later Write fails.
func (o *output) Write(p []byte) (int, error) {
	if o.err != nil {
		return 0, o.err
	}
	o.buf = append(o.buf[:0], p...)
	o.work <- o.buf
	if o.err = reason(o.wait()); o.err == nil {
		return len(p), nil
	}
	if errors.Is(o.err, unix.EPIPE) {
		o.c.closed.Store(true)
		return 0, o.err
	}
	o.c.fail(&StreamError{Stream: o.stream, Err: o.err, Reported: errors.Is(o.err, errForced)})
	return 0, o.err
}

func (o *output) wait() error {
	select {
	case err := <-o.done:
		return err
	case <-o.c.forced:
	}
	limit := time.NewTimer(forcedWait)
	defer limit.Stop()
	select {
	case err := <-o.done:
		return err
	case <-limit.C:
		return errForced
	}
}

// reason returns err without the name of the file. The name of the stream
// replaces it.
func reason(err error) error {
	if p := (*os.PathError)(nil); errors.As(err, &p) {
		return p.Err
	}
	return err
}

// writeAll writes p. If the descriptor is non-blocking and full, it waits.
func writeAll(w io.Writer, p []byte) error {
	for {
		n, err := w.Write(p)
		f := FileOf(w)
		if f == nil || !errors.Is(err, unix.EAGAIN) {
			return err
		}
		if p = p[n:]; len(p) == 0 {
			return nil
		}
		if err := await(f, unix.POLLOUT); err != nil {
			return err
		}
	}
}

// await waits until a descriptor is ready.
func await(f *os.File, events int16) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		for {
			_, failed = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, -1)
			if !errors.Is(failed, unix.EINTR) {
				return
			}
		}
	})
	return errors.Join(err, failed)
}

// input is the standard input of this process. If it fails after some bytes were
// read, the command is ended: a truncated input must not look complete. If the
// first read fails, the input is empty. That is reported, unless the input is a
// terminal that has gone.
type input struct {
	r    io.Reader
	c    *connection
	some bool
}

func (i *input) Read(p []byte) (int, error) {
	for {
		n, err := i.r.Read(p)
		i.some = i.some || n > 0
		f := FileOf(i.r)
		switch {
		case n > 0 || err == nil || errors.Is(err, io.EOF):
			return n, eof(err)
		case f != nil && errors.Is(err, unix.EAGAIN):
			if err = await(f, unix.POLLIN); err == nil {
				continue
			}
		case f == nil: // the reader distinguishes an end from a failure
			return n, err
		}
		if !i.some {
			if !errors.Is(err, unix.EIO) {
				i.c.fail(&StreamError{Stream: streamNames[0], Err: fmt.Errorf("%w: the command had an empty one", reason(err)), Reported: true})
			}
			return 0, io.EOF
		}
		i.c.fail(&StreamError{Stream: streamNames[0], Err: reason(err)})
		return 0, io.ErrUnexpectedEOF
	}
}

// File returns the file that is read from, or nil.
func (i *input) File() *os.File { return FileOf(i.r) }

// eof returns io.EOF or nil. Another error that comes with data is returned by
// the next read.
func eof(err error) error {
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return nil
}

// FileOf returns the file behind a reader or writer, or nil.
func FileOf(stream any) *os.File {
	switch s := stream.(type) {
	case *os.File:
		return s
	case interface{ File() *os.File }:
		return s.File()
	}
	return nil
}
