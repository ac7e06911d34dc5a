package main

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

	"agentsh/internal/channel"
	"agentsh/internal/wire"
)

// defaultSize is the size of a terminal whose caller has none.
var defaultSize = wire.TTY{Rows: 24, Cols: 80}

// onTerminal has a command run on a terminal. Where in is a terminal itself, it
// passes every key on until the command has ended: then, and when f panics or
// this process is told to end, it is as it was before.
func onTerminal(in io.Reader, f execute) execute {
	return func(ctx context.Context, request wire.ExecRequest, streams channel.Streams) (r result, err error) {
		size := defaultSize
		request.TTY = &size
		request.TTY.Term = os.Getenv("TERM")
		if !isTerminal(in) {
			return f(ctx, request, streams)
		}
		ctx, stop := signal.NotifyContext(ctx, endingSignals()...)
		defer stop()
		fd := int(in.(*os.File).Fd())
		if cols, rows, err := term.GetSize(fd); err == nil {
			request.TTY.Rows, request.TTY.Cols = clampSize(rows), clampSize(cols)
		}
		before, err := term.MakeRaw(fd)
		if err != nil {
			return result{exit: wire.Exit{Kind: wire.ExitLost}}, fmt.Errorf("terminal: %w", err)
		}
		defer func() {
			if restored := term.Restore(fd, before); restored != nil && ctx.Err() == nil {
				err = errors.Join(err, fmt.Errorf("terminal: %w", restored))
			}
		}()
		control := make(chan wire.Control, 1)
		streams.Control = control
		defer forwardSizes(fd, control)()
		return f(ctx, request, streams)
	}
}

// endingSignals are those that end this process and are not caught by main. One
// that was ignored from the start, as nohup(1) does, stays so.
func endingSignals() []os.Signal {
	list := []os.Signal{syscall.SIGQUIT}
	if !signal.Ignored(syscall.SIGHUP) {
		list = append(list, syscall.SIGHUP)
	}
	return list
}

// forwardSizes sends the terminal's new sizes to control until the returned
// function is called. A size that nobody took is replaced by the next.
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

// clampSize makes a number of rows or columns one that a terminal can have.
func clampSize(n int) uint16 { return uint16(max(0, min(n, 1<<16-1))) }
