package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/channel"
)

// executor prepares a command in a pod. It is carried by a WebSocket, and by SPDY through what
// does not know WebSockets.
func (b *Backend) executor(p pod, argv []string) (remotecommand.Executor, error) {
	config := b.cluster.own()
	u, err := b.execURL(p, argv)
	if err != nil {
		return nil, err
	}
	first, err := remotecommand.NewWebSocketExecutor(config, "GET", u.String())
	if err != nil {
		return nil, err
	}
	second, err := remotecommand.NewSPDYExecutor(config, "POST", u)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(first, second, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// exec starts agentsh serve --stdio in a pod.
func (b *Backend) exec(p pod) (remote.Stream, error) {
	e, err := b.executor(p, []string{program, "serve", "--stdio"})
	if err != nil {
		return nil, err
	}
	ours, theirs, err := channel.Pair()
	if err != nil {
		return nil, err
	}
	inner, err := channel.FromFile(theirs)
	if err = errors.Join(err, theirs.Close()); err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &stream{Conn: ours, cancel: cancel, gone: make(chan struct{})}
	go s.carry(ctx, e, inner, b, p)
	return s, nil
}

// stream is an exec in a pod and its standard streams.
type stream struct {
	net.Conn
	cancel   context.CancelFunc
	messages sandbox.Tail  // its standard error
	gone     chan struct{} // closed when the exec has ended
	cause    error         // set before gone is closed
	once     sync.Once
}

// carry copies bytes between the pod and the other end of the stream until the exec ends. It
// then finds out why.
func (s *stream) carry(ctx context.Context, e remotecommand.Executor, inner net.Conn, b *Backend, p pod) {
	defer close(s.gone)
	defer s.cancel()
	err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: inner, Stdout: &discarding{to: inner}, Stderr: &s.messages})
	_ = inner.Close()
	asking, done := context.WithTimeout(context.Background(), askTime)
	defer done()
	var end *sandbox.End
	why := b.endedSoon(asking, p, err)
	last := s.messages.LastMessage()
	switch {
	case errors.As(why, &end) && !end.Passes():
		s.cause = end
	case strings.Contains(last, "memory was full"):
		end = memoryEnd()
		end.Text = last
		s.cause = end
	case last != "":
		s.cause = errors.New(last)
	case ctx.Err() == nil:
		s.cause = why
	}
}

// askTime is the time for the API server to say what happened to a pod.
const askTime = 5 * time.Second

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

// Cause implements [remote.Stream]. It is the end of the pod, or the last message of agentsh.
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
	s.once.Do(s.cancel)
	<-s.gone
}

// run runs a command in a pod.
func (b *Backend) run(ctx context.Context, p pod, stdin io.Reader, argv ...string) (string, error) {
	e, err := b.executor(p, argv)
	if err != nil {
		return "", err
	}
	var out sandbox.Tail
	var said sandbox.Tail
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &out, Stderr: &said})
	if err == nil {
		return out.LastMessage(), nil
	}
	if last := said.LastMessage(); last != "" {
		err = fmt.Errorf("%w: %s", err, last)
	}
	return "", err
}
