package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"

	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
)

// words are what the first process of a container says. The engine forgets it with the container.
type words struct {
	sandbox.Tail // standard error

	ready chan struct{} // closed when the process is ready
	ended chan struct{} // closed when its streams have ended
}

// listen attaches to the container, which has not started. The streams end with it.
func (c *container) listen(ctx context.Context) (*words, error) {
	got, err := c.b.engine.ContainerAttach(context.WithoutCancel(ctx), c.made.id,
		client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true})
	if err != nil {
		return nil, err
	}
	w := &words{ready: make(chan struct{}), ended: make(chan struct{})}
	go func() { // ends with the container
		defer close(w.ended)
		defer got.Close()
		_, _ = stdcopy.StdCopy(&readiness{found: sync.OnceFunc(func() { close(w.ready) })}, &w.Tail, got.Reader)
	}()
	return w, nil
}

// readiness is a writer that finds [wire.ContainerReady].
type readiness struct {
	seen  []byte // at most as long as that
	found func()
}

func (r *readiness) Write(p []byte) (int, error) {
	r.seen = append(r.seen, p[:min(len(p), len(wire.ContainerReady)-len(r.seen))]...)
	if string(r.seen) == wire.ContainerReady {
		r.found()
	}
	return len(p), nil
}

// readyTime bounds the wait for the first process. After it the process is asked.
const readyTime = time.Minute

// await waits until the first process of the container is ready. The error has its message.
func (c *container) await(ctx context.Context) error {
	w, late := c.made.said, time.NewTimer(readyTime)
	defer late.Stop()
	select {
	case <-w.ready:
		return nil
	case <-late.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the first process of the container: %w", context.Cause(ctx))
	case <-w.ended:
	}
	said, hint := w.message()
	if said == "" {
		return c.made.ended(ctx, c.b, errors.New("the first process of the container has ended, and has not said why"))
	}
	return &sandbox.End{Kind: sandbox.EndDied, Text: fmt.Sprintf("container %.12s has ended: %s", c.made.id, said), Hint: hint}
}

// message is the last message of the process, and what to do. It waits a moment for the end of the streams.
func (w *words) message() (said, hint string) {
	if w == nil {
		return "", ""
	}
	select {
	case <-w.ended:
	case <-time.After(askTime):
	}
	said = w.LastMessage()
	if strings.Contains(said, layout.Config) {
		return said, "the file is of the image: mend it there, or name one of this machine with --agentsh-config"
	}
	return said, "the process has the variables of the image: look at its ENV"
}
