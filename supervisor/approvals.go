package supervisor

import (
	"context"
	"fmt"
	"path/filepath"

	"agentsh/internal/paths"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/approve"
	"agentsh/supervisor/launch"
)

// approvalSettings say who approves by a policy. channel says that somebody can
// answer over a channel. A program in one of the governed directories never approves:
// commands can change it. openTerminals says that commands can open the terminals of who approves.
func approvalSettings(a policy.Approvals, channel, openTerminals bool, governed []wire.Governed) approve.Settings {
	settings := approve.Settings{Timeout: a.Timeout}
	switch a.Via {
	case "tty":
		if openTerminals {
			settings.Closed = "commands of this session can read and write the terminal that would ask, as it has no namespaces " +
				"and agentsh is not root. Write 'approvals: {via: command, command: [/path/to/program]}' in the policy, " +
				"or run agentsh where sessions have namespaces"
			break
		}
		settings.Present = true
	case "channel":
		if !channel {
			settings.Closed = "nobody can answer this session over a channel: make it with 'agentsh session create'"
		}
	case "webhook":
		settings.Present, settings.Absent = true, "agentctl sends the webhook: run the agent with 'agentctl run'"
	case "command":
		if name := changeable(a.Command, governed); name != "" {
			settings.Closed = fmt.Sprintf("approvals.command: commands can change %s: move it out of the workspace", name)
			break
		}
		settings.Program = func(ctx context.Context, q wire.Question) (wire.Answer, error) {
			return askProgram(ctx, a.Command, q)
		}
	default:
		settings.Closed = "the policy has no approvals, which name who approves"
	}
	return settings
}

// changeable returns a file of an approval command that lies in a governed directory; empty:
// none does. Links are followed.
func changeable(argv []string, governed []wire.Governed) string {
	for _, name := range argv {
		if !filepath.IsAbs(name) {
			continue // an argument; the program's name is absolute
		}
		for _, g := range governed {
			if paths.Within(paths.Resolve(name), paths.Resolve(g.Backing)) || paths.Within(filepath.Clean(name), g.Backing) {
				return name
			}
		}
	}
	return ""
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
