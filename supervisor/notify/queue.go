package notify

import (
	"fmt"
	"time"
)

// Calls wait in a queue when every worker but one is busy. That one goes on
// receiving: until a call is received its thread can be interrupted, and a call
// that many threads make at once is not denied because they are many.

// admit reports whether the worker that received c is to handle it. Otherwise it
// is in the queue, or denied because the queue is full, and the worker is to
// receive the next one.
func (l *Loop) admit(c *call) bool {
	c.start = time.Now()
	l.mu.Lock()
	l.idle--
	if l.idle > 0 || l.grow() {
		l.mu.Unlock()
		return true
	}
	l.idle++
	full := len(l.queue) >= l.cfg.Queue
	if !full {
		l.queue = append(l.queue, c)
	}
	l.mu.Unlock()
	if full {
		c.fault(fmt.Errorf("all %d workers are busy and %d calls wait", l.cfg.Workers, l.cfg.Queue))
	}
	return false
}

// next is the call that a worker handles after another one; nil: none waits, and
// the worker is to receive one.
func (l *Loop) next() *call {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		l.queue = nil
		l.idle++
		return nil
	}
	c := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	l.begun = time.Now()
	return c
}

// staff are all workers, and how many of them have nothing to do.
func (l *Loop) staff() ([]*worker, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.workers, l.idle // workers are only ever appended to
}

// overdue returns the calls that have waited for too long: for a deadline when
// the workers are stuck, else for the longest that a call may take while none of
// the queue was begun. They leave the queue.
func (l *Loop) overdue(stuck bool) (waiting []*call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	limit := l.cfg.Deadline
	if !stuck {
		limit *= mostDeadlines
		if time.Since(l.begun) <= limit {
			return nil
		}
	}
	for len(l.queue) > 0 && time.Since(l.queue[0].start) > limit {
		waiting = append(waiting, l.queue[0])
		l.queue = l.queue[1:]
	}
	return waiting
}
