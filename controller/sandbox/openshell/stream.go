package openshell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"google.golang.org/grpc"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	"agentsh/internal/channel"
	pb "agentsh/internal/openshellpb"
)

// stream is an interactive exec and its standard streams.
type stream struct {
	net.Conn
	cancel   context.CancelFunc
	messages sandbox.Tail  // its standard error
	gone     chan struct{} // closed when the exec has ended
	cause    error         // set before gone is closed
}

// exec starts a shell in a sandbox, without files of a login.
func (b *Backend) exec(ctx context.Context, name string) (remote.Stream, error) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	calls, err := b.gateway.client.ExecSandboxInteractive(running)
	if err == nil {
		err = calls.Send(&pb.ExecSandboxInput{Payload: &pb.ExecSandboxInput_Start{Start: &pb.ExecSandboxRequest{
			Sandbox: name, Command: []string{"/bin/sh"}, NoLoginShell: true, WorkspaceScope: b.gateway.scope(),
		}}})
	}
	if err != nil || !stop() {
		cancel()
		return nil, b.cause(name, errors.Join(err, ctx.Err()))
	}
	ours, theirs, err := channel.Pair()
	if err != nil {
		cancel()
		return nil, err
	}
	inner, err := channel.FromFile(theirs)
	if err = errors.Join(err, theirs.Close()); err != nil {
		cancel()
		return nil, errors.Join(err, ours.Close())
	}
	s := &stream{Conn: ours, cancel: cancel, gone: make(chan struct{})}
	go s.send(calls, inner)
	go s.receive(b, name, calls, inner)
	return s, nil
}

// part is the size of what one message carries, in bytes.
const part = 64 << 10

// send carries what is written to the standard input of the exec. It ends with the stream.
func (s *stream) send(calls grpc.BidiStreamingClient[pb.ExecSandboxInput, pb.ExecSandboxEvent], inner net.Conn) {
	buf := make([]byte, part)
	for {
		n, err := inner.Read(buf)
		if n > 0 && calls.Send(&pb.ExecSandboxInput{Payload: &pb.ExecSandboxInput_Stdin{Stdin: buf[:n]}}) != nil {
			return // receive has the reason
		}
		if err != nil {
			_ = calls.CloseSend() // as above
			return
		}
	}
}

// receive carries the output of the exec, and finds out why it ended.
func (s *stream) receive(
	b *Backend,
	name string,
	calls grpc.BidiStreamingClient[pb.ExecSandboxInput, pb.ExecSandboxEvent],
	inner net.Conn,
) {
	defer close(s.gone)
	defer s.cancel()
	var failed error
	exit := int32(-1)
	for {
		e, err := calls.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				failed = err
			}
			break
		}
		switch x := e.GetPayload().(type) {
		case *pb.ExecSandboxEvent_Stdout:
			_, _ = inner.Write(x.Stdout.GetData()) // a stream that is closed reads nothing
		case *pb.ExecSandboxEvent_Stderr:
			_, _ = s.messages.Write(x.Stderr.GetData()) // never fails
		case *pb.ExecSandboxEvent_Exit:
			exit = x.Exit.GetExitCode()
		}
	}
	_ = inner.Close()
	var end *sandbox.End
	last := s.messages.LastMessage()
	switch why := b.cause(name, failed); {
	case errors.As(why, &end) && !end.Passes() && end.Kind != sandbox.EndRefused:
		s.cause = end
	case last != "":
		s.cause = errors.New(last)
	case failed != nil:
		s.cause = why
	case exit > 0:
		s.cause = fmt.Errorf("the exec ended with exit code %d", exit)
	}
}

// Gone implements [remote.Stream].
func (s *stream) Gone() <-chan struct{} { return s.gone }

// Cause implements [remote.Stream].
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
	t := time.NewTimer(cancelWait)
	defer t.Stop()
	select {
	case <-s.gone:
	case <-t.C:
	}
	s.cancel()
	<-s.gone
}
