package notify

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
	"agentsh/supervisor/notify/engine"
)

// verify lets the exec go ahead and has the new program checked before it runs.
func (h *execs) verify(c *call, a *attempt) (answer, error) {
	if c.engine.HoldsThread() && h.follows.traces(c.TID, a.process.Process) {
		return h.leaveToFollower(c, a)
	}
	a.given = true
	return noAnswer, c.engine.Execute(&c.Call, &execution{execs: h, call: c, attempt: a})
}

// execution is an exec that goes ahead. See [engine.Execution].
type execution struct {
	execs *execs
	call  *call
	*attempt
	followed bool // the follower closes the attempt
}

// Process is the number of the caller's process.
func (x *execution) Process() int { return x.process.PID }

// Proceed answers the call. Its thread then waits for the exec, which has no deadline.
func (x *execution) Proceed() bool {
	if !x.call.reply(proceed) {
		return false
	}
	x.call.untimed.Store(true)
	return true
}

// Fail denies the call.
func (x *execution) Fail(err error) { x.call.fault(err) }

// Accept checks the new program.
func (x *execution) Accept(p engine.Program) error {
	x.execs.follows.removeProcess(x.process.Process)
	return x.execs.accept(p, x.attempt)
}

// Quick reports whether the call was answered directly: its files are known.
func (x *execution) Quick() bool { return x.call.direct && !x.follows() }

// Killed writes the event of a program that was not accepted.
func (x *execution) Killed(err error) { x.execs.reportKilled(x.attempt, err) }

// Follower follows an interpreter to its script.
func (x *execution) Follower() engine.Follower {
	if !x.follows() {
		return nil
	}
	x.followed = true
	return x.execs.newFollower(x.attempt)
}

// Done closes the attempt.
func (x *execution) Done() {
	if !x.followed {
		x.close()
	}
}

// leaveToFollower lets an exec go ahead whose thread is traced by a follower. The follower
// checks what it becomes.
func (h *execs) leaveToFollower(c *call, a *attempt) (answer, error) {
	if !c.valid() || !h.follows.setNext(c.TID, a) {
		return noAnswer, errGone
	}
	return proceed, nil
}

// trust lets the exec continue without verification. The decision uses what was
// read before, which other threads may have changed since. The next observation
// of the process shows whether the exec succeeded.
func (h *execs) trust(a *attempt) (answer, error) {
	img, err := a.image()
	if err != nil {
		return noAnswer, err
	}
	e := a.event(a.decisionName())
	e.Mechanism = "seccomp, unverified"
	if err := h.record.permit(e); err != nil {
		return noAnswer, err
	}
	program := a.files[len(a.files)-1]
	h.images.expect(a.process.Process, expected{img, program.Stat.Dev, program.Stat.Ino})
	return proceed, nil
}

// reportKilled writes the event of a program that was killed before its first
// instruction. A process that somebody else has killed has none: nothing was denied.
func (h *execs) reportKilled(a *attempt, err error) {
	if errors.Is(err, errGone) {
		return
	}
	e := a.event("deny")
	e.Mechanism, e.Message = "ptrace", err.Error()
	if errors.Is(err, errSwitched) {
		e.Op = "exec_switched"
	} else {
		e.Type = wire.EventFault
	}
	h.record.report(e)
}

// reportUnjudged writes the event of a program that nobody evaluated. Its process is held
// at its exec stop, where it is killed then.
func (h *execs) reportUnjudged(pid int) {
	e := wire.Event{
		Type: wire.EventExec, Op: "exec_unjudged", Decision: "deny", Mechanism: "ptrace", Process: &wire.Process{PID: pid},
		Message: "the exec was not evaluated: its process was killed before the program began",
	}
	if t, err := target.OpenView(pid); err == nil { // it is killed all the same
		defer t.Close()
		if id, err := t.Identity(); err == nil {
			e.Process, e.Path = process(t, id), t.Exe()
			if caller, err := h.images.of(t, id); err == nil {
				e.Command, e.Process.Exe = caller.command.ID, caller.path
			}
		}
	}
	h.record.report(e)
}

// errSwitched means that the program is not the one that was evaluated.
var errSwitched = errors.New("the exec was switched while it was evaluated")

// accept checks the program at its exec stop and records it. The error is errGone if the
// check failed because the process was killed meanwhile.
func (h *execs) accept(p engine.Program, a *attempt) error {
	err := h.check(p, a)
	if err != nil && !errors.Is(err, errSwitched) && !target.Held(p.PID) {
		return errGone
	}
	return err
}

