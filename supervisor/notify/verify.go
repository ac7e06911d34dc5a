package notify

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
)

// verify lets the exec go ahead under ptrace and looks at what it became before
// that runs. The order matters: the interrupt is requested before the call
// continues, so that exactly one stop follows, at the exec when it succeeds and
// with its errno set when it fails. See PTRACE_SEIZE in ptrace(2).
func (w *worker) verify(c *call, a *attempt) error {
	if w.loop.follows.of(c.TID, a.process.Process) {
		return w.leave(c, a)
	}
	if err := w.seize(c.TID); err != nil {
		return err
	}
	err := errGone
	if c.valid() {
		err = interrupt(c.TID)
	}
	if err == nil && c.claim() {
		c.answer(w.loop.cfg.Listener.Continue(c.ID))
		w.current.Store(nil) // answered: no deadline from here on
		w.settle(a)
		return nil
	}
	c.fault(err) // before the release: an unanswered thread does not stop
	w.release()
	return nil
}

// leave lets an exec go ahead whose thread another one traces already, and looks
// at.
func (w *worker) leave(c *call, a *attempt) error {
	if !c.valid() {
		return errGone
	}
	if !w.loop.follows.give(c.TID, a) {
		return errGone
	}
	if c.claim() {
		c.answer(w.loop.cfg.Listener.Continue(c.ID))
	}
	return nil
}

// trust lets the exec go ahead on what was read before it, which other threads
// may have changed since. Whether it succeeds shows when the process is looked
// at again.
func (w *worker) trust(c *call, a *attempt) error {
	img, err := a.image()
	if err != nil {
		return err
	}
	e := w.event(a, a.word())
	e.Mechanism = "seccomp, unverified"
	if err := w.loop.cfg.Emit(e); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	program := a.files[len(a.files)-1]
	w.loop.images.expect(a.process.Process, expected{img, program.Stat.Dev, program.Stat.Ino})
	if c.claim() {
		c.answer(w.loop.cfg.Listener.Continue(c.ID))
	}
	return nil
}

// settle waits for what became of the exec and lets it run or kills it.
func (w *worker) settle(a *attempt) {
	if !w.wait() {
		return
	}
	w.loop.follows.passed(a.process.Process)
	if err := w.accept(w.stopped, a); err != nil {
		w.kill()
		w.refused(a, err)
		return
	}
	if a.follows() {
		w.follow(a)
		return
	}
	w.detach()
}

// refused tells of a program that was killed before its first instruction.
func (w *worker) refused(a *attempt, err error) {
	e := w.event(a, "deny")
	e.Mechanism, e.Message = "ptrace", err.Error()
	if errors.Is(err, errSwitched) {
		e.Op = "exec_switched"
	} else {
		e.Type = wire.EventFault
	}
	w.loop.emit(e)
}

// errSwitched says that the program is not the one that was judged.
var errSwitched = errors.New("the exec was switched while it was judged")

// accept compares the program at its exec stop with what was judged, judges its
// arguments again if they differ, completes its environment and records it.
func (w *worker) accept(pid int, a *attempt) error {
	if pid != a.process.PID {
		return fmt.Errorf("%w: process %d became the program, not %d", errSwitched, pid, a.process.PID)
	}
	s, err := target.OpenStopped(pid)
	if err != nil {
		return err
	}
	defer s.Close()
	if program := a.files[len(a.files)-1]; !program.Same(s.Dev, s.Ino) {
		return fmt.Errorf("%w: the program is not %s", errSwitched, program.Path)
	}
	if err := w.review(s, a); err != nil {
		return err
	}
	if err := a.approval.holds(a.originals()); err != nil {
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
	if err := w.loop.cfg.Emit(w.event(a, a.word())); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return w.loop.images.executed(a.process.Process, img)
}

// image is what the process runs after a successful exec.
func (a *attempt) image() (*image, error) {
	from := a.caller.image
	if a.caller.deepest != nil {
		from = a.caller.deepest
	}
	img, err := from.next(a.files[0].Path)
	if err == nil {
		img.carried, err = a.carries()
	}
	return img, err
}

// word is the decision as events name it.
func (a *attempt) word() string {
	switch {
	case a.approval != nil:
		return "approve"
	case a.judged == nil && a.decision.Effect == policy.Audit:
		return "audit"
	}
	return "allow"
}

// review looks again at what can have changed since it was judged: the content
// of the program, which from here on nobody can write to, and the arguments,
// which are now the ones that the program has.
func (w *worker) review(s *target.Stopped, a *attempt) error {
	same, err := w.sameContent(a)
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
	if err := w.judge(a); err != nil {
		return err
	}
	if !a.permits() {
		return fmt.Errorf("%w: what it is now is denied", errSwitched)
	}
	return nil
}

// sameContent reports whether the program is still like what it was judged as.
func (w *worker) sameContent(a *attempt) (bool, error) {
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
		firstBytes.keep(a.files[last], a.heads[last])
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

// completeEnvironment puts back the variables that every program has.
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

func asErrno(err error) (unix.Errno, bool) {
	var errno unix.Errno
	ok := errors.As(err, &errno)
	return errno, ok
}
