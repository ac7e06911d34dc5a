// Package foreground runs a command of a session on the terminal, the streams
// and the signals of this process.
package foreground

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"agentsh/internal/wire"
)

// Execute runs one command somewhere.
type Execute[R any] func(context.Context, wire.ExecRequest, wire.Streams) (R, error)

// PassSignals returns f with the signals of this process passed to its command.
// The first signal of a kind goes to the command's process group. A second one
// of the same kind ends the whole process tree, and so does any signal before
// the program runs. If a signal or the deadline ended the program, or a signal
// comes after its end, nothing waits for the readers of its output. A signal
// that was ignored when this process started stays ignored, see nohup(1). ctx
// is the context of main: a signal that ends it does not end the command. early
// makes the result of a command that a signal ended before its program ran.
func PassSignals[R any](f Execute[R], early func(R, wire.Exit) R) Execute[R] {
	return func(ctx context.Context, request wire.ExecRequest, streams wire.Streams) (R, error) {
		got := make(chan os.Signal, 8)
		signal.Notify(got, passed()...)
		defer signal.Stop(got)
		if ctx.Err() != nil {
			var none R
			return early(none, wire.Exit{Kind: wire.ExitSignaled, Signal: int(syscall.SIGINT)}), nil
		}
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		p := &passing{
			cancel: cancel,
			exited: make(chan wire.Exit, 1),
			hangup: request.TTY != nil,
			to:     make(chan wire.Control, 8),
			sizes:  streams.Control,
			seen:   map[os.Signal]bool{},
		}
		streams.Control, streams.Started, streams.Exited = p.to, p.start, p.exit
		var wg sync.WaitGroup
		wg.Go(func() { p.follow(ctx, got) })
		r, err := f(ctx, request, streams)
		cancel()
		wg.Wait()
		if p.early != 0 && (err == nil || errors.Is(err, context.Canceled)) {
			r, err = early(r, wire.Exit{Kind: wire.ExitSignaled, Signal: p.early}), nil
		}
		return r, err
	}
}

// passed returns the signals that are passed to a command.
func passed() []os.Signal {
	return taken(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
}

// EndSignals returns the signals that end a program: SIGINT, SIGTERM and SIGHUP.
// SIGHUP is not among them if it was ignored when this process started, see nohup(1).
// A shell script starts its background commands with SIGINT ignored; they still end
// when they are sent one.
func EndSignals() []os.Signal {
	return append(taken(syscall.SIGHUP), syscall.SIGINT, syscall.SIGTERM)
}

// taken returns the signals that were not ignored when this process started.
func taken(all ...os.Signal) []os.Signal {
	var list []os.Signal
	for _, s := range all {
		if !ignored[s] {
			list = append(list, s)
		}
	}
	return list
}

// ignored are the signals that this process was started with as ignored. It is
// asked before anything else takes one.
var ignored = func() map[os.Signal]bool {
	list := map[os.Signal]bool{}
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
		list[s] = signal.Ignored(s)
	}
	return list
}()

// passing passes signals and terminal sizes to one command.
type passing struct {
	cancel func()
	exited chan wire.Exit // how the program ended
	hangup bool           // SIGHUP says that its terminal is gone
	to     chan wire.Control
	sizes  <-chan wire.Control // of its terminal; nil: none
	seen   map[os.Signal]bool
	early  int // the signal that came before the program ran

	mu      sync.Mutex
	started bool
	ended   bool // the program
}

// exit is called once.
func (p *passing) exit(e wire.Exit) { p.exited <- e }

func (p *passing) start(wire.Started) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = true
}

// follow passes signals and sizes until ctx ends.
func (p *passing) follow(ctx context.Context, got <-chan os.Signal) {
	for {
		var m wire.Control
		select {
		case <-ctx.Done():
			return
		case e := <-p.exited:
			if p.end(e) {
				p.cancel()
				return
			}
			continue
		case m = <-p.sizes:
		case s := <-got:
			if p.ends(s) {
				p.cancel()
				return
			}
			m.Signal = int(s.(syscall.Signal)) // os/signal gives no others
		}
		select {
		case p.to <- m:
		case <-ctx.Done():
			return
		}
	}
}

// ends reports whether a signal ends the whole tree.
func (p *passing) ends(s os.Signal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.started {
		p.early = int(s.(syscall.Signal))
		return true
	}
	if p.ended {
		return true
	}
	again := p.seen[s]
	p.seen[s] = true
	return again || p.hangup && s == syscall.SIGHUP
}

// end records the end of the program. It reports whether the whole tree must
// end too.
func (p *passing) end(e wire.Exit) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	return len(p.seen) > 0 || e.Kind == wire.ExitDeadline
}
