package openshell

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"

	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/remote"
	pb "agentsh/internal/openshellpb"
)

// own are the directories of agentsh in a sandbox: its program, and its state. The home directory there is that of commands.
var own = map[string]string{"HOME": "/var/tmp/agentsh-home", "XDG_STATE_HOME": "/var/tmp/agentsh-state"}

// exec starts a shell in a sandbox, without files of a login.
func (b *Backend) exec(ctx context.Context, name string) (remote.Stream, error) {
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	calls, err := b.gateway.client.ExecSandboxInteractive(running)
	if err == nil {
		err = calls.Send(&pb.ExecSandboxInput{Payload: &pb.ExecSandboxInput_Start{Start: &pb.ExecSandboxRequest{
			Sandbox: name, Command: []string{"/bin/sh"}, NoLoginShell: true, WorkspaceScope: b.gateway.scope(), Environment: own,
		}}})
	}
	if err != nil || !stop() {
		cancel()
		return nil, b.cause(name, errors.Join(err, ctx.Err()))
	}
	var s *remote.Exec
	s, err = remote.NewExec(func() {
		t := time.NewTimer(cancelWait)
		defer t.Stop()
		select {
		case <-s.Gone():
		case <-t.C:
		}
		cancel()
	})
	if err != nil {
		cancel()
		return nil, err
	}
	go send(s, calls)
	go func() {
		defer cancel()
		receive(b, name, s, calls)
	}()
	return s, nil
}

// part is the size of what one message carries, in bytes.
const part = 64 << 10

// send carries what is written to the standard input of the exec. It ends with the stream.
func send(s *remote.Exec, calls grpc.BidiStreamingClient[pb.ExecSandboxInput, pb.ExecSandboxEvent]) {
	buf := make([]byte, part)
	for {
		n, err := s.Inner.Read(buf)
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
func receive(b *Backend, name string, s *remote.Exec, calls grpc.BidiStreamingClient[pb.ExecSandboxInput, pb.ExecSandboxEvent]) {
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
			_, _ = s.Inner.Write(x.Stdout.GetData()) // a stream that is closed reads nothing
		case *pb.ExecSandboxEvent_Stderr:
			_, _ = s.Messages.Write(x.Stderr.GetData()) // never fails
		case *pb.ExecSandboxEvent_Exit:
			exit = x.Exit.GetExitCode()
		}
	}
	why := b.cause(name, failed)
	if end := (*sandbox.End)(nil); failed == nil && exit > 0 && !errors.As(why, &end) {
		why = fmt.Errorf("the exec ended with exit code %d", exit)
	}
	s.End(why)
}
