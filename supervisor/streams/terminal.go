package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"agentsh/internal/lazy"
	"agentsh/internal/tarfs"
	"agentsh/internal/wire"
	"agentsh/supervisor/launch"
)

// terminalTypes matches the values of TERM that a request may have.
var terminalTypes = lazy.Regexp(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)

// CheckTTY returns an error for a terminal type that is not 1 to 64 letters,
// digits and ._+-.
func CheckTTY(t *wire.TTY) error {
	if t == nil || t.Term == "" || terminalTypes().MatchString(t.Term) {
		return nil
	}
	return fmt.Errorf("terminal type %.64q is not a name", t.Term)
}

// Open opens the streams of a command. They are pipes, or one terminal of the
// session's devpts. owner is the user of commands. With a nil owner it is the
// supervisor's user.
func Open(ctx context.Context, init *launch.Init, tty *wire.TTY, streams wire.Streams, owner *tarfs.Owner) (*Streams, error) {
	if tty == nil {
		return newPipes(streams, owner)
	}
	master, slave, err := init.OpenPTY(ctx)
	if err != nil {
		return nil, err
	}
	ours, err := pollable(master)
	if err != nil {
		slave.Close()
		return nil, err
	}
	p := newTerminal(ours, slave, streams)
	if err := p.Resize(tty); err != nil {
		p.Release()
		p.Abandon()
		return nil, err
	}
	return p, nil
}

// pollable replaces f by a descriptor that supports read deadlines.
func pollable(f *os.File) (*os.File, error) {
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("terminal: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("terminal: %w", errors.Join(err, unix.Close(fd)))
	}
	return os.NewFile(uintptr(fd), "terminal"), nil
}

// newTerminal is newPipes for a terminal. The command's output is one stream,
// the caller's standard output.
func newTerminal(master, slave *os.File, s wire.Streams) *Streams {
	p := &Streams{Child: [3]*os.File{slave, slave, slave}, terminal: master, outputs: []*output{{from: master, to: s.Stdout}}}
	if s.Stdin != nil {
		p.stdin = master
	}
	return p
}

// Resize sets the size of the terminal in characters. The kernel notifies the
// foreground processes. Without a terminal it has no effect.
func (p *Streams) Resize(t *wire.TTY) error {
	if p.terminal == nil {
		return nil
	}
	err := p.control(func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: t.Rows, Col: t.Cols})
	})
	if err != nil {
		return fmt.Errorf("size of the terminal: %w", err)
	}
	return nil
}

// control calls f with the terminal's descriptor and leaves its mode unchanged.
func (p *Streams) control(f func(fd int) error) error {
	raw, err := p.terminal.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	err = raw.Control(func(fd uintptr) { done = f(int(fd)) })
	return errors.Join(err, done)
}

// typeIn copies the caller's input to the terminal. In line mode it then writes
// the end-of-file character. A raw terminal has no end of input.
func (p *Streams) typeIn(stdin io.Reader) {
	in := &typed{r: stdin}
	if _, err := io.Copy(writerOnly{p.terminal}, in); err != nil {
		return // the command, or the caller, is gone
	}
	var mode *unix.Termios
	err := p.control(func(fd int) (err error) {
		mode, err = unix.IoctlGetTermios(fd, unix.TCGETS)
		return err
	})
	if err != nil || mode.Lflag&unix.ICANON == 0 {
		return
	}
	end := []byte{mode.Cc[unix.VEOF]}
	if in.last != '\n' && in.last != 0 {
		end = append(end, end[0]) // the first one only ends the line
	}
	_, _ = p.terminal.Write(end) // the command may be gone
}

// typed records the last byte that was read.
type typed struct {
	r    io.Reader
	last byte
}

func (t *typed) Read(p []byte) (int, error) {
	n, err := t.r.Read(p)
	if n > 0 {
		t.last = p[n-1]
	}
	return n, err
}
