package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/supervisor/launch"
	"agentsh/supervisor/notify"
	"agentsh/supervisor/streams"
)

// Exec runs one command in the session and waits for it. The error is nil if the
// end of the command is known, as after a denial; it is set if the session itself
// cannot go on. Cancelling ctx kills the command with all its processes.
// Otherwise processes that it leaves behind go on, and the result names them.
func (s *Session) Exec(ctx context.Context, req wire.ExecRequest, caller wire.Streams) (wire.Exit, wire.TreeEmpty, error) {
	if err := s.life.enter(); err != nil {
		return lostExit(err), wire.TreeEmpty{}, err
	}
	defer s.life.leave()
	defer s.journal.denial(req.ID)
	caller.Exited = once(caller.Exited)
	c, exit := s.preparation().command(req)
	var left wire.TreeEmpty
	err := s.journal.emit(c.beginEvent(exit))
	if exit == nil && err == nil {
		exit, left, err = s.run(ctx, &c, caller)
	}
	if err != nil {
		exit = ref(lostExit(err))
		s.settle(*exit)
		exit = ref(s.explained(req.ID, *exit))
	}
	err = errors.Join(err, s.journal.emit(c.endEvent(*exit)))
	last := s.explained(req.ID, *exit)
	if last.Hint == AuditHint {
		err = nil // the exit says it; the session goes on once there is space
	}
	caller.Exited(last)
	return last, left, err
}

// once passes the first exit on.
func once(report func(wire.Exit)) func(wire.Exit) {
	var first sync.Once
	return func(e wire.Exit) {
		if report != nil {
			first.Do(func() { report(e) })
		}
	}
}

// preparation is what a command is prepared with now.
func (s *Session) preparation() preparation {
	r := s.rules.Load()
	return preparation{
		rules: r,
		programs: programs{
			observer: s.confined.Observer(s.init.PID()), path: strings.Split(s.cfg.Environment.Path, ":"), identify: r.identify,
		},
		env:      s.env,
		cwd:      s.cfg.Cwd,
		unjudged: s.confined.unjudged(),
	}
}

// run starts a prepared command and waits for its end, its deadline or the
// caller's cancellation.
func (s *Session) run(ctx context.Context, c *command, caller wire.Streams) (*wire.Exit, wire.TreeEmpty, error) {
	p, err := streams.Open(ctx, s.init, c.req.TTY, caller, s.confined.user.Owner())
	if err != nil {
		return nil, wire.TreeEmpty{}, fmt.Errorf("streams: %w", err)
	}
	group, err := s.groups.command(c.decision.Rule, c.limits)
	if err != nil {
		p.Release()
		p.Abandon()
		return nil, wire.TreeEmpty{}, err
	}
	process, err := s.start(ctx, c, p, group)
	p.Release()
	if err != nil {
		p.Abandon()
		group.remove()
		s.loop.Forget(c.req.ID)
		s.journal.reasons.Forget(c.req.ID)
		exit, err := notStarted(s.journal.denial(c.req.ID), err)
		return exit, wire.TreeEmpty{}, err
	}
	s.life.outputs.Go(func() {
		<-process.TreeEmpty()
		s.loop.Forget(c.req.ID)
		s.journal.reasons.Forget(c.req.ID)
	})
	if caller.Started != nil {
		caller.Started(wire.Started{Dropped: c.dropped})
	}
	p.Start(caller.Stdin)
	requested := time.Duration(c.req.DeadlineMS) * time.Millisecond
	exit, err := running{process, p, c.launch.TTY, deadline(requested, c.limits.CommandTimeout), caller.Gone}.wait(ctx, caller.Control)
	if err == nil {
		err = group.explainKill(exit)
	}
	s.life.outputs.Go(func() {
		<-process.TreeEmpty()
		group.remove()
	})
	if err == nil {
		s.settle(*exit)
		exit = ref(s.explained(c.req.ID, *exit))
		caller.Exited(*exit) // the rest of its output may take longer
	}
	rest, copyErr := p.Finish()
	c.written = p.Written()
	s.life.outputs.Go(func() { <-rest })
	if copyErr != nil {
		s.cfg.Log.Debug("output of a command was cut short", "command", c.req.ID, "error", copyErr)
	}
	return exit, wire.TreeEmpty{Leftover: process.Leftover()}, err
}

// start starts a command. Its first process is registered with the loop and in
// its group before the execve.
func (s *Session) start(ctx context.Context, c *command, p *streams.Streams, group commandGroup) (*launch.Process, error) {
	l := c.launch
	l.Stdin, l.Stdout, l.Stderr, l.Limits = p.Child[0], p.Child[1], p.Child[2], rlimits(c.limits, s.groups.countsPids())
	l.OnPID = func(pid int) error {
		info := notify.CommandInfo{ID: c.req.ID, Interactive: l.TTY, Decided: c.decided, Rules: c.rules.notify()}
		var err error
		if c.req.Reasons {
			err = s.journal.reasons.Register(c.req.ID, pid)
		}
		return errors.Join(err, s.loop.Register(pid, info), group.add(pid))
	}
	return s.init.Start(ctx, l)
}

// processHint says how to go on without processes.
const processHint = "the limit of processes is reached: end commands, or raise 'ulimit -u' or the pids limit of the container"

// notStarted is the exit of a command that did not start: it was denied at its
// execve, or the kernel refused it. Any other error is one of the session.
func notStarted(denial *wire.Exit, err error) (*wire.Exit, error) {
	if denial != nil {
		return denial, nil
	}
	var start *launch.StartError
	if errors.As(err, &start) {
		hint := ""
		if start.Errno == unix.EAGAIN {
			hint = processHint
		}
		return spawnFailed(start.ExitCode(), start.Error(), hint), nil
	}
	return nil, err
}

// explained is the exit of a command, which says so if agentsh itself ended it.
func (s *Session) explained(id string, exit wire.Exit) wire.Exit {
	return explained(exit, s.journal.failure(id), s.life.why())
}
