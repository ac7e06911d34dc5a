package supervisor

import (
	"io"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"agentsh/seccomp"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify/engine"
	"agentsh/supervisor/probe"
	"agentsh/supervisor/probe/trial"
)

// NoEngine is the name in reports where nothing stops the calls of commands.
const NoEngine = "none"

// unjudged reports whether no call of a command is stopped. The supervisor then judges the
// first program of each command before it starts it.
func (c *confined) unjudged() bool { return c.missing.Has(probe.NestedCommands) }

// setRefusals sets the filter of a session without an engine, which only refuses calls. Below
// some supervisors it cannot be loaded, so Landlock refuses TCP as well where it can.
func setRefusals(s *Session, cfg *launch.Config, plan seccomp.Plan) error {
	const tcp = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
	plan = plan.RefusalsOnly()
	var err error
	if cfg.Filter, err = plan.Compile(runtime.GOARCH); err != nil {
		return err
	}
	s.confined.refusals = seccomp.Table{}
	cfg.Unjudged = true
	if !s.cfg.Network.Shared && cfg.Landlock != nil && launch.LandlockABI() >= trial.LandlockNet {
		cfg.Landlock.Net |= tcp
	}
	return nil
}

// idle is the engine of a session without one: no call ever stops.
type idle struct {
	ended <-chan struct{} // the session has
	done  chan struct{}
	close sync.Once
}

func newIdle(ended <-chan struct{}) *idle { return &idle{ended: ended, done: make(chan struct{})} }

// Name is [NoEngine].
func (e *idle) Name() string { return NoEngine }

// AddsFiles reports false.
func (e *idle) AddsFiles() bool { return false }

// HoldsThread reports false.
func (e *idle) HoldsThread() bool { return false }

// Begin does nothing.
func (e *idle) Begin(int) error { return nil }

// Receive waits for the end.
func (e *idle) Receive(*engine.Call) error {
	select {
	case <-e.done:
		return os.ErrClosed
	case <-e.ended:
		return io.EOF
	}
}

// Valid reports false.
func (e *idle) Valid(uint64) bool { return false }

// Ended reports true.
func (e *idle) Ended(uint64) bool { return true }

// Answer fails: there is no call.
func (e *idle) Answer(uint64, engine.Answer) error { return engine.ErrGone }

// Execute fails: there is no call.
func (e *idle) Execute(*engine.Call, engine.Execution) error { return engine.ErrGone }

// Close ends Receive.
func (e *idle) Close() error {
	e.close.Do(func() { close(e.done) })
	return nil
}
