package notify

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"agentsh/internal/threads"
)

// A call waits in the queue when every worker but one is busy. That worker goes on
// receiving. Two reasons: a signal can end a call until it is received, and many
// calls at once are no reason to deny one.

// pool holds the workers of a loop and the calls that wait for them.
type pool struct {
	bounds Bounds
	spawn  func(*worker) // starts a worker; called with mu held

	mu      sync.Mutex
	workers []*worker
	idle    int       // workers that receive or are about to
	queue   []*call   // received and not begun, oldest first; empty unless one worker is idle
	begun   time.Time // when a call of the queue was begun last
	failed  error     // what ended the workers, when that was an error
}

// admit reports whether the worker that received c is to handle it. Otherwise c is
// in the queue, or denied because that is full, and the worker receives again.
func (p *pool) admit(c *call) bool {
	c.start = time.Now()
	p.mu.Lock()
	p.idle--
	if p.idle > 0 || p.grow() {
		p.mu.Unlock()
		return true
	}
	p.idle++
	full := len(p.queue) >= p.bounds.Queue
	if !full {
		p.queue = append(p.queue, c)
	}
	p.mu.Unlock()
	if full {
		c.fault(fmt.Errorf("all %d workers are busy and %d calls wait", p.bounds.Workers, p.bounds.Queue))
	}
	return false
}

// grow adds a worker if there may be one more, and a thread can be had for it. It is
// called with mu held.
func (p *pool) grow() bool {
	if len(p.workers) >= p.bounds.Workers || len(p.workers) >= 2 && threads.Short() {
		return false
	}
	p.idle++
	w := &worker{}
	p.workers = append(p.workers, w)
	p.spawn(w)
	return true
}

// open starts the first two workers.
func (p *pool) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.grow()
	p.grow()
}

// fail notes what ended a worker. It reports whether that is a failure of the loop.
func (p *pool) fail(err error) bool {
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed = errors.Join(p.failed, err)
	return true
}

// failure is what ended the workers, or nil.
func (p *pool) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failed
}

// next returns the call that a worker handles after another one. It returns nil when
// none waits: the worker is to receive one.
func (p *pool) next() *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.queue) == 0 {
		p.queue = nil
		p.idle++
		return nil
	}
	c := p.queue[0]
	p.queue[0] = nil
	p.queue = p.queue[1:]
	p.begun = time.Now()
	return c
}

// all returns the workers and the number of idle ones.
func (p *pool) all() ([]*worker, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.workers, p.idle // workers are only ever appended to
}

// overdue removes the calls from the queue that waited too long, and returns them.
// The limit is one deadline if all workers are stuck. Otherwise it is the longest
// time that a call may take, and counts only while no call of the queue is begun.
func (p *pool) overdue(stuck bool) (waiting []*call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	limit := p.bounds.Deadline
	if !stuck {
		limit *= maxDeadlines
		if time.Since(p.begun) <= limit {
			return nil
		}
	}
	for len(p.queue) > 0 && time.Since(p.queue[0].start) > limit {
		waiting = append(waiting, p.queue[0])
		p.queue = p.queue[1:]
	}
	return waiting
}
