package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"agentsh/cmd/agentsh/asking"
	"agentsh/internal/foreground"
	"agentsh/internal/refusals"
	"agentsh/internal/wire"
	"agentsh/supervisor/audit"
)

// callerTerminal is the terminal of this process while a command runs: questions about the
// command are asked on it, and the refusals of a command with a terminal of its own
// are printed on it when they happen. The zero value is a process without a terminal.
type callerTerminal struct {
	terminal *asking.Terminal
	reasons  bool // refusals are printed at once
	waits    []func()
	stops    []func()

	mu    sync.Mutex
	seen  uint64 // the last event that was read
	shown shownReasons
}

// takeTerminal puts itself between the terminal of this process and a command. asks says
// that questions may have to be asked. why is the reason why nobody can be asked.
func takeTerminal(ctx context.Context, asks bool, own *wire.TTY, streams *wire.Streams) (s *callerTerminal, why string) {
	s = &callerTerminal{reasons: own != nil && foreground.IsTerminal(streams.Stderr)}
	if !asks && !s.reasons {
		return s, ""
	}
	if s.terminal, why = asking.Open(streams); s.terminal == nil {
		s.reasons = false
		return s, why
	}
	if own != nil && streams.Control != nil {
		s.terminal.Redraw(ctx, streams)
	}
	return s, ""
}

// ask asks what follow reports.
func (s *callerTerminal) ask(ctx context.Context, follow asking.Follow, answer func(wire.ApprovalAnswer) error) {
	if s.terminal != nil {
		ctx, stop := context.WithCancel(ctx)
		s.stops, s.waits = append(s.stops, stop), append(s.waits, s.terminal.Ask(ctx, follow, answer))
	}
}

// tell prints the refusals of a command that read reports, until leave.
func (s *callerTerminal) tell(ctx context.Context, command string, read func(context.Context, func(wire.Event)) error) {
	if !s.reasons {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	s.stops = append(s.stops, stop)
	var reading sync.WaitGroup
	reading.Go(func() {
		_ = read(ctx, func(e wire.Event) { // what is not read now is printed at the end
			s.mu.Lock()
			defer s.mu.Unlock()
			if e.Seq <= s.seen {
				return
			}
			s.seen = e.Seq
			if e.Command != "" && e.Command != command {
				return
			}
			for _, line := range s.shown.note(e, time.Now()) {
				if refusals.Answered(e) {
					s.terminal.NoticeUnlessShown(line)
					continue
				}
				s.terminal.Notice(line)
			}
		})
	})
	s.waits = append(s.waits, reading.Wait)
}

// leave gives the terminal back. It returns the last event whose refusal was printed.
func (s *callerTerminal) leave(auditPath string) uint64 {
	for _, stop := range s.stops {
		stop()
	}
	for _, wait := range s.waits {
		wait()
	}
	if s.terminal != nil {
		if n := s.shown.dropped; n > 0 {
			s.terminal.Notice(fmt.Sprintf("agentsh: %d more refusals in %s", n, auditPath))
		}
		s.terminal.Close()
	}
	return s.seen
}

// shownReasons are refusals that are printed when they happen. The same one is printed
// again when it happens again later.
type shownReasons struct {
	last    map[string]time.Time // a line, and when it was printed
	since   time.Time            // of a window
	lines   int                  // in it
	dropped int
}

// reasonWindow is the time in which the same refusal is printed once, and
// [refusals.MaxPrinted] different ones.
const reasonWindow = 2 * time.Second

// note returns what is to be printed of an event.
func (s *shownReasons) note(e wire.Event, now time.Time) []string {
	var d refusals.List
	d.Note(e)
	lines := d.Lines()
	if len(lines) == 0 {
		return nil
	}
	if now.Sub(s.since) > reasonWindow {
		s.since, s.lines, s.last = now, 0, map[string]time.Time{}
	}
	line := lines[0]
	if !s.last[line].IsZero() {
		return nil
	}
	if s.lines == refusals.MaxPrinted {
		s.dropped++
		return nil
	}
	s.lines++
	s.last[line] = now
	return []string{line}
}

// eventsOf reads the events of a log of this process from number from on, until ctx
// ends.
func eventsOf(log *audit.Log, from uint64) func(context.Context, func(wire.Event)) error {
	return func(ctx context.Context, fn func(wire.Event)) error {
		f, err := log.Subscribe(from)
		for err == nil {
			var e wire.Event
			if e, err = f.Next(ctx); err == nil {
				fn(e)
			}
		}
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		return err
	}
}

// eventsIn reads the events of a log of another process since it had a size, until
// ctx ends. It may report one twice.
func eventsIn(path string, size int64) func(context.Context, func(wire.Event)) error {
	return func(ctx context.Context, fn func(wire.Event)) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		watch, err := audit.WatchFile(f)
		if err != nil {
			return err
		}
		defer func() { _ = watch.Close() }() // nothing was written
		for err == nil {
			from := size
			if size, err = audit.Size(path); err != nil {
				break
			}
			if err = audit.ReadSince(path, from, fn); err == nil {
				err = watch.Wait(ctx)
			}
		}
		return err
	}
}
