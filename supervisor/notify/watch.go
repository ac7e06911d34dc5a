package notify

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A call is late if its worker is stuck. A worker is stuck if it is blocked in
// the same wait in the kernel at every check of a whole deadline. A worker that
// waits for a processor, or whose waits change, is only slow, and its call is
// not denied. Checks are counted instead of time, because time continues while
// a machine is suspended.
const (
	checksPerDeadline = 4
	// maxDeadlines bounds a call whose worker is never stuck, in deadlines.
	maxDeadlines = 12
)

// watch denies calls that are late. Their workers may block forever in a read of memory.
func (l *Loop) watch(ctx context.Context) {
	ticker := time.NewTicker(max(l.pool.bounds.Deadline/checksPerDeadline, time.Millisecond))
	defer ticker.Stop()
	seen := map[*worker]observation{}
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		late := fmt.Errorf("no decision within %v", l.pool.bounds.Deadline)
		workers, idle := l.pool.all()
		stuck := 0
		for _, w := range workers {
			c := w.current.Load()
			if c == nil || c.untimed.Load() {
				delete(seen, w)
				continue
			}
			s := seen[w].next(c, stateOf(int(w.tid.Load())))
			seen[w] = s
			if s.late() {
				stuck++
				c.fault(late)
			}
		}
		for _, c := range l.pool.overdue(stuck > 0 && stuck+idle >= len(workers)) {
			c.fault(late)
		}
	}
}

// observation is the result of successive checks of a worker.
type observation struct {
	call    *call
	at      threadState
	checks  int // since the call was first seen
	blocked int // of them in a row, in the same wait
}

// threadState is the state of a thread. Equal states with waits set are the same wait.
type threadState struct {
	waits bool
	runs  uint64 // how often it got a processor
}

// next is the observation after one more check.
func (s observation) next(c *call, at threadState) observation {
	if s.call != c {
		return observation{call: c, at: at, checks: 1}
	}
	if s.checks++; at.waits && at == s.at {
		s.blocked++
	} else {
		s.blocked = 0
	}
	s.at = at
	return s
}

func (s observation) late() bool {
	return s.blocked >= checksPerDeadline || s.checks > maxDeadlines*checksPerDeadline
}

// stateOf reads the state of a thread of this process. A thread that waits for another
// thread of this process does not count as waiting, but one whose state cannot be read
// does. See proc_pid_syscall(5), and the third number of schedstat in
// Documentation/scheduler/sched-stats.rst.
func stateOf(tid int) threadState {
	dir := "/proc/self/task/" + strconv.Itoa(tid)
	number, _ := os.ReadFile(dir + "/syscall")
	first, _, _ := bytes.Cut(bytes.TrimSpace(number), []byte(" "))
	if call := string(first); call == "running" || call == strconv.Itoa(unix.SYS_FUTEX) {
		return threadState{}
	}
	p := threadState{waits: true}
	if text, err := os.ReadFile(dir + "/schedstat"); err == nil {
		if fields := bytes.Fields(text); len(fields) == 3 {
			p.runs, _ = strconv.ParseUint(string(fields[2]), 10, 64) // else 0, which stays the same
		}
	}
	return p
}
