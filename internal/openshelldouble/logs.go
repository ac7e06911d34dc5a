package openshelldouble

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "agentsh/internal/openshellpb"
)

// MaxLog is how many lines the log of a sandbox has.
const MaxLog = 2000

// Log adds lines to the logs of all sandboxes, those that are made later as well.
func (d *Double) Log(lines ...*pb.SandboxLogLine) {
	d.with(func() { d.logs = append(d.logs, lines...) })
}

// LogLine is a line of a log as OpenShell's supervisor sends it.
func LogLine(level, target, message string) *pb.SandboxLogLine {
	return &pb.SandboxLogLine{
		Source: "sandbox", Level: level, Target: target, Message: message,
		EventTime: &timestamppb.Timestamp{Seconds: 1775014132, Nanos: 118000000},
	}
}

// GetSandboxLogs implements the service.
func (d *Double) GetSandboxLogs(_ context.Context, r *pb.GetSandboxLogsRequest) (*pb.GetSandboxLogsResponse, error) {
	if err := scoped(r.GetWorkspaceScope()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sandboxes[r.GetSandbox()] == nil {
		return nil, status.Errorf(codes.NotFound, "sandbox %s", r.GetSandbox())
	}
	if len(r.GetSources()) > 0 || r.GetMinLevel() != "" || r.GetLines() > 0 {
		return nil, status.Error(codes.Unimplemented, "the double has no filters")
	}
	logs := d.logs[max(0, len(d.logs)-MaxLog):]
	return &pb.GetSandboxLogsResponse{Logs: logs, BufferTotal: uint32(len(logs))}, nil //nolint:gosec // at most MaxLog
}
