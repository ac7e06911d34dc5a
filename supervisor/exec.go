package supervisor

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"syscall"
	"time"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/env"
	"agentsh/supervisor/cgroup"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify"
)

// killGrace is how long a command has between TERM and KILL.
const killGrace = 2 * time.Second

// Exec runs one command in the session and waits for it. The error is nil
// whenever the command's fate is known, a denial included; it is set when the
// session itself cannot go on. Cancelling ctx kills the command's whole tree;
// otherwise processes it leaves behind go on and are named in the result.
func (s *Session) Exec(ctx context.Context, req wire.ExecRequest, streams wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	if err := s.enter(); err != nil {
		return lost(err), wire.TreeEmpty{}, err
	}
	defer s.leave()
	defer s.denials.Delete(req.ID)
	streams.Exited = tellOnce(streams.Exited)
	c, exit := s.prepare(req)
	var left wire.TreeEmpty
	err := s.emitBegin(c, exit)
	if exit == nil && err == nil {
		exit, left, err = s.run(ctx, &c, streams)
	}
	if err != nil {
		exit = ref(lost(err))
	}
	err = errors.Join(err, s.emitEnd(c, *exit))
	last := explained(s, req.ID, *exit)
	if last.Hint == AuditHint {
		err = nil // the exit tells it; the session goes on once there is room
	}
	streams.Exited(last)
	return last, left, err
}

// tellOnce passes the first exit on; the last one when nothing ran.
func tellOnce(tell func(wire.Exit)) func(wire.Exit) {
	var once sync.Once
	return func(e wire.Exit) {
		if tell != nil {
			once.Do(func() { tell(e) })
		}
	}
}

// enter counts a command in, unless the session has ended.
func (s *Session) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil {
		return s.fault
	}
	s.commands.Add(1)
	s.count(1)
	return nil
}

// command is one request on its way: judged, with its environment built.
type command struct {
	req      wire.ExecRequest
	rules    *rules
	argv     []string
	file     string // as it is executed, inside
	path     string // what that resolves to
	cwd      string
	env      []string
	limits   policy.Limits
	group    *cgroup.Command // nil: no limit needs one
	decision policy.Decision
	diag     policy.Diagnostic
	decided  *notify.Decided // the operator's replacement of what was asked for
	set      env.Inject      // variables of that replacement: the operator's too
	written  *wire.OutputEnd // nil: it was not started
}

// prepare judges a request and builds its environment. A request that must not
// run comes back with the exit that says so.
func (s *Session) prepare(req wire.ExecRequest) (command, *wire.Exit) {
	c := command{req: req, rules: s.rules.Load(), argv: req.Argv, cwd: s.cwd(req.Cwd)}
	if len(c.argv) == 0 || c.argv[0] == "" {
		return c, spawnFailed(125, "no command given", "name a program after --")
	}
	if exit := checkTTY(req.TTY); exit != nil {
		return c, exit
	}
	if exit := s.judge(&c); exit != nil {
		return c, exit
	}
	if c.decision.Effect == policy.Redirect {
		if exit := s.redirect(&c); exit != nil {
			return c, exit
		}
	}
	c.limits = c.rules.policy.Limits(c.decision.Rule)
	return c, s.buildEnv(&c)
}

// interactive reports whether a command has a terminal.
func (c *command) interactive() bool { return c.req.TTY != nil }

// cwd is where a command starts: absolute and inside.
func (s *Session) cwd(asked string) string {
	if asked == "" {
		return s.cfg.Cwd
	}
	if path.IsAbs(asked) {
		return path.Clean(asked)
	}
	return path.Join(s.cfg.Cwd, asked)
}

// judge resolves the program and decides. The notification of the command's own
// execve decides again, on what the kernel then runs.
func (s *Session) judge(c *command) *wire.Exit {
	name := c.argv[0]
	if c.req.Program != "" {
		name = c.req.Program
	}
	program, err := s.find(c.rules, name, c.argv, c.cwd)
	if err != nil {
		return lookupFailed(name, err)
	}
	c.file, c.path = program.file, program.request.Path
	program.request.Interactive = c.interactive()
	c.decision, c.diag = c.rules.policy.Evaluate(&program.request)
	switch c.decision.Effect {
	case policy.Allow, policy.Audit, policy.Redirect, policy.Approve: // a person is asked at its execve
		return nil
	}
	return denied(c.diag)
}

