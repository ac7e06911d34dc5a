package locks

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// wait is a lock request that waits in a thread of its own. The thread is in the queue
// of the backing's kernel, together with waiters of other sessions and of the host. So
// the order is that of the kernel, and no waiter asks again and again.
type wait struct {
	request Request
	owner   *owner
	done    chan struct{}

	mu        sync.Mutex
	thread    int // of the system call; 0: not yet begun
	cancelled bool
}

// Waits bounds the locks of all tables that wait at one time. Each waits in a thread, and
// the Go runtime ends a program that gets no thread.
type Waits struct {
	most int64
	now  atomic.Int64
}

// Greatest numbers of waits. Of the threads that an ordinary user may have, 256 are left
// to the server and the supervisor, or a quarter if there are few. See decision 0024.
const (
	maxWaits     = 512
	maxUserWaits = 128 // of an ordinary user, if the user's processes are limited
	shareOfLimit = 8   // and at most this part of the limit
)

// NewWaits returns the limit for this process.
func NewWaits() *Waits {
	var l unix.Rlimit
	if os.Geteuid() == 0 || unix.Getrlimit(unix.RLIMIT_NPROC, &l) == nil && l.Cur == unix.RLIM_INFINITY {
		return &Waits{most: maxWaits}
	}
	return &Waits{most: min(maxUserWaits, int64(l.Cur/shareOfLimit))}
}

// begin counts one more wait. It reports false if there are too many.
func (w *Waits) begin() bool {
	if w.now.Add(1) <= w.most {
		return true
	}
	w.end()
	return false
}

func (w *Waits) end() { w.now.Add(-1) }

// resendPeriod is the time after which a signal is sent again. A thread that gets it
// just before its system call does not notice it.
const resendPeriod = time.Millisecond

// Wait takes a lock, and waits for it if necessary. It returns later if the request
// waits: the result then goes to answer, from another goroutine. Otherwise answer is
// not called. It returns EDEADLK if the owners wait for each other.
func (t *Table) Wait(r Request, answer func(unix.Errno)) (err unix.Errno, later bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := &wait{request: r, done: make(chan struct{})}
	if err := t.set(&r); err != unix.EAGAIN {
		return err, false
	}
	if !r.Flock && t.deadlock(&r) {
		return unix.EDEADLK, false
	}
	if t.early.take(r.Unique) {
		return unix.EINTR, false
	}
	if !t.waits.begin() {
		return t.refuse(fmt.Sprintf("%d locks are waited for", t.waits.most)), false
	}
	if w.owner, err = t.ownerOf(&r); err != 0 {
		t.waits.end()
		return err, false
	}
	w.owner.waits++
	t.waiting[r.Unique] = w
	go func() { // ends with the lock, an interrupt or the process
		err := w.run()
		t.waits.end()
		t.finish(w, err)
		answer(err)
	}()
	return 0, true
}

// finish records the result of a wait.
func (t *Table) finish(w *wait, err unix.Errno) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waiting, w.request.Unique)
	w.owner.waits--
	if err == 0 {
		t.record(w.owner, &w.request)
		return
	}
	t.dropIdle(w.owner)
}

// run waits for the lock in a thread that [wait.cancel] can signal.
func (w *wait) run() unix.Errno {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(w.done)
	w.mu.Lock()
	w.thread = unix.Gettid()
	w.mu.Unlock()
	for {
		w.mu.Lock()
		cancelled := w.cancelled
		w.mu.Unlock()
		if cancelled {
			return unix.EINTR
		}
		if err := w.owner.apply(&w.request, true); err != unix.EINTR {
			return err
		}
	}
}

// Interrupt ends the wait of a request. The request then returns EINTR, unless it has
// its lock already.
func (t *Table) Interrupt(unique uint64) {
	t.mu.Lock()
	w := t.waiting[unique]
	if w == nil {
		t.early.add(unique)
	}
	t.mu.Unlock()
	if w != nil {
		go w.cancel() // ends with the wait
	}
}

// cancel signals the waiting thread until its system call has ended.
func (w *wait) cancel() {
	w.mu.Lock()
	w.cancelled = true
	w.mu.Unlock()
	again := time.NewTicker(resendPeriod)
	defer again.Stop()
	for {
		w.mu.Lock()
		thread := w.thread
		w.mu.Unlock()
		select {
		case <-w.done:
			return
		default:
		}
		if thread != 0 {
			_ = unix.Tgkill(unix.Getpid(), thread, wakeSignal) // the thread exists until done; if it is reused, the signal does nothing
		}
		select {
		case <-w.done:
			return
		case <-again.C:
		}
	}
}

// deadlock reports whether a waiting request would close a circle of owners that wait
// for each other. The caller holds t.mu.
func (t *Table) deadlock(r *Request) bool {
	key, err := inodeOf(r.FD)
	if err != 0 {
		return false
	}
	waits := map[uint64][]*wait{}
	for _, w := range t.waiting {
		if !w.request.Flock {
			waits[w.owner.id] = append(waits[w.owner.id], w)
		}
	}
	if len(waits) == 0 {
		return false
	}
	seen := map[uint64]bool{}
	var reaches func(f *file, r *Request) bool
	reaches = func(f *file, blocked *Request) bool {
		for id, o := range f.owners {
			if id == blocked.Owner || !o.held.conflicts(blocked) {
				continue
			}
			if id == r.Owner {
				return true
			}
			if seen[id] {
				continue
			}
			seen[id] = true
			for _, w := range waits[id] {
				if reaches(w.owner.file, &w.request) {
					return true
				}
			}
		}
		return false
	}
	f := t.files[key]
	return f != nil && reaches(f, r)
}

// early stores the numbers of interrupts that arrived before their request waited.
// Most are of requests that never wait, so only the last ones are stored.
type early struct {
	numbers [64]uint64
	next    int
}

func (e *early) add(unique uint64) {
	e.numbers[e.next] = unique
	e.next = (e.next + 1) % len(e.numbers)
}

func (e *early) take(unique uint64) bool {
	for i, n := range e.numbers {
		if n == unique && n != 0 {
			e.numbers[i] = 0
			return true
		}
	}
	return false
}

// wakeSignal interrupts the system call of a waiting thread. Nothing else uses it.
const wakeSignal = unix.Signal(63)

// kernelAction is the kernel's struct sigaction on amd64 and arm64.
type kernelAction struct {
	handler, flags, restorer uintptr
	mask                     uint64
}

// saRestart makes system calls continue after a signal. See sigaction(2).
const saRestart = 0x10000000

var errSignal = errors.New("the signal that ends waits for locks cannot be prepared")

// Prepare makes wakeSignal interrupt system calls. Go's handlers restart them, and
// os/signal cannot change that. The handler itself stays: it ignores the signal.
func Prepare() error {
	var action kernelAction
	if _, _, err := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(wakeSignal), 0, uintptr(unsafe.Pointer(&action)), 8, 0, 0); err != 0 {
		return fmt.Errorf("%w: %w", errSignal, err)
	}
	if action.handler <= 1 { // SIG_DFL or SIG_IGN: the signal would end the process, or do nothing
		return fmt.Errorf("%w: it has no handler", errSignal)
	}
	action.flags &^= saRestart
	if _, _, err := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(wakeSignal), uintptr(unsafe.Pointer(&action)), 0, 8, 0, 0); err != 0 {
		return fmt.Errorf("%w: %w", errSignal, err)
	}
	return nil
}
