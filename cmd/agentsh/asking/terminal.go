// Package asking asks a person on a terminal, which a command may have too.
//
// [Prompt] shows one question after the other. [Terminal] shares the terminal of
// this process with a command: screen.go holds back what the command writes while
// a question is shown, keys.go keeps what is typed at a question from it.
package asking

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/foreground"
	"agentsh/internal/wire"
)

// Terminal is the controlling terminal of this process, with a command whose
// streams pass through this process.
type Terminal struct {
	tty    *os.File
	screen *screen
	keys   *keys
	resize chan wire.Control // nil: the command has no terminal of its own
}

// Open opens the controlling terminal and puts itself between it and streams.
// Without one it returns the reason, and changes nothing.
func Open(streams *wire.Streams) (*Terminal, string) {
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, "agentsh has no terminal to ask on"
	}
	t := &Terminal{tty: tty, screen: newScreen(tty)}
	t.screen.turn = device(tty)
	streams.Stdout, streams.Stderr = t.screen.share(streams.Stdout), t.screen.share(streams.Stderr)
	if sameTerminal(foreground.FileOf(streams.Stdin), tty) {
		t.keys = newKeys(streams.Stdin, nil)
		streams.Stdin = t.keys
	} else {
		t.keys = newKeys(tty, tty.SetReadDeadline)
	}
	return t, ""
}

// Redraw has the command's own terminal resized after each question that
// interrupted a program which uses the whole screen, until ctx ends. Programs draw
// themselves again then.
func (t *Terminal) Redraw(ctx context.Context, streams *wire.Streams) {
	from, to := streams.Control, make(chan wire.Control, 8)
	streams.Control, t.resize = to, make(chan wire.Control, 2)
	go func() { // ends with ctx
		for {
			var m wire.Control
			select {
			case m = <-from:
			case m = <-t.resize:
			case <-ctx.Done():
				return
			}
			select {
			case to <- m:
			case <-ctx.Done():
				return
			}
		}
	}()
}

// Follow calls fn with the questions that wait, now and after each change.
type Follow func(ctx context.Context, fn func([]wire.Pending) error) error

// Ask asks what follow reports, until follow returns. Ask returns when somebody is
// there to answer. The function that it returns waits for the end, but not for a terminal
// that is stopped.
func (t *Terminal) Ask(ctx context.Context, follow Follow, answer func(wire.ApprovalAnswer) error) (ended func()) {
	p := newPrompt(t.screen, t.keys, answer)
	p.absent, p.before, p.after, p.echo, p.watch, p.size = t.absent, t.flush, t.redraw, t.echoes, onInterrupt, t.size
	var following sync.WaitGroup
	there := make(chan struct{})
	arrive := sync.OnceFunc(func() { close(there) })
	following.Go(func() {
		defer arrive()
		defer p.end()
		_ = follow(ctx, func(list []wire.Pending) error { // ends with the session
			arrive()
			return p.Update(list)
		})
	})
	<-there
	return func() {
		done := make(chan struct{})
		go func() { // ends with Ask, or with the process
			following.Wait()
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(stopped):
		}
	}
}

// stopped is how long a terminal may be stopped at the end.
const stopped = 2 * time.Second

// Notice prints a line between what the command writes. While a program uses the
// whole screen, the line waits.
func (t *Terminal) Notice(line string) { t.screen.notice(line) }

// NoticeUnlessShown prints a line shortly afterwards, unless the command prints its first
// line meanwhile.
func (t *Terminal) NoticeUnlessShown(line string) { t.screen.noticeUnlessShown(line) }

// Close prints the lines that wait. Nothing of the terminal is used afterwards.
func (t *Terminal) Close() {
	t.screen.end()
	t.keys.close()
	_ = t.tty.Close() // every write was made
	if t.screen.turn != nil {
		_ = t.screen.turn.Close() // it was only locked
	}
}

// absent returns why nobody can be asked now; empty: somebody can.
func (t *Terminal) absent() string {
	group, err := 0, error(nil)
	t.control(func(fd int) { group, err = unix.IoctlGetInt(fd, unix.TIOCGPGRP) })
	switch {
	case err != nil:
		return "the terminal of agentsh has gone"
	case group != unix.Getpgrp():
		return "agentsh runs in the background of its terminal: bring it to the foreground with fg, and repeat what was denied"
	}
	return ""
}

// flush discards what was typed and not read.
func (t *Terminal) flush() {
	t.control(func(fd int) { _ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) })
}

// echoes reports whether the terminal shows what is typed by itself.
func (t *Terminal) echoes() bool {
	on := false
	t.control(func(fd int) {
		m, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		on = err == nil && m.Lflag&unix.ECHO != 0
	})
	return on
}

// size returns the size of the terminal.
func (t *Terminal) size() (cols, rows int) {
	t.control(func(fd int) {
		if size, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			cols, rows = int(size.Col), int(size.Row)
		}
	})
	return cols, rows
}

// redraw has a program that uses the whole screen draw itself again.
func (t *Terminal) redraw(whole bool) {
	cols, rows := t.size()
	if !whole || t.resize == nil || rows < 2 {
		return
	}
	for _, rows := range []int{rows - 1, rows} {
		select {
		case t.resize <- wire.Control{TTY: &wire.TTY{Rows: uint16(rows), Cols: uint16(cols)}}:
		default: // one is on its way
		}
	}
}

// control calls f with the descriptor and leaves its mode unchanged.
func (t *Terminal) control(f func(fd int)) {
	if raw, err := t.tty.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { f(int(fd)) }) // fails when it was closed: f is not called
	}
}

// device opens the file of the terminal that /dev/tty leads to, which all processes on it
// share; nil: it is no pseudoterminal, or not in /dev/pts.
func device(tty *os.File) *os.File {
	number := deviceNumber(tty)
	const first, last = 136, 143 // major numbers, see devices.txt of Linux
	major, minor := unix.Major(number), unix.Minor(number)
	if major < first || major > last {
		return nil
	}
	name := fmt.Sprintf("/dev/pts/%d", (major-first)<<8+minor)
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC, 0) // os.File.Close would wait for flock(2)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	if deviceNumber(f) != number {
		_ = f.Close() // another terminal has this name here
		return nil
	}
	return f
}

// sameTerminal reports whether a file is the terminal tty.
func sameTerminal(f, tty *os.File) bool {
	if f == nil {
		return false
	}
	a, b := deviceNumber(f), deviceNumber(tty)
	return a != 0 && a == b
}

// deviceNumber returns the number of a terminal's device; 0: it is none.
func deviceNumber(f *os.File) uint64 {
	n := 0
	if raw, err := f.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { // 0 stays
			if number, err := unix.IoctlGetInt(int(fd), tiocgdev); err == nil {
				n = number
			}
		})
	}
	return uint64(n)
}

// tiocgdev asks for the device number of a terminal, see linux/tty.h: /dev/tty has
// that of the terminal it leads to.
const tiocgdev = 0x80045432

var _ io.Reader = (*keys)(nil)
