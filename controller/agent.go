package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"agentsh/controller/agenthost"
	"agentsh/controller/harness"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/tools"
	"agentsh/internal/wire"
)

// stepAgentHost prepares the agent's program on the host.
const stepAgentHost = "agent_host"

// onHost reports whether the agent's program runs on the host.
func (p program) onHost(o Options) bool { return p.outside && o.Agent.Outside == nil }

// elsewhere is an agent outside of the sandbox.
type elsewhere struct {
	instead func(context.Context, Workplace) error // of the agent of the harness; nil: that works
	side    *agenthost.Side                        // of a program on the host; nil: it runs in the sandbox
	tools   tools.Config                           // of such a program
	program runtime.Outside                        // such a program, in its last iteration
}

// sideOptions describe the host's side of the agent.
func sideOptions(r *run) agenthost.Options {
	h, in := r.plan.harness, r.program.invocation
	rt, _ := r.program.runtime.(runtime.Outsider) // newProgram has checked it
	search, _ := lookupIn(r.o.Environ)("PATH")
	credentials := r.plan.agent
	if r.plan.helped != nil {
		credentials = r.plan.helped.ofAgent()
	}
	o := agenthost.Options{
		Runtime: rt, Argv: in.Argv, Search: search, RunID: r.result.RunID, Env: map[string]string{}, Credentials: credentials,
		Session: r.o.Agent.Session, Must: h.Container.ConfineAgent.V == harness.ConfineAlways, Hooks: len(in.Hooks) > 0, Files: r.program.besides,
		Scratch: filepath.Join(r.journal.dir.Work(), "agent"),
	}
	if len(o.Argv) == 0 {
		o.Argv = []string{rt.Traits().Program}
	}
	if h.Container.ConfineAgent.V == harness.ConfineNever {
		o.Session = nil
	}
	for name, v := range r.plan.values.Passed {
		o.Env[name] = v.V
	}
	for _, host := range h.Container.ModelHosts {
		o.Hosts = append(o.Hosts, host.V)
	}
	return o
}

// checkSide checks what can be known of an agent's program on the host before a sandbox exists.
func checkSide(p plan, o agenthost.Options) error {
	at := p.harness.Container.Harness.At
	if _, err := agenthost.Check(o); err != nil {
		return badConfig("install it, or name its file with command: [/PATH]", "%s: the agent's program: %w", at, err)
	}
	if o.Must && o.Session == nil {
		return badConfig("run it with agentctl run", "%s: confine_agent: always: there is no session here", at)
	}
	return nil
}

// openSide opens the host's side of the agent.
func openSide(r *run, ctx context.Context) error { //nolint:revive // a step
	side, err := agenthost.Open(ctx, sideOptions(r))
	if err != nil {
		return fail(ExitSandbox, "confine_agent: never in container of the harness does without the session", err)
	}
	r.box.side = side
	about := side.About()
	r.result.AgentHost = &about
	if about.Session {
		return followSide(ctx, r.plan, side)
	}
	if len(r.program.hooks.Active) > 0 {
		r.program.dropHooks()
		r.result.Hooks = r.program.hooks
	}
	if h := r.plan.helped; h != nil && h.expires() && len(h.ofAgent()) > 0 {
		r.progress.warn("the credentials of the agent's program expire, and without a session they are not renewed; " +
			"confine_agent: always refuses to run without one")
	}
	r.progress.warn("the agent's program %s runs on this host without a session of its own, with the rights of its user: %s",
		about.Program, about.Why)
	return nil
}

// followSide renews the credentials of the agent's program in its session.
func followSide(ctx context.Context, p plan, side *agenthost.Side) error {
	if p.helped == nil || !p.helped.expires() {
		return nil
	}
	if err := p.helped.follow(ctx, side); err != nil {
		return fail(ExitSandbox, "", fmt.Errorf("credentials of the agent's program: %w", err))
	}
	return nil
}

// closeSide stores the log of the agent's session with the record and the results, and ends it. A second
// call does nothing.
func (b *box) closeSide(ctx context.Context, j *journal, to *results, r *Result) error {
	if b.side == nil {
		return nil
	}
	side := b.side
	b.side = nil
	err := side.Stop(ctx)
	counted := newCounts(nil)
	kept := []func(io.Reader) error{counted.read, func(log io.Reader) error {
		stored, err := j.dir.Store(record.AgentAuditFile, log)
		return j.stored(stored, err)
	}}
	if to != nil && to.made && !to.published {
		kept = append(kept, func(log io.Reader) error { return to.copyLog(record.AgentAuditFile, log) })
	}
	for _, keep := range kept {
		log, openErr := side.AuditLog(ctx)
		if err = errors.Join(err, openErr); openErr != nil || log == nil {
			break
		}
		err = errors.Join(err, keep(&bounded{ReadCloser: log, left: maxAudit}), log.Close())
	}
	if r.AgentHost.Session && len(kept) == 3 {
		r.AgentHost.Audit = record.AgentAuditFile
	}
	r.AgentHost.Refusals = counted.refused
	if err = errors.Join(err, side.Close(ctx)); err != nil {
		return fmt.Errorf("session of the agent's program: %w", err)
	}
	return nil
}

// runOutside runs the agent's program on the host, with the tools of the sandbox.
func (l *agentLoop) runOutside(ctx context.Context, ex sandbox.Executor, to *listener) (wire.Exit, error) {
	in := l.program.invocation
	vars, env := runtime.Vars(in)
	cfg := l.elsewhere.tools
	cfg.Sandbox, cfg.Dir, cfg.Env, cfg.Run = l.sandbox, in.Start(), env, vars
	end, err := l.elsewhere.side.Serve(ctx, cfg)
	if err != nil {
		return wire.Exit{}, err
	}
	defer end()
	program, err := l.elsewhere.side.Prepare(ctx, in)
	if err != nil {
		return wire.Exit{}, err
	}
	l.elsewhere.program = program
	exit, err := runtime.RunOutside(ctx, ex, in, program.Command, l.program.runtime.Parser(to.add))
	if cause := l.elsewhere.side.Cause(); err != nil && cause != nil {
		err = fmt.Errorf("session of the agent's program: %w", sandbox.Explain(cause, err))
	}
	return exit, err
}
