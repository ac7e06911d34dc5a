package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/channel"
)

// exec starts agentsh serve --stdio in the container.
func (c *container) exec(ctx context.Context) (remote.Stream, error) {
	argv := []string{program, "serve", "--stdio"}
	if c.b.cfg.Operator != "" {
		argv = append(argv, "--config", configInside)
	}
	made, err := c.b.engine.ExecCreate(ctx, c.made.id, client.ExecCreateOptions{
		AttachStdin: true, AttachStdout: true, AttachStderr: true, Cmd: argv, WorkingDir: "/",
	})
	if err != nil {
		return nil, c.made.ended(ctx, c.b, err)
	}
	got, err := c.b.engine.ExecAttach(ctx, made.ID, client.ExecAttachOptions{})
	if err != nil {
		return nil, c.made.ended(ctx, c.b, err)
	}
	ours, theirs, err := channel.Pair()
	if err != nil {
		got.Close()
		return nil, err
	}
	inner, err := channel.FromFile(theirs)
	if err = errors.Join(err, theirs.Close()); err != nil {
		got.Close()
		return nil, errors.Join(err, ours.Close())
	}
	s := &stream{Conn: ours, attached: got.HijackedResponse, gone: make(chan struct{})}
	go s.copy(inner, c.b, c.made)
	return s, nil
}

// stream is an exec in a container and its standard streams.
type stream struct {
	net.Conn
	attached client.HijackedResponse
	messages sandbox.Tail  // its standard error
	gone     chan struct{} // closed when the exec has ended, or the engine left the stream
	cause    error         // set before gone is closed
	once     sync.Once
}

// copy copies bytes between the engine and the other end of the stream, until the engine ends
// it. It then finds out why.
func (s *stream) copy(inner net.Conn, b *Backend, m made) {
	var in sync.WaitGroup
	in.Go(func() {
		_, _ = io.Copy(s.attached.Conn, inner) // the other direction ends with an error, too
		_ = s.attached.CloseWrite()
	})
	_, _ = stdcopy.StdCopy(&discarding{to: inner}, &s.messages, s.attached.Reader)
	s.attached.Close()
	_ = inner.Close()
	in.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	var end *sandbox.End
	err := m.ended(ctx, b, nil)
	if errors.As(err, &end) && !end.Passes() {
		s.cause = end
	} else if last := s.messages.LastMessage(); strings.Contains(last, "memory was full") {
		end = memoryEnd()
		end.Text = last
		s.cause = end
	} else if last != "" {
		s.cause = errors.New(last)
	}
	close(s.gone)
}

// askTime is the time for an engine to say what happened to a container.
const askTime = 3 * time.Second

// discarding writes until an error, and then discards the rest. What is read to the end tells
// when the other side has ended.
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

// Gone implements [remote.Stream].
func (s *stream) Gone() <-chan struct{} { return s.gone }

// Cause implements [remote.Stream]. It is the end of the container, or the last message of
// agentsh.
func (s *stream) Cause() error {
	select {
	case <-s.gone:
		return s.cause
	default:
		return nil
	}
}

// Kill implements [remote.Stream].
func (s *stream) Kill() {
	_ = s.Close()
	s.once.Do(s.attached.Close)
	<-s.gone
}

// ended returns why the container is gone, or err if it is running or nobody knows.
func (m made) ended(ctx context.Context, b *Backend, err error) error {
	got, failed := b.engine.ContainerInspect(ctx, m.id, client.ContainerInspectOptions{})
	switch {
	case failed == nil && got.Container.State != nil && got.Container.State.Running:
		return err
	case failed != nil && !errdefs.IsNotFound(failed):
		if err == nil {
			err = failed
		}
		return b.explain(err)
	}
	e := &sandbox.End{Kind: sandbox.EndRemoved, Err: err}
	if failed == nil && got.Container.State != nil {
		e = fromState(got.Container.State.OOMKilled, got.Container.State.ExitCode)
	}
	if found := m.history(ctx, b); found != nil {
		e = found
	}
	e.Text = fmt.Sprintf("container %.12s %s", m.id, e.Text)
	if e.Kind == sandbox.EndRemoved && e.Hint == "" {
		e.Text = fmt.Sprintf("container %.12s is no more: somebody removed it, or the engine was started again", m.id)
		e.Hint = "start the run again"
	}
	return e
}

func fromState(memory bool, status int) *sandbox.End {
	if memory {
		return memoryEnd()
	}
	return &sandbox.End{
		Kind: sandbox.EndDied, Text: fmt.Sprintf("ended with status %d", status),
		Hint: "its first process ended by itself: the log of the engine may say why",
	}
}

func memoryEnd() *sandbox.End {
	return &sandbox.End{
		Kind: sandbox.EndMemory, Text: "was ended by the kernel because its memory was full",
		Hint: "raise container.memory_mb of the harness, or have the agent run less at a time",
	}
}

// history returns why the container ended, by what the engine remembers of it; nil: nothing.
func (m made) history(ctx context.Context, b *Backend) *sandbox.End {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	now := time.Now()
	events := b.engine.Events(ctx, client.EventsListOptions{
		Since:   strconv.FormatInt(m.at.Add(-time.Hour).Unix(), 10), // clocks may differ
		Until:   fmt.Sprintf("%d.%09d", now.Unix(), now.Nanosecond()),
		Filters: client.Filters{}.Add("container", m.id).Add("type", "container"),
	})
	var found *sandbox.End
	for {
		select {
		case e, ok := <-events.Messages:
			if !ok {
				return found
			}
			switch string(e.Action) {
			case "oom":
				return memoryEnd()
			case "kill":
				const text = "was stopped or killed, by somebody or by an engine that was started again (signal %s)"
				found = &sandbox.End{
					Kind: sandbox.EndKilled, Text: fmt.Sprintf(text, e.Actor.Attributes["signal"]), Hint: "start the run again",
				}
			case "die", "died":
				if found == nil {
					status, _ := strconv.Atoi(e.Actor.Attributes["exitCode"])
					found = fromState(false, status)
				}
			}
		case <-events.Err:
			return found
		}
	}
}
