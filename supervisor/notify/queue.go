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
	c.start = l.begun
	return c
}

// overdue returns all workers, and the calls that have waited for longer than
// the deadline since they were received and since one of the queue was begun:
// the workers are stuck then. These calls leave the queue.
func (l *Loop) overdue() (workers []*worker, waiting []*call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.begun) > l.cfg.Deadline {
		for len(l.queue) > 0 && time.Since(l.queue[0].start) > l.cfg.Deadline {
			waiting = append(waiting, l.queue[0])
			l.queue = l.queue[1:]
		}
	}
	return l.workers, waiting // workers are only ever appended to
}
