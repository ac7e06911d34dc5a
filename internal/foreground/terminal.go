package foreground

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/term"

	"agentsh/internal/wire"
)

// defaultSize is the size of a terminal whose caller has none.
var defaultSize = wire.TTY{Rows: 24, Cols: 80}

// OnTerminal returns f with its command on a terminal. If in is a terminal, it
// is in raw mode and passes every key to the command. The terminal is restored
// when the command has ended, when f panics and when a signal ends this
// process.
func OnTerminal[R any](in io.Reader, f Execute[R]) Execute[R] {
	return func(ctx context.Context, request wire.ExecRequest, streams wire.Streams) (r R, err error) {
		size := defaultSize
		request.TTY = &size
		request.TTY.Term = os.Getenv("TERM")
		if !IsTerminal(in) {
			return f(ctx, request, streams)
		}
		fd := int(in.(*os.File).Fd())
		if cols, rows, err := term.GetSize(fd); err == nil {
			request.TTY.Rows, request.TTY.Cols = clampSize(rows), clampSize(cols)
		}
		caught := make(chan os.Signal, 1) // none ends this process while the terminal is raw
		signal.Notify(caught, passed()...)
		defer signal.Stop(caught)
		before, err := term.MakeRaw(fd)
		if err != nil {
			return r, fmt.Errorf("terminal: %w", err)
		}
		defer func() {
			if restored := term.Restore(fd, before); restored != nil && !errors.Is(restored, syscall.EIO) { // EIO: it is gone
				err = errors.Join(err, fmt.Errorf("terminal: %w", restored))
			}
		}()
		control := make(chan wire.Control, 1)
		streams.Control = control
		defer forwardSizes(fd, control)()
		return f(ctx, request, streams)
	}
}

// forwardSizes sends new sizes of the terminal to control until stop is called.
// A size that was not received yet is replaced by the next.
func forwardSizes(fd int, control chan wire.Control) (stop func()) {
	changed, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(changed, syscall.SIGWINCH)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-changed:
			}
			cols, rows, err := term.GetSize(fd)
			if err != nil {
				continue // it is going away
			}
			select {
			case <-control:
			default:
			}
			control <- wire.Control{TTY: &wire.TTY{Rows: clampSize(rows), Cols: clampSize(cols)}}
		}
	})
	return func() {
		signal.Stop(changed)
		close(done)
		wg.Wait()
	}
}

// clampSize limits a number of rows or columns to the range of uint16.
func clampSize(n int) uint16 { return uint16(max(0, min(n, 1<<16-1))) }

// IsTerminal reports whether a reader or writer is a terminal.
func IsTerminal(r any) bool {
	f := FileOf(r)
	return f != nil && term.IsTerminal(int(f.Fd()))
}
