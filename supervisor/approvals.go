package supervisor

import (
	"context"

	"agentsh/internal/wire"
	"agentsh/supervisor/approve"
	"agentsh/supervisor/launch"
)

// Approvals are the questions of this session that wait for a person.
func (s *Session) Approvals() *approve.Queue { return s.approvals }

// approvalSettings say who is asked by the policy that holds now.
func (s *Session) approvalSettings() approve.Settings {
	a := s.policy().Approvals()
	settings := approve.Settings{Timeout: a.Timeout}
	switch a.Via {
	case "tty":
		settings.Present = true
	case "channel":
		if !s.cfg.Channel {
			settings.Closed = "nobody can answer this session over a channel: make it with 'agentsh session create'"
		}
	case "command":
		settings.Program = func(ctx context.Context, q wire.Question) (wire.Answer, error) {
			return askProgram(ctx, a.Command, q)
		}
	default:
		settings.Closed = "the policy has no approvals, which say who is asked"
	}
	return settings
}

// askProgram has the operator's program answer: it reads the question as JSON
// and allows by its exit status 0.
func askProgram(ctx context.Context, argv []string, q wire.Question) (wire.Answer, error) {
	allow, err := launch.Approve(ctx, argv, q)
	if err != nil {
		return wire.Answer{}, err
	}
	return wire.Answer{Allow: allow, By: "program " + argv[0]}, nil
}

// operation is what a session's callers ask of it as a whole.
type operation struct {
	session *Session
	vars    map[string]string // of policies
}

// Approvals is what waits for a person.
func (o operation) Approvals() []wire.Pending { return o.session.approvals.List() }

// Connections are those that are open to the outside.
func (o operation) Connections() []wire.Connection {
	return o.session.network.Connections()
}

// Follow follows what waits. See [approve.Queue.Follow].
func (o operation) Follow(ctx context.Context, fn func([]wire.Pending) error) error {
	return o.session.approvals.Follow(ctx, fn)
}

// Answer answers one question.
func (o operation) Answer(a wire.ApprovalAnswer) error { return o.session.approvals.Answer(a) }
