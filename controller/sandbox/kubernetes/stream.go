package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
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
	ctx, cancel := context.WithCancel(context.Background())
	s, err := remote.NewExec(cancel)
	if err != nil {
		cancel()
		return nil, err
	}
	go func() {
		defer cancel()
		carry(ctx, s, e, b, p)
	}()
	return s, nil
}

// carry copies bytes between the pod and the other end of the stream until the exec ends. It
// then finds out why.
func carry(ctx context.Context, s *remote.Exec, e remotecommand.Executor, b *Backend, p pod) {
	err := e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: s.Inner, Stdout: s.Output(), Stderr: &s.Messages})
	_ = s.Inner.Close()
	asking, done := context.WithTimeout(context.Background(), askTime)
	defer done()
	why := b.endedSoon(asking, p, err)
	if end := (*sandbox.End)(nil); ctx.Err() != nil && !errors.As(why, &end) {
		why = nil // it was stopped
	}
	s.End(why)
}

// askTime is the time for the API server to say what happened to a pod.
const askTime = 5 * time.Second

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