// redirect replaces a command by what its rule names. The rule is the operator's
// word for the replacement: it is not judged again.
func (s *Session) redirect(c *command) *wire.Exit {
	to := c.decision.Rule.Redirect
	rest := c.argv[1:]
	if to.Args != nil {
		rest = to.Args
	}
	c.argv = append(append([]string{to.Command}, rest...), to.ArgsAppend...)
	c.set = env.Inject{Source: "rule " + c.decision.Rule.Name, Vars: to.Environment}
	program, err := s.find(c.rules, to.Command, c.argv, c.cwd)
	if err != nil {
		return lookupFailed(to.Command, err)
	}
	c.file, c.path = program.file, program.request.Path
	c.decided = &notify.Decided{Path: c.path, Argv: c.argv, Rule: ruleAt(c.diag)}
	return nil
}

func lost(err error) wire.Exit { return wire.Exit{Kind: wire.ExitLost, Message: err.Error()} }

func ref(e wire.Exit) *wire.Exit { return &e }

func denied(d policy.Diagnostic) *wire.Exit {
	return &wire.Exit{Kind: wire.ExitDenied, Message: d.Message, Hint: d.Hint, Rule: ruleAt(d)}
}

func spawnFailed(code int, message, hint string) *wire.Exit {
	return &wire.Exit{Kind: wire.ExitSpawnFailed, Code: code, Message: message, Hint: hint}
}

func ruleAt(d policy.Diagnostic) *wire.RuleAt {
	r := &wire.RuleAt{Name: d.Rule}
	if d.Pos.Line > 0 {
		r.At = d.Pos.String()
	}
	return r
}

// run starts a prepared command and waits for its end, its deadline or the
// caller's cancellation.
func (s *Session) run(ctx context.Context, c *command, streams wire.Streams) (*wire.Exit, wire.TreeEmpty, error) {
	p, err := s.openStreams(ctx, c, streams)
	if err != nil {
		return nil, wire.TreeEmpty{}, fmt.Errorf("streams: %w", err)
	}
	if err := c.makeGroup(s); err != nil {
		p.release()
		p.abandon()
		return nil, wire.TreeEmpty{}, err
	}
	process, err := s.init.Start(ctx, s.launchCommand(c, p))
	p.release()
	if err != nil {
		p.abandon()
		c.leaveGroup(s)
		s.loop.Forget(c.req.ID)
		return s.startError(c, err)
	}
	s.outputs.Go(func() {
		<-process.TreeEmpty()
		s.loop.Forget(c.req.ID)
	})
	if streams.Started != nil {
		streams.Started(wire.Started{})
	}
	p.start(streams.Stdin)
	exit, err := running{c, process, p}.wait(ctx, streams.Control)
	if err == nil {
		err = c.outOfMemory(exit)
	}
	s.outputs.Go(func() {
		<-process.TreeEmpty()
		c.leaveGroup(s)
	})
	if err == nil {
		exit = ref(explained(s, c.req.ID, *exit))
		streams.Exited(*exit) // what it wrote may take its time
	}
	rest, copyErr := p.finish()
	c.written = p.written()
	s.outputs.Go(func() { <-rest })
	if copyErr != nil {
		s.cfg.Log.Debug("output of a command was cut short", "command", c.req.ID, "error", copyErr)
	}
	return exit, wire.TreeEmpty{Leftover: process.Leftover()}, err
}

func (s *Session) launchCommand(c *command, p *pipes) launch.Command {
	return launch.Command{
		Path: c.file, Argv: c.argv, Dir: c.cwd, Env: c.env,
		Stdin: p.child[0], Stdout: p.child[1], Stderr: p.child[2], TTY: c.interactive(), Limits: c.rlimits(s.pidsGrouped),
		OnPID: func(pid int) error {
			info := notify.CommandInfo{ID: c.req.ID, Interactive: c.interactive(), Decided: c.decided, Rules: c.rules.notify()}
			return errors.Join(s.loop.Register(pid, info), c.confine(pid))
		},
	}
}

