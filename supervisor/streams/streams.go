// Package streams connects a command with its caller: by pipes, or by a terminal
// that is its standard input, output and error.
//
// [Open] opens the descriptors of both sides. Start the command with
// [Streams.Child], then call [Streams.Release] and [Streams.Start], and
// [Streams.Finish] when it has ended. streams.go copies, terminal.go has what
// differs for a terminal.
package streams

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
)

// Streams are the descriptors of one command and the copying between them and the
// caller's streams. A command never gets a descriptor of the caller: it could
// open it again with another mode through /proc/self/fd.
type Streams struct {
	Child    [3]*os.File // stdin, stdout, stderr of the command
	stdin    *os.File    // our end, nil for /dev/null
	terminal *os.File    // our end of the terminal that all three are; nil: pipes
	outputs  []*output
	copying  sync.WaitGroup // the output copies; the stdin copy ends by closing its pipe
}

// output copies one stream of a command until everything it wrote is read.
type output struct {
	from *os.File
	to   io.Writer
	n    int64 // bytes read, whether the caller took them or not
	err  error

	closed atomic.Bool // from is closed before its end: nobody reads more
}

// newPipes opens the pipes of a command; close them with Release and Finish. They
// belong to owner, so that the command can open /dev/stdout and its like.
func newPipes(s wire.Streams, owner *tarfs.Owner) (*Streams, error) {
	p := &Streams{outputs: []*output{{to: s.Stdout}, {to: s.Stderr}}}
	var err error
	if s.Stdin == nil {
		p.Child[0], err = os.Open(os.DevNull)
	} else {
		p.Child[0], p.stdin, err = os.Pipe()
	}
	if err != nil {
		return nil, err
	}
	for i, out := range p.outputs {
		if out.from, p.Child[i+1], err = os.Pipe(); err != nil {
			p.Release()
			p.Abandon()
			return nil, err
		}
	}
	for _, f := range p.Child {
		if err := chown(f, owner); err != nil {
			p.Release()
			p.Abandon()
			return nil, err
		}
	}
	return p, nil
}

// chown gives a pipe to an owner; nil: the supervisor's user.
func chown(f *os.File, owner *tarfs.Owner) error {
	info, err := f.Stat()
	if err != nil || owner == nil || info.Mode()&os.ModeNamedPipe == 0 {
		return err
	}
	return f.Chown(owner.UID, owner.GID)
}

// Start begins copying. The goroutine that feeds stdin ends when the pipe is
// closed or its source ends; it may outlive the command when the source blocks.
func (p *Streams) Start(stdin io.Reader) {
	switch {
	case p.stdin == nil:
	case p.terminal != nil:
		go p.typeIn(stdin)
	default:
		go func() {
			_, err := io.Copy(p.stdin, stdin) // the command may close its stdin at any time
			if !errors.Is(err, io.ErrUnexpectedEOF) {
				p.stdin.Close()
			} // else the caller went: half an input must not look whole
		}()
	}
	for _, out := range p.outputs {
		p.copying.Go(out.copy)
	}
}

// Release closes the command's ends in this process once it has them.
func (p *Streams) Release() {
	for _, f := range p.Child {
		if f != nil {
			f.Close()
		}
	}
}

// Abandon closes our ends without reading what is left.
func (p *Streams) Abandon() {
	if p.stdin != nil {
		p.stdin.Close()
	}
	for _, out := range p.outputs {
		if out.from != nil {
			out.from.Close()
		}
	}
}

// Finish waits until everything that was written before the command ended has
// been delivered. What background processes write later is read and dropped
// until they end, so that they do not fail; the returned channel, never nil,
// closes then.
func (p *Streams) Finish() (rest <-chan struct{}, err error) {
	if p.stdin != nil && p.terminal == nil {
		p.stdin.Close()
	}
	var failed []error
	now := time.Now()
	for _, out := range p.outputs {
		if err := out.from.SetReadDeadline(now); err != nil {
			if !out.closed.Load() { // without a deadline its end might never come
				failed = append(failed, err)
			}
			out.close()
		}
	}
	p.copying.Wait()
	done := make(chan struct{})
	var discarding sync.WaitGroup
	for _, out := range p.outputs {
		discarding.Go(out.discard)
	}
	go func() {
		discarding.Wait()
		close(done)
	}()
	for _, out := range p.outputs {
		failed = append(failed, out.err)
	}
	return done, errors.Join(failed...)
}

// Written is how many bytes the command wrote to each stream before it ended,
// known after Finish. A terminal has one stream.
func (p *Streams) Written() *wire.OutputEnd {
	end := &wire.OutputEnd{Stdout: p.outputs[0].n}
	if len(p.outputs) > 1 {
		end.Stderr = p.outputs[1].n
	}
	return end
}

// copy moves the stream until its end, or until the deadline that Finish sets
// and then the content that is left in the pipe.
func (o *output) copy() {
	to := o.to
	if to == nil {
		to = io.Discard
	}
	_, err := io.Copy(writerOnly{to}, counted{readerOnly{o.from}, &o.n})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = o.rest(to)
	}
	if o.closed.Load() {
		return // the caller closed it
	}
	o.err = err
	if err != nil {
		o.close() // the caller is gone: the command gets EPIPE as it would from a closed pipe
	}
}

// close has the command's next write fail, with SIGPIPE; a terminal hangs up.
func (o *output) close() {
	o.closed.Store(true)
	o.from.Close()
}

// CloseOutput closes an output that the caller reads no further: 1 is the standard output,
// 2 the standard error. A terminal has one output.
func (p *Streams) CloseOutput(n int) {
	if n >= 1 && n <= len(p.outputs) {
		p.outputs[n-1].close()
	}
}

// rest reads the content of a pipe without waiting for more.
func (o *output) rest(to io.Writer) error {
	if err := o.from.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	raw, err := o.from.SyscallConn()
	if err != nil {
		return err
	}
	// What a process that stays behind writes meanwhile is not the command's.
	left := capacity(raw)
	buf := make([]byte, 64<<10)
	for left > 0 {
		n := readNow(raw, buf[:min(left, len(buf))])
		if n <= 0 {
			return nil
		}
		left -= n
		o.n += int64(n)
		if _, err := to.Write(buf[:n]); err != nil {
			return err
		}
	}
	return nil
}

// capacity is how many bytes a pipe or terminal can hold, at most.
func capacity(raw syscall.RawConn) int {
	size := 1 << 20 // a terminal has far less
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err == nil {
			size = n
		}
	})
	return size
}

// discard reads the stream to its end so that late writers do not fail.
func (o *output) discard() {
	_, _ = io.Copy(io.Discard, readerOnly{o.from}) // a closed or failed pipe ends it
	o.from.Close()
}

// readerOnly and writerOnly hide ReadFrom and WriteTo, which would splice and
// ignore the read deadline.
type readerOnly struct{ io.Reader }

// Read returns io.EOF for a terminal that no process has open any more.
func (r readerOnly) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, unix.EIO) {
		err = io.EOF
	}
	return n, err
}

type writerOnly struct{ io.Writer }

// counted adds up what is read.
type counted struct {
	io.Reader
	n *int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	*c.n += int64(n)
	return n, err
}
