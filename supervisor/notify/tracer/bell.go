package tracer

// #cgo CFLAGS: -O2 -Wall -Wextra -std=gnu11
// #include "bell.h"
import "C"

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/notify/engine"
)

// bell is an idle process that a thread traces. Its stop ends the thread's wait. See
// bell.c.
type bell struct {
	pid   int // 0: there is none
	stack unsafe.Pointer
}

const bellSignal = unix.Signal(C.BELL_SIGNAL)

// open starts the bell of the calling thread.
func (b *bell) open() error {
	started := C.agentsh_start_bell()
	pid := int(started.pid)
	if pid < 0 {
		return fmt.Errorf("start the bell of a tracing thread: %w", unix.Errno(-pid))
	}
	b.pid, b.stack = pid, started.stack
	if err := engine.Seize(pid, unix.PTRACE_O_EXITKILL); err != nil {
		return fmt.Errorf("trace the bell of a tracing thread: %w", err) // it ends with this thread
	}
	return nil
}

// ring ends the wait of the thread. Any thread may call it while the bell is open.
func (b *bell) ring() { _ = unix.Tgkill(b.pid, b.pid, bellSignal) } // it has ended with its thread

// rang lets the bell wait for the next signal.
func (b *bell) rang() { _ = engine.Ptrace(unix.PTRACE_CONT, b.pid, 0) }

// stop ends the bell. The thread then waits for its end.
func (b *bell) stop() { _ = engine.Kill(b.pid) }

// ended frees what the ended bell used.
func (b *bell) ended() {
	C.agentsh_free_bell(b.stack)
	b.pid, b.stack = 0, nil
}

// remove ends a bell that nothing else is traced beside, and waits for its end.
func (b *bell) remove() {
	if b.pid == 0 {
		return
	}
	b.stop()
	for {
		if _, err := unix.Wait4(b.pid, nil, unix.WALL, nil); err != unix.EINTR {
			break
		}
	}
	b.ended()
}