// startError turns a failed start into an exit: refused at its execve, not
// there, or no session to start it in.
func (s *Session) startError(c *command, err error) (*wire.Exit, wire.TreeEmpty, error) {
	if exit, found := s.denials.LoadAndDelete(c.req.ID); found {
		return exit.(*wire.Exit), wire.TreeEmpty{}, nil
	}
	var start *launch.StartError
	if errors.As(err, &start) {
		return spawnFailed(start.ExitCode(), start.Error(), ""), wire.TreeEmpty{}, nil
	}
	return nil, wire.TreeEmpty{}, err
}

// running is a started command with what it reads and writes.
type running struct {
	*command
	process *launch.Process
	pipes   *pipes
}

// wait follows a running command to its end.
func (r running) wait(ctx context.Context, control <-chan wire.Control) (*wire.Exit, error) {
	var timeout <-chan time.Time
	if d := r.deadline(); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		timeout = timer.C
	}
	for {
		select {
		case <-r.process.Exited():
			return ended(r.process)
		case <-timeout:
			if err := r.kill(); err != nil {
				return nil, err
			}
			exit, err := ended(r.process)
			if err == nil {
				exit.Kind, exit.Message = wire.ExitDeadline, fmt.Sprintf("ended after its deadline of %s", r.deadline())
			}
			return exit, err
		case <-ctx.Done():
			if err := r.kill(); err != nil {
				return nil, err
			}
			return ended(r.process)
		case m := <-control:
			if err := r.act(m); err != nil {
				return nil, err
			}
		}
	}
}

// maxSignal is the highest number of a signal. See signal(7).
const maxSignal = 64

// act carries out what the caller asks of a running command.
func (r running) act(m wire.Control) error {
	switch {
	case m.Kill:
		return r.kill()
	case m.Signal > 0 && m.Signal <= maxSignal:
		return r.process.Signal(syscall.Signal(m.Signal))
	case m.TTY != nil:
		_ = r.pipes.resize(m.TTY) // the terminal may have gone
	case m.CloseOutput != 0:
		r.pipes.closeOutput(m.CloseOutput)
	}
	return nil
}

// kill ends the whole tree. One with a terminal is told first that the terminal
// is gone: interactive shells ignore TERM.
func (r running) kill() error {
	if r.interactive() {
		if err := r.process.Signal(syscall.SIGHUP); err != nil {
			return err
		}
	}
	return r.process.Kill(killGrace)
}

// ended is how a command's first process ended.
func ended(process *launch.Process) (*wire.Exit, error) {
	status, err := process.Wait()
	if err != nil {
		return nil, err
	}
	exit := &wire.Exit{Kind: wire.ExitExited, Code: status.ExitCode(), Rusage: wire.Rusage{
		UserMicros: status.Rusage.User.Microseconds(), SystemMicros: status.Rusage.System.Microseconds(), MaxRSSBytes: status.Rusage.MaxRSS,
	}}
	if status.Signaled() {
		exit.Kind, exit.Code, exit.Signal = wire.ExitSignaled, 0, int(status.Signal())
	}
	return exit, nil
}

// emitBegin records that a command was asked for and what was decided. An event
// that cannot be written stops the command.
func (s *Session) emitBegin(c command, refused *wire.Exit) error {
	e := wire.Event{
		Type: wire.EventCommand, Phase: "begin", Command: c.req.ID, By: c.req.By, Argv: c.req.Argv, Path: c.path,
		Decision: c.decision.Effect.String(), Mechanism: "launch", Env: names(c.env),
	}
	if c.diag.Rule != "" {
		e.Rule, e.Message, e.Hint = ruleAt(c.diag), c.diag.Message, c.diag.Hint
	}
	if refused != nil {
		e.Decision, e.Message, e.Hint = policy.Deny.String(), refused.Message, refused.Hint
		if refused.Kind == wire.ExitSpawnFailed {
			e.Decision = ""
		}
	}
	return s.emit(e)
}

func (s *Session) emitEnd(c command, exit wire.Exit) error {
	return s.emit(
		wire.Event{Type: wire.EventCommand, Phase: "end", Command: c.req.ID, Argv: c.argv, Path: c.path, Exit: &exit, Output: c.written},
	)
}

// names are the names of an environment; values are never recorded.
func names(environment []string) []string {
	out := make([]string, len(environment))
	for i, e := range environment {
		out[i], _, _ = strings.Cut(e, "=")
	}
	return out
}
