package device

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/internal/syscallblock"
)

// A thread that waits in the kernel keeps a processor of the Go runtime for up to 10 ms, and
// the runtime's monitor wakes up about once in 1 ms to look at it. So a worker gives its
// processor up before it waits. Where one request follows the other, that takes longer than
// the wait.
const (
	atOnce = 200 * time.Microsecond // a request that comes sooner after the answer follows it
	inTurn = 4                      // so many that follow each other: another one is expected
)

// read waits for a request.
func (w *worker) read(fd int) (int, error) {
	began := time.Now()
	n, errno := readBlocked(uintptr(fd), unsafe.Pointer(&w.in[0]), uintptr(len(w.in)), w.prompt < inTurn)
	w.came(time.Since(began))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// came notes how long a request was waited for.
func (w *worker) came(after time.Duration) {
	switch {
	case after >= atOnce:
		w.prompt = 0
	case w.prompt < inTurn:
		w.prompt++
	}
}

// readBlocked reads; releases: without a processor of the Go runtime.
//
//go:nosplit
func readBlocked(fd uintptr, p unsafe.Pointer, size uintptr, releases bool) (n uintptr, errno unix.Errno) {
	if releases {
		syscallblock.EnterBlocked()
	} else {
		syscallblock.Enter()
	}
	n, _, errno = unix.RawSyscall(unix.SYS_READ, fd, uintptr(p), size)
	syscallblock.Exit()
	return n, errno
}

// timer has the watch look at the reader.
type timer struct {
	file    *os.File // a timerfd: see timerfd_create(2)
	fd      int      // the same
	stopped atomic.Bool
}

// open makes the timer. It is stopped.
func (t *timer) open() (err error) {
	if t.fd, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return fmt.Errorf("a timer for requests that block: %w", err)
	}
	t.file = os.NewFile(uintptr(t.fd), "timer")
	t.stopped.Store(true)
	return nil
}

// start has the timer end once, a period later.
func (t *timer) start() {
	once := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(watchPeriod))}
	_ = unix.TimerfdSettime(t.fd, 0, &once, nil) // fails once the loop has ended
}

// watch replaces workers that block without a call of StepAside, for example on a disk
// or a lock. While no request is answered its timer is stopped. The worker that begins the next
// request starts it, which wakes no thread.
func (l *Loop) watch() {
	defer l.timer.file.Close()
	var last *worker
	var seen uint64
	var times [8]byte // how often it has ended
	for {
		if _, err := l.timer.file.Read(times[:]); err != nil {
			return
		}
		select {
		case <-l.ended:
			return
		default:
		}
		w := l.reader.Load()
		now := w.requests.Load()
		if now%2 == 0 {
			l.timer.stopped.Store(true)
			if w.requests.Load() == now || !l.timer.stopped.CompareAndSwap(true, false) {
				continue // or a request has begun, and its worker has started the timer
			}
		} else if w == last && now == seen {
			l.replace(w)
		}
		last, seen = w, now
		l.timer.start()
	}
}
