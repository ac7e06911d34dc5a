package notify

import (
	"sync"

	"agentsh/seccomp/target"
)

// follows are the threads that followers trace. It is safe for concurrent use.
type follows struct {
	mu      sync.Mutex
	threads map[int]*follower
	opening map[int]*installedFile // by the thread whose next execveat replaces an open
}

func newFollows() *follows {
	return &follows{threads: map[int]*follower{}, opening: map[int]*installedFile{}}
}

// traces reports whether a follower traces a thread of a process.
func (f *follows) traces(tid int, p target.Process) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	by := f.threads[tid]
	return by != nil && by.process == p
}

// has reports whether a follower traces a thread.
func (f *follows) has(tid int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.threads[tid] != nil
}

// removeIf removes the threads that match.
func (f *follows) removeIf(match func(tid int, by *follower) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for tid, by := range f.threads {
		if match(tid, by) {
			delete(f.threads, tid)
			delete(f.opening, tid)
		}
	}
}

// removeOthers removes every thread of a follower but one.
func (f *follows) removeOthers(by *follower, tid int) {
	f.removeIf(func(t int, owner *follower) bool { return owner == by && t != tid })
}

// removeProcess removes the threads of a process that is stopped at the exec of a thread
// without a follower. Its other threads have ended, and the kernel does not report the
// end of the first one.
func (f *follows) removeProcess(p target.Process) {
	f.removeIf(func(_ int, by *follower) bool { return by.process == p })
}

// remove removes a follower that traces nothing more. It returns an exec that was set as
// the next one and did not happen.
func (f *follows) remove(by *follower) *attempt {
	f.removeIf(func(_ int, owner *follower) bool { return owner == by })
	return f.removeNext(by)
}

func (f *follows) add(tid int, by *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.threads[tid] = by
}

// removeThread removes a thread that ended.
func (f *follows) removeThread(tid int, by *follower) {
	f.removeIf(func(t int, owner *follower) bool { return t == tid && owner == by })
}

// detach detaches from a thread and removes it. It does both under one lock, so that no
// caller sees one without the other.
func (f *follows) detach(tid, signal int, by *follower) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if by.tracing.Detach(tid, signal) == nil && f.threads[tid] == by {
		delete(f.threads, tid)
		delete(f.opening, tid)
	}
}

// setNext passes a permitted exec to the follower of its thread, which takes over a. It
// fails if the thread ended meanwhile.
func (f *follows) setNext(tid int, a *attempt) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	by := f.threads[tid]
	if by == nil || by.process != a.process.Process {
		return false
	}
	if by.next != nil {
		by.next.close() // that exec failed
	}
	a.given = true
	by.next = a
	return true
}

func (f *follows) removeNext(by *follower) *attempt {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := by.next
	by.next = nil
	return a
}

// addOpen makes the next execveat of a thread stand for an open.
func (f *follows) addOpen(tid int, h *installedFile) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opening[tid] = h
}

func (f *follows) removeOpen(tid int) *installedFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := f.opening[tid]
	delete(f.opening, tid)
	return h
}
