package tracer

import (
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"agentsh/supervisor/notify/engine"
)

// A wait for any tracee walks the list of all of them: once before it sleeps, and once
// after it was woken. With thousands of idle processes that costs more than a spawn. A wait
// for one number needs no walk. The thread therefore asks for the tracees that it resumed
// last, one by one, for as long as a walk would take. Only then it waits for any of them.
// See do_wait in kernel/exit.c.

// Bounds of the search for the next stop.
const (
	walkOfOne   = 30 * time.Nanosecond // what a walk takes for each tracee
	shortWalk   = 256                  // tracees whose walk costs less than the search
	recentCount = 8
)

// recent are the tracees that were stopped last, each once.
type recent struct {
	tids   [recentCount]int
	next   int
	inVain int // searches since one found a tracee
}

func (r *recent) add(tid int) {
	for _, known := range r.tids {
		if known == tid {
			return
		}
	}
	r.tids[r.next] = tid
	r.next = (r.next + 1) % recentCount
}

// remove forgets a thread that has ended.
func (r *recent) remove(tid int) {
	for i, known := range r.tids {
		if known == tid {
			r.tids[i] = 0
		}
	}
}

// A tracee that has ended is a zombie until this thread has waited for it. Its parent can see
// that by a pidfd(2) and in /proc, but its wait does not return it. Programs rely on that: they
// wait with WNOHANG for the process of a pidfd that is ready. So the filter stops waits with
// WNOHANG, and such a call goes on when no tracee has an event. See ptrace(2), and
// wait_consider_task in kernel/exit.c.

// polls reports whether a call is a wait with WNOHANG.
func polls(number int, args [6]uint64) bool {
	switch number {
	case unix.SYS_WAIT4:
		return args[2]&unix.WNOHANG != 0
	case unix.SYS_WAITID:
		return args[3]&unix.WNOHANG != 0
	}
	return false
}

// poll notes such a call. It waits for one event of each tracee at most: others may go on
// having some.
func (t *thread) poll(id uint64) {
	const more = 16 // newborn threads, and processes whose last thread ended
	t.polls, t.before = append(t.polls, id), len(t.tasks)+more
}

// endPolls lets these calls go on.
func (t *thread) endPolls() {
	for _, id := range t.polls {
		_ = t.engine.Answer(id, engine.Answer{Kind: engine.Continue}) // its thread may have ended
	}
	t.polls = t.polls[:0]
}

// wait waits for the next stop or end of a tracee. It returns 0 if the calls of [thread.poll]
// can go on.
func (t *thread) wait(status *unix.WaitStatus) (int, error) {
	if len(t.polls) > 0 {
		if t.before--; t.before < 0 {
			return 0, nil
		}
		return unix.Wait4(-1, status, anyOfThread|unix.WNOHANG, nil)
	}
	if n := len(t.tasks); n > shortWalk {
		if tid := t.search(status, time.Duration(n)*walkOfOne); tid != 0 {
			return tid, nil
		}
	}
	return unix.Wait4(-1, status, anyOfThread, nil)
}

// anyOfThread waits for threads of all kinds. Without __WNOTHREAD it would take the stops of
// other tracing threads.
const anyOfThread = unix.WALL | unix.WNOTHREAD

// search asks for the tracees that were stopped last, for as long as a walk takes. On a busy
// machine they stop later than that, so after some searches in vain most ask once.
func (t *thread) search(status *unix.WaitStatus, limit time.Duration) int {
	const (
		inVain = 2
		probe  = 16
	)
	once := t.recent.inVain >= inVain && t.recent.inVain%probe != 0
	for start := time.Now(); ; {
		if tid := t.bell.pid; ready(tid, status, anyOfThread) {
			return tid
		}
		for _, tid := range t.recent.tids {
			if ready(tid, status, anyOfThread) {
				if !once {
					t.recent.inVain = 0
				}
				return tid
			}
		}
		if once || time.Since(start) > limit {
			t.recent.inVain++
			return 0
		}
	}
}

// ready reports whether a tracee has stopped or ended. It does not block.
func ready(tid int, status *unix.WaitStatus, how uintptr) bool {
	if tid == 0 {
		return false
	}
	got, _, errno := unix.RawSyscall6(unix.SYS_WAIT4, uintptr(tid), uintptr(unsafe.Pointer(status)), how|unix.WNOHANG, 0, 0, 0)
	return errno == 0 && got != 0
}
