package main

import (
	"context"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/internal/foreground"
	"agentsh/internal/wire"
	"agentsh/supervisor/approve"
)

// resetTerminal resets what a command may have set on a terminal that it writes
// to: another screen, margins, a hidden cursor, characters and colours.
const resetTerminal = "\x1b[?1049l\x1b[!p\x1b[r\x1b(B\x0f\x1b[0m\x1b[?25h\r\n"

// askHere asks the questions of a one-shot session on this process's terminal,
// where the policy wants that and the command neither reads that terminal nor
// has it as its own. Meanwhile the command's writes to it wait, so that a
// question is the last text on the screen. Without such a terminal every approval
// is denied. The function that is returned
// must be called when the session has been closed.
func askHere(ctx context.Context, queue *approve.Queue, via string, ownTerminal bool, streams *wire.Streams) (ended func()) {
	if via != "tty" || ownTerminal || foreground.IsTerminal(streams.Stdin) {
		return func() {}
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return func() {}
	}
	if group, err := unix.IoctlGetInt(int(tty.Fd()), unix.TIOCGPGRP); err != nil || group != unix.Getpgrp() {
		tty.Close() // reading it in the background would stop this process
		return func() {}
	}
	gate := &sync.Mutex{}
	streams.Stdout, streams.Stderr = gated(streams.Stdout, gate), gated(streams.Stderr, gate)
	p := newPrompt(tty, resetting{tty}, gate, queue.Answer)
	var following sync.WaitGroup
	there := make(chan struct{})
	arrive := sync.OnceFunc(func() { close(there) })
	following.Go(func() {
		defer p.end()
		defer arrive()
		_ = queue.Follow(ctx, func(list []wire.Pending) error { // ends with the session
			arrive()
			return p.update(list)
		})
	})
	<-there
	return func() {
		following.Wait()
		tty.Close()
	}
}

// resetting puts a terminal in order before each text.
type resetting struct{ io.Writer }

func (r resetting) Write(b []byte) (int, error) {
	if _, err := io.WriteString(r.Writer, resetTerminal); err != nil {
		return 0, err
	}
	return r.Writer.Write(b)
}

// gated makes writes to a terminal wait for the gate. Other writers stay as they are.
func gated(w io.Writer, gate sync.Locker) io.Writer {
	if !foreground.IsTerminal(w) {
		return w
	}
	return gatedWriter{w, gate}
}

type gatedWriter struct {
	w    io.Writer
	gate sync.Locker
}

func (h gatedWriter) Write(b []byte) (int, error) {
	h.gate.Lock()
	defer h.gate.Unlock()
	return h.w.Write(b)
}
