// Package streams connects a command with its caller, by pipes or by a
// terminal. A terminal is the command's standard input, output and error.
//
// [Open] opens the descriptors of both sides. Start the command with
// [Streams.Child]. Then call [Streams.Release] and [Streams.Start], and
// [Streams.Finish] when the command has ended. streams.go copies data.
// terminal.go has the differences for a terminal.
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

// Streams are the descriptors of one command, with the copying between them and
// the caller's streams. A command never gets a descriptor of the caller. It
// could reopen that in another mode through /proc/self/fd.
type Streams struct {
	Child    [3]*os.File // stdin, stdout, stderr of the command
	stdin    *os.File    // the supervisor's end; nil: /dev/null
	terminal *os.File    // the supervisor's end of the terminal; nil: pipes
	outputs  []*output
	pipes    wire.Pipes      // the caller, if it copies itself
	written  *wire.OutputEnd // that it reported
	copying  sync.WaitGroup  // the output copies; the stdin copy ends by closing its pipe
}

// output copies one stream of a command until everything that it wrote is read.
type output struct {
	from *os.File
	to   io.Writer
	n    int64 // bytes read, even if the caller did not read them
	err  error

	closed atomic.Bool // from is closed before its end: nobody reads more
}

// newPipes opens the pipes of a command. Release and Finish close them. owner
// owns them, so that the command can open /dev/stdout and similar paths.
func newPipes(s wire.Streams, owner *tarfs.Owner) (*Streams, error) {
	p := &Streams{outputs: []*output{{to: s.Stdout}, {to: s.Stderr}}, pipes: s.Pipes}
	var err error
	if s.Stdin == nil && s.Pipes == nil {
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

// chown changes the owner of a pipe. With a nil owner it stays the supervisor's
// user.
func chown(f *os.File, owner *tarfs.Owner) error {
	info, err := f.Stat()
	if err != nil || owner == nil || info.Mode()&os.ModeNamedPipe == 0 {
		return err
	}
	return f.Chown(owner.UID, owner.GID)
}

// Start begins copying. The goroutine that writes stdin ends when the pipe is
// closed or its source ends. It may outlive the command if the source blocks.
func (p *Streams) Start(stdin io.Reader) {
	if p.pipes != nil {
		// These ends stay open here too. Without its caller the command must not take half
		// an input as a whole one, and what it leaves running must be able to write.
		p.pipes.Take(p.stdin, p.outputs[0].from, p.outputs[1].from)
		return
	}
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

// Release closes the command's descriptors in this process after the command
// has started. The slave end of a terminal stays open until Finish or Abandon:
// without an open slave end, a read of the master end fails with EIO, although the
// command may open /dev/tty again. The kernel can also return EIO before the
// last bytes that were written: it tests for the closed slave end after it waited
// for the bytes on their way (n_tty_read in drivers/tty/n_tty.c).
func (p *Streams) Release() {
	if p.terminal == nil {
		p.closeChild()
	}
}

func (p *Streams) closeChild() {
	for _, f := range p.Child {
		if f != nil {
			f.Close()
		}
	}
}

// Abandon closes the supervisor's ends without reading the remaining output.
func (p *Streams) Abandon() {
	p.closeChild()
	if p.stdin != nil {
		p.stdin.Close()
	}
	for _, out := range p.outputs {
		if out.from != nil {
			out.from.Close()
		}
	}
}

// Finish waits until all output that was written before the command ended is
// delivered. Output of background processes after that is read and discarded
// until they end, so that their writes do not fail. The returned channel is
// never nil and is closed then.
func (p *Streams) Finish() (rest <-chan struct{}, err error) {
	if p.stdin != nil && p.terminal == nil {
		p.stdin.Close()
	}
	if p.pipes != nil {
		p.written = p.pipes.Delivered()
		p.closeChild()
		return p.discard(), nil
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
	p.closeChild()
	done := p.discard()
	for _, out := range p.outputs {
		failed = append(failed, out.err)
	}
	return done, errors.Join(failed...)
}

// discard reads the outputs until their ends. The channel is closed then.
func (p *Streams) discard() <-chan struct{} {
	done := make(chan struct{})
	var discarding sync.WaitGroup
	for _, out := range p.outputs {
		discarding.Go(out.discard)
	}
	go func() {
		discarding.Wait()
		close(done)
	}()
	return done
}

// Written returns the number of bytes that the command wrote to each stream
// before it ended. It is valid after Finish. A terminal has one stream. It is nil if a
// caller that copies itself has gone.
func (p *Streams) Written() *wire.OutputEnd {
	if p.pipes != nil {
		return p.written
	}
	end := &wire.OutputEnd{Stdout: p.outputs[0].n}
	if len(p.outputs) > 1 {
		end.Stderr = p.outputs[1].n
	}
	return end
}

// copy copies the stream until its end or until the deadline that Finish sets.
// After the deadline it copies what is left in the pipe.
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

// close makes the command's next write fail, with SIGPIPE. A terminal hangs up.
func (o *output) close() {
	o.closed.Store(true)
	o.from.Close()
}

// CloseOutput closes an output that the caller no longer reads. 1 is the
// standard output, 2 the standard error. A terminal has one output.
func (p *Streams) CloseOutput(n int) {
	if n >= 1 && n <= len(p.outputs) {
		p.outputs[n-1].close()
	}
}

// rest copies the content of a pipe without waiting for more.
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

// capacity returns the maximum number of bytes that a pipe or terminal buffers. By splice(2)
// a pipe gets pages of a socket, and then has more bytes than F_GETPIPE_SZ says.
func capacity(raw syscall.RawConn) int {
	size := 1 << 20 // a terminal has far less
	_ = raw.Control(func(fd uintptr) {
		if n, err := unix.FcntlInt(fd, unix.F_GETPIPE_SZ, 0); err == nil {
			size = n
		}
		if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
			size = max(size, n)
		}
	})
	return size
}

// discard reads the stream to its end, so that later writes do not fail.
func (o *output) discard() {
	_, _ = io.Copy(io.Discard, readerOnly{o.from}) // a closed or failed pipe, and EIO of a terminal, end it
	o.from.Close()
}

// readerOnly and writerOnly hide ReadFrom and WriteTo. These would use splice
// and ignore the read deadline.
type readerOnly struct{ io.Reader }

type writerOnly struct{ io.Writer }

// counted counts the bytes read.
type counted struct {
	io.Reader
	n *int64
}

func (c counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	*c.n += int64(n)
	return n, err
}
