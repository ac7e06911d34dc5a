package supervisor

import (
	"fmt"
	"sync"
	"time"

	"agentsh/internal/wire"
)

// lifetime counts the commands of a session and ends it: when a part fails, when
// a timeout is over, or when it is closed.
type lifetime struct {
	ended func(*Ended) // called once, unless the session is closed first

	mu       sync.Mutex
	cause    *Ended // nil: the session runs
	active   int    // commands
	since    time.Time
	idle     *time.Timer // runs while there are no commands; nil: no idle_timeout
	limit    time.Duration
	timeout  *time.Timer // of the session; nil: none
	commands sync.WaitGroup
	outputs  sync.WaitGroup // of commands, until the last of their processes has ended
}

// start starts the timers of session_timeout and idle_timeout; 0: none. A process
// that a command left behind does not keep a session from being idle.
func (l *lifetime) start(session, idle time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if session > 0 {
		l.timeout = time.AfterFunc(session, func() {
			l.end(wire.CauseSessionTimeout, fmt.Errorf("session_timeout of %s is over", session))
		})
	}
	if idle > 0 {
		l.since, l.limit = time.Now(), idle
		l.idle = time.AfterFunc(idle, func() {
			over := func() bool { return l.active == 0 && time.Since(l.since) >= idle }
			l.endIf(over, newEnded(wire.CauseIdleTimeout, fmt.Errorf("idle_timeout of %s is over", idle)))
		})
	}
}

// enter counts a command in, unless the session has ended.
func (l *lifetime) enter() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause != nil {
		return l.cause
	}
	l.commands.Add(1)
	l.count(1)
	return nil
}

// leave counts a command out.
func (l *lifetime) leave() {
	l.mu.Lock()
	l.count(-1)
	l.mu.Unlock()
	l.commands.Done()
}

// count counts running commands. It is called with mu held.
func (l *lifetime) count(n int) {
	l.active += n
	switch {
	case l.idle == nil || l.cause != nil:
	case l.active > 0:
		l.idle.Stop()
	default:
		l.since = time.Now()
		l.idle.Reset(l.limit)
	}
}

// end ends the session for a cause that later calls report. reason has the details.
func (l *lifetime) end(cause wire.Cause, reason error) {
	l.endIf(func() bool { return true }, newEnded(cause, reason))
}

// endIf ends the session if a condition is true, which is called with mu held.
func (l *lifetime) endIf(condition func() bool, why *Ended) {
	l.mu.Lock()
	first := l.cause == nil && condition()
	if first {
		l.cause = why
	}
	l.mu.Unlock()
	if first {
		l.ended(why)
	}
}

// why is why the session has ended; nil: it runs.
func (l *lifetime) why() *Ended {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// stop refuses further commands and stops the timers.
func (l *lifetime) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cause == nil {
		l.cause = &Ended{Cause: wire.CauseClosed}
	}
	for _, t := range []*time.Timer{l.idle, l.timeout} {
		if t != nil {
			t.Stop()
		}
	}
}

// wait waits until every command and its output have ended.
func (l *lifetime) wait() {
	l.commands.Wait()
	l.outputs.Wait()
}
