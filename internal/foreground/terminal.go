package foreground

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"agentsh/internal/wire"
)

// defaultSize is the size of a terminal whose caller has none.
var defaultSize = wire.TTY{Rows: 24, Cols: 80}

// OnTerminal returns f with its command on a terminal. If in is a terminal, it
// is in raw mode and passes every key to the command. The terminal is restored
// when f has returned or panics, also after a signal, and while this process is
// stopped. Input that nobody has read is dropped then: it was for the command,
// as the terminal's answers to what it printed are.
func OnTerminal[R any](in io.Reader, f Execute[R]) Execute[R] {
	return func(ctx context.Context, request wire.ExecRequest, streams wire.Streams) (r R, err error) {
		size := defaultSize
		request.TTY = &size
		request.TTY.Term = os.Getenv("TERM")
		if !IsTerminal(in) {
			return f(ctx, request, streams)
		}
		t := &terminal{fd: int(in.(*os.File).Fd()), sizes: make(chan wire.Control, 1)}
		if now, err := t.size(); err == nil {
			request.TTY.Rows, request.TTY.Cols = now.Rows, now.Cols
		}
		caught := make(chan os.Signal, 1) // none ends this process while the terminal is raw
		signal.Notify(caught, passed()...)
		defer signal.Stop(caught)
		if t.before, err = term.MakeRaw(t.fd); err != nil {
			return r, fmt.Errorf("terminal: %w", err)
		}
		defer func() {
			_ = unix.IoctlSetInt(t.fd, unix.TCFLSH, unix.TCIFLUSH) // restore has the error
			if restored := t.restore(); restored != nil {
				err = errors.Join(err, fmt.Errorf("terminal: %w", restored))
			}
		}()
		streams.Control = t.sizes
		defer t.follow()()
		return f(ctx, request, streams)
	}
}

// terminal is the terminal of this process while it is raw.
type terminal struct {
	fd     int
	before *term.State
	sizes  chan wire.Control // a size that was not received yet is replaced by the next
}

func (t *terminal) restore() error {
	if err := term.Restore(t.fd, t.before); err != nil && !errors.Is(err, syscall.EIO) { // EIO: it is gone
		return err
	}
	return nil
}

func (t *terminal) size() (*wire.TTY, error) {
	cols, rows, err := term.GetSize(t.fd)
	if err != nil {
		return nil, err
	}
	return &wire.TTY{Rows: clampSize(rows), Cols: clampSize(cols)}, nil
}

// follow sends new sizes of the terminal until stop is called, and gives the
// terminal back while SIGTSTP stops this process. After any stop it is made raw again.
func (t *terminal) follow() (stop func()) {
	signals, done := make(chan os.Signal, 4), make(chan struct{})
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGCONT)
	if !signal.Ignored(syscall.SIGTSTP) {
		signal.Notify(signals, syscall.SIGTSTP)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			case s := <-signals:
				switch s {
				case syscall.SIGTSTP:
					_ = t.restore() // it may be going away
					stopSelf()
					fallthrough
				case syscall.SIGCONT:
					_, _ = term.MakeRaw(t.fd) // as above; in the background it stops this process
				}
			}
			now, err := t.size()
			if err != nil {
				continue // it is going away
			}
			select {
			case <-t.sizes:
			default:
			}
			t.sizes <- wire.Control{TTY: now}
		}
	})
	return func() {
		signal.Stop(signals)
		close(done)
		wg.Wait()
	}
}

// stopSelf has SIGTSTP do what it does by default, and returns when this process goes on. The kernel drops the
// signal where nobody could end the stop, see setpgid(2). os/signal cannot reset it: its handler stays.
func stopSelf() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, byDefault [4]uint64 // struct sigaction of the kernel: handler, flags, restorer, mask
	action(&byDefault, &before)
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTSTP) // it takes effect before the call returns
	action(&before, nil)
}

// action replaces the action of SIGTSTP. With these arguments it does not fail.
func action(to, from *[4]uint64) {
	_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(unix.SIGTSTP),
		uintptr(unsafe.Pointer(to)), uintptr(unsafe.Pointer(from)), unsafe.Sizeof(to[3]), 0, 0)
}

// clampSize limits a number of rows or columns to the range of uint16.
func clampSize(n int) uint16 { return uint16(max(0, min(n, 1<<16-1))) }

// IsTerminal reports whether a reader or writer is a terminal.
func IsTerminal(r any) bool {
	f := FileOf(r)
	return f != nil && term.IsTerminal(int(f.Fd()))
}
