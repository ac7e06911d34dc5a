package docker

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
)

// exec starts agentsh serve --stdio in the container.
func (c *container) exec(ctx context.Context) (remote.Stream, error) {
	argv := append([]string{program, "serve", "--stdio"}, c.configured()...)
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
	s, err := remote.NewExec(got.Close)
	if err != nil {
		got.Close()
		return nil, err
	}
	go carry(s, got.HijackedResponse, c.b, c.made)
	return s, nil
}

// carry copies bytes between the engine and the other end of the stream, until the engine ends
// it. It then finds out why.
func carry(s *remote.Exec, attached client.HijackedResponse, b *Backend, m made) {
	var in sync.WaitGroup
	in.Go(func() {
		_, _ = io.Copy(attached.Conn, s.Inner) // the other direction ends with an error, too
		_ = attached.CloseWrite()
	})
	_, _ = stdcopy.StdCopy(s.Output(), &s.Messages, attached.Reader)
	attached.Close()
	_ = s.Inner.Close()
	in.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	s.End(m.ended(ctx, b, nil))
}

// askTime is the time for an engine to say what happened to a container.
const askTime = 3 * time.Second

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
	if found := m.history(ctx, b, e.Kind == sandbox.EndDied || e.Kind == sandbox.EndRemoved); found != nil {
		e = found
	}
	e.Text = fmt.Sprintf("container %.12s %s", m.id, e.Text)
	if said, hint := m.said.message(); said != "" && e.Kind == sandbox.EndDied {
		e.Text, e.Hint = e.Text+": "+said, hint
	}
	if e.Kind == sandbox.EndRemoved && e.Hint == "" {
		e.Text = fmt.Sprintf("container %.12s is no more: somebody removed it, or the engine was started again", m.id)
		e.Hint = "start the run again"
	}
	return e
}

// fromState is the end of a container by what the engine has of it. Only from outside its first process gets a SIGKILL:
// see pid_namespaces(7).
func fromState(memory bool, status int) *sandbox.End {
	switch {
	case memory:
		return sandbox.MemoryEnd()
	case status == 128+int(syscall.SIGKILL):
		return killed("9")
	}
	return &sandbox.End{
		Kind: sandbox.EndDied, Text: fmt.Sprintf("ended with status %d", status),
		Hint: "its first process ended by itself: the log of the engine may say why",
	}
}

// killed is the end of a container by a signal from outside; empty: the engine does not say which.
func killed(signal string) *sandbox.End {
	text := "was stopped or killed, by somebody or by an engine that was started again"
	if signal != "" {
		text += " (signal " + signal + ")"
	}
	return &sandbox.End{Kind: sandbox.EndKilled, Text: text, Hint: "start the run again"}
}

// eventTime is the time that an engine may take to write down why a container ended: podman does so after the end.
const eventTime = time.Second

// history returns why the container ended, by what the engine remembers of it; nil: nothing. With wait, an engine that does
// not know yet is given [eventTime].
func (m made) history(ctx context.Context, b *Backend, wait bool) *sandbox.End {
	found := m.historyUntil(ctx, b, time.Now())
	if wait && (found == nil || found.Kind == sandbox.EndDied) {
		if later := m.historyUntil(ctx, b, time.Now().Add(eventTime)); later != nil {
			found = later
		}
	}
	return found
}

func (m made) historyUntil(ctx context.Context, b *Backend, now time.Time) *sandbox.End {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
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
				return sandbox.MemoryEnd()
			case "kill":
				found = killed(e.Actor.Attributes["signal"])
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
