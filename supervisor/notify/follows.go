package notify

import (
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/seccomp/target"
)

// follows are the threads that followers trace.
type follows struct {
	mu      sync.Mutex
	threads map[int]*follower
	opening map[int]*installedFile // by the thread whose next execveat stands for an open
}

func newFollows() *follows {
	return &follows{threads: map[int]*follower{}, opening: map[int]*installedFile{}}
}

// of reports whether a thread of a process is traced by a follower.
func (f *follows) of(tid int, p target.Process) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	by := f.threads[tid]
	return by != nil && by.process == p
}

// knows reports whether a follower has seen a thread before.
func (f *follows) knows(tid int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.threads[tid] != nil
}

// forget forgets the threads that match.
func (f *follows) forget(match func(tid int, by *follower) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for tid, by := range f.threads {
		if match(tid, by) {
			delete(f.threads, tid)
			delete(f.opening, tid)
		}
	}
}

// only forgets every thread of a follower but one.
func (f *follows) only(by *follower, tid int) {
	f.forget(func(t int, owner *follower) bool { return owner == by && t != tid })
}

// passed forgets who followed a process that is held at the exec of a thread that
// no follower saw: its other threads are no more, and nobody is told of the end of
// the first.
func (f *follows) passed(p target.Process) {
	f.forget(func(_ int, by *follower) bool { return by.process == p })
}

// leave forgets a follower that traces nothing more, and returns an exec that it
// was given and that never came.
func (f *follows) leave(by *follower) *attempt {
	f.forget(func(_ int, owner *follower) bool { return owner == by })
	return f.take(by)
}

func (f *follows) add(tid int, by *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.threads[tid] = by
}

// gone forgets a thread that ended.
func (f *follows) gone(tid int, by *follower) {
	f.forget(func(t int, owner *follower) bool { return t == tid && owner == by })
}

// detach lets go of a thread, and forgets it if that succeeds. Nobody sees it
// traced and not known, or the reverse.
func (f *follows) detach(tid, signal int, by *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ptrace(unix.PTRACE_DETACH, tid, uintptr(signal)) == nil && f.threads[tid] == by {
		delete(f.threads, tid)
		delete(f.opening, tid)
	}
}

// give leaves a permitted exec to the follower of its thread, which takes over a.
// It fails when the thread ended meanwhile.
func (f *follows) give(tid int, a *attempt) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	by := f.threads[tid]
	if by == nil || by.process != a.process.Process {
		return false
	}
	if by.next != nil {
		by.next.close() // that exec failed
	}
	a.kept = true
	by.next = a
	return true
}

func (f *follows) take(by *follower) *attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := by.next
	by.next = nil
	return a
}

// open has the next execveat of a thread stand for an open.
func (f *follows) open(tid int, h *installedFile) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opening[tid] = h
}

func (f *follows) opens(tid int) *installedFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.opening[tid]
	delete(f.opening, tid)
	return h
}
