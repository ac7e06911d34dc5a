package openshelldouble

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "agentsh/internal/openshellpb"
)

// calls is an interactive exec.
type calls = grpc.BidiStreamingServer[pb.ExecSandboxInput, pb.ExecSandboxEvent]

// ExecSandboxInteractive implements the service.
func (d *Double) ExecSandboxInteractive(c calls) error {
	first, err := c.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil || !known(first) || len(start.GetCommand()) == 0 {
		return status.Error(codes.InvalidArgument, "the first message is not the start of a command, or has unknown fields")
	}
	if err := scoped(start.GetWorkspaceScope()); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(c.Context())
	defer cancel()
	d.mu.Lock()
	b, err := d.find(start.GetSandbox())
	if err != nil {
		d.mu.Unlock()
		return err
	}
	b.next++
	n := b.next
	b.cancels[n] = cancel
	vars := d.providers.placeholders(b.record.GetSpec())
	how := confinement{Dir: b.dir, Lib: d.lib, Outer: d.outer, Policy: b.record.GetSpec().GetPolicy().GetFilesystem()}
	d.mu.Unlock()
	defer d.with(func() { delete(b.cancels, n) })
	for name, value := range start.GetEnvironment() {
		if rest, is := strings.CutPrefix(value, "/var/tmp/"); is && how.Outer == "" { // the directory /var/tmp of a sandbox is one of its own
			value = filepath.Join(b.dir, rest)
		}
		vars = append(vars, name+"="+value)
	}
	return b.run(ctx, c, start.GetCommand(), vars, how)
}

// run runs a command until it ends or the stream does.
func (b *box) run(ctx context.Context, c calls, argv, vars []string, how confinement) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	home := "/sandbox"
	if how.Outer == "" {
		home = b.dir
	}
	cmd.Dir = home
	if err := how.confined(cmd, argv); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	cmd.Env = []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + home,
		"HTTPS_PROXY=" + Proxy, "https_proxy=" + Proxy, "NO_PROXY=127.0.0.1,localhost,::1", // some of those that OpenShell gives
	}
	cmd.Env = append(cmd.Env, vars...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	var sending sync.Mutex
	send := func(e *pb.ExecSandboxEvent) error {
		sending.Lock()
		defer sending.Unlock()
		return c.Send(e)
	}
	cmd.Stdout = events(func(p []byte) error {
		return send(&pb.ExecSandboxEvent{Payload: &pb.ExecSandboxEvent_Stdout{Stdout: &pb.ExecSandboxStdout{Data: p}}})
	})
	cmd.Stderr = events(func(p []byte) error {
		return send(&pb.ExecSandboxEvent{Payload: &pb.ExecSandboxEvent_Stderr{Stderr: &pb.ExecSandboxStderr{Data: p}}})
	})
	if err := cmd.Start(); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	go func() { // ends with the stream
		for {
			m, err := c.Recv()
			if err != nil || m.GetStart() != nil {
				_ = in.Close()
				return
			}
			if _, err := in.Write(m.GetStdin()); err != nil && !errors.Is(err, io.ErrClosedPipe) {
				return
			}
		}
	}()
	_ = cmd.Wait() // its state says it
	if ctx.Err() != nil {
		return status.Error(codes.Aborted, "the sandbox has ended")
	}
	code := cmd.ProcessState.ExitCode()
	return send(
		&pb.ExecSandboxEvent{Payload: &pb.ExecSandboxEvent_Exit{Exit: &pb.ExecSandboxExit{ExitCode: int32(code)}}},
	) //nolint:gosec // a byte
}

// events sends what is written.
type events func([]byte) error

func (e events) Write(p []byte) (int, error) { return len(p), e(p) }
