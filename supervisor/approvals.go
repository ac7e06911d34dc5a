package supervisor

import (
	"context"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/approve"
	"agentsh/supervisor/launch"
)

// approvalSettings say who approves by a policy. channel says that somebody can
// answer over a channel.
func approvalSettings(a policy.Approvals, channel bool) approve.Settings {
	settings := approve.Settings{Timeout: a.Timeout}
	switch a.Via {
	case "tty":
		settings.Present = true
	case "channel":
		if !channel {
			settings.Closed = "nobody can answer this session over a channel: make it with 'agentsh session create'"
		}
	case "command":
		settings.Program = func(ctx context.Context, q wire.Question) (wire.Answer, error) {
			return askProgram(ctx, a.Command, q)
		}
	default:
		settings.Closed = "the policy has no approvals, which name who approves"
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
