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

// A call is late when its worker is stuck: blocked in the kernel, in one and the
// same wait, at every look of a whole deadline. A worker that waits for a
// processor, or whose wait goes on in steps, is slow because the machine is: that
// is no reason to deny. Looks are counted and not time, which goes on for a
// machine that was stopped.
const (
	checksPerDeadline = 4
	// maxDeadlines bounds a call that is never found stuck, in deadlines.
	maxDeadlines = 12
)

// watch denies calls that are late. Their workers may be stuck in a read of
// memory that never returns.
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

// observation is what successive looks at a worker found.
type observation struct {
	call    *call
	at      threadState
	looks   int // since the call was first seen
	blocked int // of them in a row, in the same wait
}

// threadState tells where a thread is. Equal ones are the same wait.
type threadState struct {
	waits bool
	runs  uint64 // how often it was given a processor
}

// next is what is known after one more look.
func (s observation) next(c *call, at threadState) observation {
	if s.call != c {
		return observation{call: c, at: at, looks: 1}
	}
	if s.looks++; at.waits && at == s.at {
		s.blocked++
	} else {
		s.blocked = 0
	}
	s.at = at
	return s
}

func (s observation) late() bool {
	return s.blocked >= checksPerDeadline || s.looks > maxDeadlines*checksPerDeadline
}

// stateOf looks at a thread of this process. One that waits for another
// thread of this process does not wait for a caller. What cannot be read counts
// as a wait. See proc_pid_syscall(5), and the third number of schedstat in
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
