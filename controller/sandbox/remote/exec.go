package remote

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"

	"agentsh/controller/sandbox"
	"agentsh/internal/channel"
)

// Exec is a stream to a program that the interface of an engine started in a place. Whoever
// started it copies between Inner and the engine, and calls [Exec.End] when the engine has
// ended it.
type Exec struct {
	net.Conn
	Inner    net.Conn     // what the place reads and writes
	Messages sandbox.Tail // standard error of the program
	stop     func()
	once     sync.Once
	gone     chan struct{} // closed when the program has ended, or the engine left the stream
	cause    error         // set before gone is closed
}

// NewExec makes a stream. stop ends the program by force, and is called at most once.
func NewExec(stop func()) (*Exec, error) {
	ours, theirs, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	inner, err := channel.FromFile(theirs)
	if err = errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	return &Exec{Conn: ours, Inner: inner, stop: stop, gone: make(chan struct{})}, nil
}

// Output returns a writer to Inner that discards what comes after an error. What is read to
// the end tells when the engine has ended the program.
func (s *Exec) Output() io.Writer { return &discarding{to: s.Inner} }

type discarding struct {
	to     io.Writer
	failed bool
}

func (d *discarding) Write(p []byte) (int, error) {
	if !d.failed {
		if _, err := d.to.Write(p); err != nil {
			d.failed = true
		}
	}
	return len(p), nil
}

// End ends the stream. why is what the engine says of the place; it may be nil. The cause is
// the end of the place, else the last message of agentsh, else why.
func (s *Exec) End(why error) {
	_ = s.Inner.Close()
	var end *sandbox.End
	last := s.Messages.LastMessage()
	switch {
	case errors.As(why, &end) && !end.Passes() && end.Kind != sandbox.EndRefused:
		if end.Kind == sandbox.EndDied && last != "" {
			end.Text += ": " + last
		}
		s.cause = end
	case strings.Contains(last, "memory was full"):
		end = sandbox.MemoryEnd()
		end.Text = last
		s.cause = end
	case last != "":
		s.cause = errors.New(last)
	default:
		s.cause = why
	}
	close(s.gone)
}

// Gone implements [Stream].
func (s *Exec) Gone() <-chan struct{} { return s.gone }

// Cause implements [Stream].
func (s *Exec) Cause() error {
	select {
	case <-s.gone:
		return s.cause
	default:
		return nil
	}
}

// Kill implements [Stream].
func (s *Exec) Kill() {
	_ = s.Close()
	s.once.Do(s.stop)
	<-s.gone
}
