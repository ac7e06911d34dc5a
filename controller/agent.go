package controller

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"agentsh/controller/agenthost"
	"agentsh/controller/harness"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/tools"
	"agentsh/internal/wire"
	"agentsh/supervisor/egress"
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
func closeSide(ctx context.Context, r *run) error {
	side := r.box.side
	if side == nil {
		return nil
	}
	r.box.side = nil
	part := newDelivery(ctx, r)
	err := part(side.Stop)
	var counted *counts
	err = errors.Join(err, part(func(ctx context.Context) error {
		counted = newCounts(nil)
		return storeSide(ctx, r, side, counted)
	}))
	r.result.AgentHost.Refusals = counted.refused
	if err = errors.Join(err, part(side.Close)); err != nil {
		return fmt.Errorf("session of the agent's program: %w", err)
	}
	return nil
}

// storeSide stores the log of the agent's session, and counts its events.
func storeSide(ctx context.Context, r *run, side *agenthost.Side, counted *counts) error {
	kept := []func(io.Reader) error{counted.read, func(log io.Reader) error {
		stored, err := r.journal.dir.Store(record.AgentAuditFile, log)
		return r.journal.stored(stored, err)
	}}
	if to := r.results; to != nil && to.made && !to.published {
		kept = append(kept, func(log io.Reader) error { return to.copyLog(record.AgentAuditFile, log) })
	}
	var errs []error
	for _, keep := range kept {
		log, err := side.AuditLog(ctx)
		if errs = append(errs, err); err != nil || log == nil {
			break
		}
		errs = append(errs, keep(&bounded{ReadCloser: log, left: maxAudit}), log.Close())
	}
	if r.result.AgentHost.Session && len(kept) == 3 {
		r.result.AgentHost.Audit = record.AgentAuditFile
	}
	return errors.Join(errs...)
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

// checkGateways refuses a gateway of env_passthrough that no credential of the agent's program may go to: its requests would have
// a placeholder.
func checkGateways(x *harness.Expanded, credentials []agenthost.Credential) harness.Problems {
	if len(credentials) == 0 || x.Container.ConfineAgent.V == harness.ConfineNever {
		return nil // it has the values
	}
	var ps harness.Problems
	for _, name := range x.Container.EnvPassthrough {
		u, err := url.Parse(x.Passed[name.V].V)
		if !agenthost.IsGateway(name.V) || err != nil || u.Host == "" {
			continue
		}
		p := harness.Problem{At: name.At, Severity: harness.Error, Rule: harness.RuleProvider}
		switch {
		case u.Scheme != "https":
			p.Message = "container.env_passthrough: " + name.V + " is an address without TLS, and a credential of a provider goes over TLS alone"
			p.Hint = "name an address with https, or pass the key by env_passthrough in place of the provider"
		case !slices.ContainsFunc(credentials, func(c agenthost.Credential) bool { return egress.Credential(c.Credential).May(u.Host) }):
			p.Message = fmt.Sprintf("container.env_passthrough: %s is %s, and no credential of the agent's program may go there", name.V, u.Host)
			p.Hint = endpointsHint(x, credentials, u)
		default:
			continue
		}
		ps = append(ps, p)
	}
	return ps
}

// endpointsHint is the line to write for a gateway.
func endpointsHint(x *harness.Expanded, credentials []agenthost.Credential, gateway *url.URL) string {
	provider := strings.TrimSuffix(credentials[0].Name, "."+credentials[0].Variable)
	list := slices.Clone(credentials[0].Endpoints)
	host := gateway.Hostname()
	if port := gateway.Port(); port != "" && port != "443" {
		host = net.JoinHostPort(host, port)
	}
	at := ""
	if known := x.Credentials[provider].Endpoints; len(known) > 0 {
		at = " at " + known[0].At.String()
	}
	endpoints := strings.Join(append(list, host), "', '")
	return fmt.Sprintf("if it may have the key, write endpoints: ['%s'] in the provider %s%s", endpoints, provider, at)
}
