package supervisor

import (
	"path"
	"strings"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify"
	"agentsh/supervisor/streams"
)

// command is one request with what was decided about it.
type command struct {
	req      wire.ExecRequest
	rules    *rules // that decided
	decision policy.Decision
	diag     policy.Diagnostic
	limits   policy.Limits
	decided  *notify.Decided // the replacement by a redirect: its execve needs no decision
	set      env.Inject      // variables of that replacement
	path     string          // file that the program's path resolves to
	called   string          // the program's path, if it is another one
	chain    []string        // interpreters of a script, and the program of a dynamic loader
	launch   launch.Command  // without descriptors and limits
	dropped  []wire.DroppedVar
	written  *wire.OutputEnd // nil: it was not started
}

// preparation is what the commands of a session are prepared with.
type preparation struct {
	rules    *rules
	programs programs
	env      *environments
	cwd      string // the default
	unjudged bool   // no execve is decided later
}

// command decides on a request and builds its environment. exit is why it does
// not run; nil: it does.
func (p preparation) command(req wire.ExecRequest) (c command, exit *wire.Exit) {
	for {
		c, exit = p.first(req)
		missing := exit != nil && exit.Kind == wire.ExitSpawnFailed && exit.Code == exitNotFound
		if !missing || len(req.Otherwise) == 0 {
			return c, exit
		}
		next := req.Otherwise[0]
		req.Argv, req.Program, req.Otherwise = next.Argv, string(next.Program), req.Otherwise[1:]
	}
}

// first is command for the words of a request that are to be tried first.
func (p preparation) first(req wire.ExecRequest) (c command, exit *wire.Exit) {
	c = command{req: req, rules: p.rules, launch: launch.Command{Argv: req.Argv, Dir: p.dir(req.Cwd), TTY: req.TTY != nil}}
	if len(req.Argv) == 0 || req.Argv[0] == "" {
		return c, spawnFailed(125, "no command given", "name a program after --")
	}
	if permitted, why := p.rules.policy.SSH().Permits(req.Via); !permitted {
		c.diag = why
		return c, denied(why)
	}
	if err := streams.CheckTTY(req.TTY); err != nil {
		return c, spawnFailed(125, err.Error(), "letters, digits and ._+- make one, at most 64")
	}
	if exit := p.decide(&c); exit != nil {
		return c, exit
	}
	if c.decision.Effect == policy.Redirect {
		if exit := p.redirect(&c); exit != nil {
			return c, exit
		}
	}
	c.limits = p.rules.policy.Limits(c.decision.Rule)
	var err error
	if c.launch.Env, c.dropped, err = p.env.build(req, p.rules.policy, c.decision.Rule, c.set); err != nil {
		return c, spawnFailed(125, err.Error(), "")
	}
	return c, nil
}

// dir is the directory where a command starts: absolute and inside.
func (p preparation) dir(requested string) string {
	if requested == "" {
		return p.cwd
	}
	if path.IsAbs(requested) {
		return path.Clean(requested)
	}
	return path.Join(p.cwd, requested)
}

// decide finds the program and evaluates the policy. The notification of the
// command's own execve decides again, on the file that the kernel then executes.
func (p preparation) decide(c *command) *wire.Exit {
	name := c.req.Argv[0]
	if c.req.Program != "" {
		name = c.req.Program
	}
	request, exit := p.find(c, name)
	if exit != nil {
		return exit
	}
	request.Interactive = c.launch.TTY
	c.decision, c.diag = p.rules.policy.Evaluate(&request)
	switch c.decision.Effect {
	case policy.Approve: // a person is asked at its execve
		if p.unjudged {
			return denied(policy.Diagnostic{Message: "an approval covers what is verified, and no exec is verified here",
				Hint: "run agentsh where there is an engine", Rule: c.diag.Rule, Pos: c.diag.Pos})
		}
		return nil
	case policy.Allow, policy.Audit, policy.Redirect:
		return nil
	}
	return denied(c.diag)
}

// redirect replaces a command by the one that its rule names. The replacement is
// not evaluated again: the operator chose it.
func (p preparation) redirect(c *command) *wire.Exit {
	to := c.decision.Rule.Redirect
	rest := c.req.Argv[1:]
	if to.Args != nil {
		rest = to.Args
	}
	c.launch.Argv = append(append([]string{to.Command}, rest...), to.ArgsAppend...)
	c.set = env.Inject{Source: "rule " + c.decision.Rule.Name, Vars: to.Environment}
	if _, exit := p.find(c, to.Command); exit != nil {
		return exit
	}
	c.decided = &notify.Decided{Path: c.path, Argv: c.launch.Argv, Rule: c.diag.At()}
	return nil
}

// find finds the program that a command executes.
func (p preparation) find(c *command, name string) (policy.CommandRequest, *wire.Exit) {
	found, err := p.programs.find(name, c.launch.Argv, c.launch.Dir)
	if err != nil {
		return policy.CommandRequest{}, lookupFailed(name, err)
	}
	c.launch.Path, c.path = found.file, found.request.Path
	if c.called = found.request.Called; c.called == c.path {
		c.called = ""
	}
	c.chain = notify.ChainPaths(found.request.Chain)
	return found.request, nil
}

// beginEvent records that a command was requested and what was decided. refused
// is why it does not run; nil: it does.
func (c *command) beginEvent(refused *wire.Exit) wire.Event {
	e := wire.Event{
		Type: wire.EventCommand, Phase: "begin", Command: c.req.ID, By: c.req.By,
		Argv: c.req.Argv, Path: c.path, Called: c.called, Chain: c.chain,
		Decision: c.decision.Effect.String(), Mechanism: "launch", Env: names(c.launch.Env),
	}
	if c.diag.Rule != "" {
		e.Rule, e.Message, e.Hint = c.diag.At(), c.diag.Message, c.diag.Hint
	}
	if refused != nil {
		e.Decision, e.Message, e.Hint = policy.Deny.String(), refused.Message, refused.Hint
		if refused.Kind == wire.ExitSpawnFailed {
			e.Decision = ""
		}
	}
	return e
}

// endEvent records how a command ended.
func (c *command) endEvent(exit wire.Exit) wire.Event {
	return wire.Event{
		Type: wire.EventCommand, Phase: "end", Command: c.req.ID, Argv: c.launch.Argv, Path: c.path, Exit: &exit, Output: c.written,
	}
}

// names are the names of an environment; values are never recorded.
func names(environment []string) []string {
	out := make([]string, len(environment))
	for i, e := range environment {
		out[i], _, _ = strings.Cut(e, "=")
	}
	return out
}

func ref(e wire.Exit) *wire.Exit { return &e }

func denied(d policy.Diagnostic) *wire.Exit {
	return &wire.Exit{Kind: wire.ExitDenied, Message: d.Message, Hint: d.Hint, Rule: d.At()}
}

func spawnFailed(code int, message, hint string) *wire.Exit {
	return &wire.Exit{Kind: wire.ExitSpawnFailed, Code: code, Message: message, Hint: hint}
}