// check compares the program at its exec stop with the one that was evaluated. If the
// arguments differ, it evaluates them again. It completes the environment and records the
// program.
func (h *execs) check(p engine.Program, a *attempt) error {
	if p.PID != a.process.PID {
		return fmt.Errorf("%w: process %d became the program, not %d", errSwitched, p.PID, a.process.PID)
	}
	s, err := target.OpenStoppedBy(p.PID, p.Registers)
	if err != nil {
		return err
	}
	defer s.Close()
	if program := a.files[len(a.files)-1]; !program.Same(s.Dev, s.Ino) {
		return fmt.Errorf("%w: the program is not %s", errSwitched, program.Path)
	}
	if err := a.review(s); err != nil {
		return err
	}
	if err := a.approval.check(a.originals()); err != nil {
		return err
	}
	if err := completeEnvironment(s, a.rules.Inject); err != nil {
		return err
	}
	if err := a.lookForNodeOptions(s); err != nil {
		return err
	}
	img, err := a.image()
	if err != nil {
		return err
	}
	if err := h.record.permit(a.event(a.decisionName())); err != nil {
		return err
	}
	if !a.direct {
		quickPrograms.add(a)
	}
	return h.images.executed(a.process.Process, img)
}

// image is the program that the process runs after a successful exec.
func (a *attempt) image() (*image, error) {
	from := a.caller.image
	if a.caller.deepest != nil {
		from = a.caller.deepest
	}
	img, err := from.next(a.files[0].Path)
	if err == nil {
		img.pending, err = a.pendingScripts()
	}
	return img, err
}

// decisionName is the decision as events name it.
func (a *attempt) decisionName() string {
	switch {
	case a.approval != nil:
		return "approve"
	case a.decided == nil && a.decision.Effect == policy.Audit:
		return "audit"
	}
	return "allow"
}

// review checks what can have changed since the evaluation: the content of the program,
// which nobody can write to from here on, and the arguments.
func (a *attempt) review(s *target.Stopped) error {
	same, err := a.sameContent()
	if err != nil {
		return err
	}
	argv := s.Args
	if n := len(a.prefix); n > 0 {
		if len(argv) < n || !slices.Equal(argv[:n], a.prefix) {
			return fmt.Errorf("%w: it is not run as the script %s", errSwitched, a.called)
		}
		argv = append([]string{a.argv[0]}, argv[n:]...)
	}
	if same && slices.Equal(argv, a.argv) {
		return nil
	}
	if a.loader {
		return fmt.Errorf("%w: the dynamic loader has other arguments", errSwitched)
	}
	a.argv = argv
	a.nameArgs()
	if err := a.evaluate(); err != nil {
		return err
	}
	if !a.permits() {
		return fmt.Errorf("%w: the program or its arguments are denied now", errSwitched)
	}
	return nil
}

// sameContent reports whether the program still has the identity that was evaluated.
func (a *attempt) sameContent() (bool, error) {
	if a.rules.Identify == nil {
		return true, nil
	}
	last := len(a.files) - 1
	program := &a.request.Program
	if last > 0 {
		program = &a.request.Chain[last-1]
	}
	fixed, err := a.files[last].ReadOnly()
	if err != nil {
		return false, err
	}
	if fixed {
		shebangs.add(a.files[last], a.firstBytes[last])
		return true, nil
	}
	if err := a.files[last].Refresh(); err != nil {
		return false, err
	}
	like, err := a.rules.Identify(a.files[last])
	if err != nil {
		return false, err
	}
	same := like.Loader == a.loader && like.MultiCall == program.MultiCall && slices.Equal(like.Same, program.Same)
	program.Same, program.MultiCall = like.Same, like.MultiCall
	return same, nil
}

// completeEnvironment adds the injected variables that are missing.
func completeEnvironment(s *target.Stopped, inject []string) error {
	if len(inject) == 0 {
		return nil
	}
	missing, err := s.Missing(inject)
	if err != nil {
		return fmt.Errorf("read the environment: %w", err)
	}
	if len(missing) == 0 {
		return nil
	}
	if err := s.SetEnv(missing); err != nil {
		return fmt.Errorf("complete the environment: %w", err)
	}
	return nil
}

func errnoOf(err error) (unix.Errno, bool) { return engine.ErrnoOf(err) }
