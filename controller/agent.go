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
	"agentsh/internal/wire"
)

// stepAgentHost prepares the agent's program on the host.
const stepAgentHost = "agent_host"

// agentOnHost reports whether the agent's program runs on the host.
func (r *run) agentOnHost() bool { return r.program.outside && r.o.Agent.Outside == nil }

// sideOptions describe the host's side of the agent.
func (r *run) sideOptions() agenthost.Options {
	h, in := r.plan.harness, r.program.invocation
	rt, _ := r.program.runtime.(runtime.Outsider) // newProgram has checked it
	search, _ := lookupIn(r.o.Environ)("PATH")
	o := agenthost.Options{
		Runtime: rt, Argv: in.Argv, Search: search, RunID: r.result.RunID, Env: map[string]string{}, Credentials: r.plan.agent,
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

// checkAgent checks what can be known of an agent's program on the host before a sandbox exists.
func (r *run) checkAgent() error {
	if !r.agentOnHost() {
		return nil
	}
	at := r.plan.harness.Container.Harness.At
	o := r.sideOptions()
	if _, err := agenthost.Check(o); err != nil {
		return badConfig("install it, or name its file with command: [/PATH]", "%s: the agent's program: %w", at, err)
	}
	if o.Must && o.Session == nil {
		return badConfig("run it with agentctl run", "%s: confine_agent: always: there is no session here", at)
	}
	return nil
}

// agentHost opens the host's side of the agent.
func (r *run) agentHost(ctx context.Context) error {
	side, err := agenthost.Open(ctx, r.sideOptions())
	if err != nil {
		return fail(ExitSandbox, "confine_agent: never in container of the harness does without the session", err)
	}
	r.side = side
	about := side.About()
	r.result.AgentHost = &about
	if !about.Session {
		if len(r.program.hooks.Active) > 0 {
			r.program.dropHooks()
			r.result.Hooks = r.program.hooks
		}
		r.progress.warn("the agent's program %s runs on this host without a session of its own, with the rights of its user: %s",
			about.Program, about.Why)
	}
	return nil
}

// closeSide stores the log of the agent's session and ends it.
func (r *run) closeSide(ctx context.Context) error {
	if r.side == nil {
		return nil
	}
	side := r.side
	r.side = nil
	err := side.Stop(ctx)
	err = errors.Join(err, r.storeSide(ctx, side))
	return errors.Join(err, side.Close(ctx))
}

// storeSide stores the log of the agent's session with the record and the results, and counts its
// refusals.
func (r *run) storeSide(ctx context.Context, side *agenthost.Side) error {
	read := func(to func(io.Reader) error) error {
		log, err := side.AuditLog(ctx)
		if err != nil || log == nil {
			return err
		}
		return errors.Join(to(&bounded{ReadCloser: log, left: maxAudit}), log.Close())
	}
	counted := newCounts(nil)
	err := read(counted.read)
	r.result.AgentHost.Refusals = counted.refused
	err = errors.Join(err, read(func(log io.Reader) error {
		stored, err := r.journal.dir.Store(record.AgentAuditFile, log)
		return r.journal.stored(stored, err)
	}))
	if r.results != nil && r.results.made && !r.results.published {
		err = errors.Join(err, read(func(log io.Reader) error {
			r.result.AgentHost.Audit = record.AgentAuditFile
			return r.results.copyLog(record.AgentAuditFile, log)
		}))
	}
	if err != nil {
		return fmt.Errorf("log of the agent's session: %w", err)
	}
	return nil
}

// runOutside runs the agent's program on the host, with the tools of the sandbox.
func (l *agentLoop) runOutside(ctx context.Context, ex sandbox.Executor, to *listener) (wire.Exit, error) {
	in := l.program.invocation
	vars, env := runtime.Vars(in)
	cfg := l.tools
	cfg.Sandbox, cfg.Dir, cfg.Env, cfg.Run = l.sandbox, in.Start(), env, vars
	end, err := l.side.Serve(ctx, cfg)
	if err != nil {
		return wire.Exit{}, err
	}
	defer end()
	program, err := l.side.Prepare(ctx, in)
	if err != nil {
		return wire.Exit{}, err
	}
	l.ofProgram = program
	exit, err := runtime.RunOutside(ctx, ex, l.program.runtime, in, program.Command, to.add)
	if cause := l.side.Cause(); err != nil && cause != nil {
		err = fmt.Errorf("session of the agent's program: %w", sandbox.Explain(cause, err))
	}
	return exit, err
}
