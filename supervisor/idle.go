package supervisor

import (
	"fmt"
	"time"
)

// watchIdle ends the session when no command has run for idle_timeout. What a
// command left behind does not count as one.
func (s *Session) watchIdle() {
	limit := s.cfg.Policy.Limits(nil).IdleTimeout
	if limit <= 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quiet = time.Now()
	s.idle = time.AfterFunc(limit, func() {
		over := func() bool { return s.active == 0 && time.Since(s.quiet) >= limit }
		s.endIf(over, fmt.Errorf("idle_timeout of %s is over", limit))
	})
}

// leave counts a command out again.
func (s *Session) leave() {
	s.mu.Lock()
	s.count(-1)
	s.mu.Unlock()
	s.commands.Done()
}

// count counts running commands. It is called with mu held.
func (s *Session) count(n int) {
	s.active += n
	switch {
	case s.idle == nil || s.fault != nil:
	case s.active > 0:
		s.idle.Stop()
	default:
		s.quiet = time.Now()
		s.idle.Reset(s.cfg.Policy.Limits(nil).IdleTimeout)
	}
}
