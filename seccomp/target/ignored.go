package target

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// IgnoredSignals keeps waits of a traced thread from ending with EINTR because of signals that
// its process ignores. Natively the kernel drops these, for a traced thread it does not. See
// sig_ignored in kernel/signal.c. On arm64 nothing can be done: the kernel has prepared the end
// of the wait before the stop for the signal.
type IgnoredSignals struct {
	number int // the wait that was restarted last
	args   [6]uint64
	since  time.Time // when that began
}

// mostRestarts is how long a wait that may have a time limit is restarted. Each restart begins
// the time anew, so a stream of signals would prolong it without end.
const mostRestarts = time.Second

// Stopped is called when the thread is stopped for a signal.
func (i *IgnoredSignals) Stopped(tid int, signal unix.Signal) error {
	if !restartsAtSignals {
		return nil
	}
	r, err := ReadRegisters(tid)
	if err != nil {
		return err
	}
	number, args := r.Call()
	if int64(r.at(regsResultAt)) != -int64(unix.EINTR) || !slices.Contains(waits, number) || !ignores(tid, signal) {
		return nil
	}
	if !endless(number, args) {
		if i.since.IsZero() || i.number != number || i.args != args {
			i.number, i.args, i.since = number, args, time.Now()
		} else if time.Since(i.since) > mostRestarts {
			i.since = time.Time{}
			return nil
		}
	}
	r.set(regsResultAt, restartUnlessHandled)
	return r.Write(tid)
}

// ignores reports whether a process ignores a signal, by choice or by default. See signal(7).
// A stop ends a wait natively too, so SIGCONT after it is not ignored.
func ignores(tid int, signal unix.Signal) bool {
	sets, err := signalSets(tid)
	if err != nil || signal < 1 {
		return false
	}
	bit := uint64(1) << (signal - 1)
	switch signal {
	case unix.SIGCHLD, unix.SIGURG, unix.SIGWINCH:
		return sets("SigCgt")&bit == 0
	case unix.SIGCONT:
		return false
	}
	return sets("SigIgn")&bit != 0
}

// endless reports whether a wait has no time limit.
func endless(number int, args [6]uint64) bool {
	switch number {
	case unix.SYS_EPOLL_PWAIT:
		return int32(args[3]) < 0
	case unix.SYS_EPOLL_PWAIT2, unix.SYS_SEMTIMEDOP:
		return args[3] == 0
	case unix.SYS_RT_SIGTIMEDWAIT:
		return args[2] == 0
	case unix.SYS_SEMOP:
		return true
	}
	return slices.Contains(archWaits, number) && int32(args[3]) < 0
}
