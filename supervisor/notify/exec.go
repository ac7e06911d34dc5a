package notify

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/seccomp/target"
)

// attempt is one execve on its way through reading, judging and verifying.
type attempt struct {
	rules   Rules
	process target.Identity
	caller  caller
	subject
	verdict
	kept bool // another thread closes it
	// arrived is set when the program has opened what it was named.
	arrived *atomic.Bool
}

func (a *attempt) closeUnlessKept() {
	if !a.kept {
		a.close()
	}
}

// verdict is a decision with its explanation.
type verdict struct {
	decision   policy.Decision
	diagnostic policy.Diagnostic
	judged     *Judged   // set when the supervisor had decided before
	approval   *approval // set when a person allowed it
}

func (w *worker) execve(c *call) error {
	return w.exec(c, execArgs{dir: unix.AT_FDCWD, path: c.Args[0], argv: c.Args[1]})
}

func (w *worker) execveat(c *call) error {
	if h := w.loop.follows.opens(c.TID); h != nil {
		return w.handOverFile(c, h)
	}
	const check = 0x10000 // AT_EXECVE_CHECK: the kernel tells whether it would, and does nothing
	flags := int(uint32(c.Args[4]))
	if flags&^(unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|check) != 0 {
		return fmt.Errorf("execveat flags %#x: %w", flags, unix.EINVAL)
	}
	return w.exec(c, execArgs{dir: int(int32(c.Args[0])), path: c.Args[1], argv: c.Args[2], flags: flags})
}

// execArgs are the arguments that execve and execveat share. Each integer
// argument is as wide as the kernel takes it.
type execArgs struct {
	dir        int
	path, argv uint64
	flags      int
}

// exec judges one execve and answers it.
func (w *worker) exec(c *call, args execArgs) error {
	t, err := target.OpenCall(c.TID)
	if err != nil {
		return err
	}
	defer t.Close()
	if root := w.loop.cfg.Root; root != nil {
		t.Within(root)
	}
	a := &attempt{rules: c.rules}
	a.memory = &w.loop.memory
	a.holds = !w.loop.cfg.Unverified
	apart := false
	defer func() {
		if !apart {
			a.closeUnlessKept()
		}
	}()
	if err := w.read(t, a, args); err != nil {
		if !c.valid() {
			return errGone
		}
		if errno, ok := hopeless(err); ok {
			c.deny(errno) // there is nothing to judge
			return nil
		}
		return err
	}
	if err := w.describe(t, a); err != nil {
		return err
	}
	if !c.valid() {
		return errGone
	}
	if err := w.judge(a); err != nil {
		return err
	}
	if a.decision.Effect == policy.Approve && a.judged == nil && w.loop.cfg.Ask != nil {
		if w.loop.cfg.Unverified {
			return fmt.Errorf("an approval covers what is verified, and no exec is verified here: %w", unix.EACCES)
		}
		apart = true
		w.loop.apart(c, a, (*worker).approveExec)
		return nil
	}
	if !a.permits() {
		w.loop.emit(w.event(a, "deny")) // first: what follows from the answer comes later in the log
		c.deny(unix.EACCES)
		return nil
	}
	if w.loop.cfg.Unverified {
		return w.trust(c, a)
	}
	if a.follows() && !w.loop.follows.of(c.TID, a.process.Process) {
		apart = true
		w.loop.apart(c, a, (*worker).verify)
		return nil
	}
	return w.verify(c, a)
}

// apart carries an exec out on a thread of its own, so that no worker waits. It
// takes over a.
func (l *Loop) apart(c *call, a *attempt, do func(*worker, *call, *attempt) error) {
	if most := int64(l.cfg.Apart); l.aside.Add(1) > most {
		l.aside.Add(-1)
		a.closeUnlessKept()
		c.fault(fmt.Errorf("%d scripts of this session are followed or wait for a person: let some end first: %w", most, unix.EAGAIN))
		return
	}
	l.running.Go(func() {
		defer l.aside.Add(-1)
		w := &worker{loop: l}
		err := onThread(func() error {
			defer func() { w.recovered(c, recover()) }()
			defer a.closeUnlessKept()
			if as := l.cfg.As; as != nil {
				if err := as.become(); err != nil {
					return err
				}
			}
			return do(w, c, a)
		})
		if err != nil {
			c.fault(err)
		}
	})
}

// hopeless reports errors that the kernel would give as well, with its errno.
func hopeless(err error) (unix.Errno, bool) {
	errno, ok := asErrno(err)
	switch errno {
	case unix.ENOENT, unix.ENOTDIR, unix.ENAMETOOLONG, unix.EBADF, unix.ELOOP:
		return errno, ok
	}
	return errno, ok && errors.Is(err, errNoProgram)
}

// read reads the path and the arguments and finds the files they mean.
func (w *worker) read(t *target.Target, a *attempt, args execArgs) error {
	name, err := t.String(args.path, target.MaxPath)
	if err != nil {
		return fmt.Errorf("read the path of the program: %w", err)
	}
	if name == "" && args.flags&unix.AT_EMPTY_PATH == 0 {
		return unix.ENOENT
	}
	if a.argv, err = t.Strings(args.argv, target.ExecCaps); err != nil {
		return fmt.Errorf("read the arguments: %w", err)
	}
	if len(a.argv) == 0 {
		a.argv = []string{""} // as the kernel makes it, since Linux 5.18
	}
	return a.find(t, target.Lookup{Dir: args.dir, Path: name, NoFollow: args.flags&unix.AT_SYMLINK_NOFOLLOW != 0})
}

// describe makes the request for the policy.
func (w *worker) describe(t *target.Target, a *attempt) error {
	var err error
	if a.process, err = t.Identity(); err != nil {
		return err
	}
	if a.caller, err = w.loop.images.of(t, a.process); err != nil {
		return err
	}
	if own := a.caller.command.Rules; a.caller.depth < 0 && own.Evaluate != nil {
		a.rules = own
	}
	if err := a.receive(t); err != nil {
		return err
	}
	if err := a.describe(t, a.rules.Identify); err != nil {
		return err
	}
	a.request.Interactive = a.caller.command.Interactive
	return nil
}

// judge decides the request. An orphan is judged at both ends of where it can
// stand, and the stricter decision counts: a person is asked about what neither
// denies.
func (w *worker) judge(a *attempt) error {
	a.request.Argv = a.argv
	if j := a.caller.command.Judged; j != nil && a.caller.depth < 0 && j.Path == a.request.Path && slices.Equal(j.Argv, a.argv) {
		a.verdict = verdict{judged: j}
		return nil
	}
	a.verdict = verdict{}
	for i, place := range []*image{a.caller.image, a.caller.deepest} {
		if place == nil {
			continue
		}
		next, err := place.next(a.files[0].Path)
		if err != nil {
			return err
		}
		a.request.Depth, a.request.Parent, a.request.Ancestors = next.depth, place.path, next.ancestors
		decision, diagnostic := a.rules.Evaluate(&a.request)
		if i > 0 && a.decision.Effect == policy.Approve && decision.Permits() {
			continue
		}
		a.verdict = verdict{decision: decision, diagnostic: diagnostic}
		if !decision.Permits() && decision.Effect != policy.Approve {
			return nil
		}
	}
	return nil
}

func (v verdict) permits() bool {
	return v.judged != nil || v.approval != nil || v.decision.Permits()
}

// event describes the attempt for the audit log.
func (w *worker) event(a *attempt, decision string) wire.Event {
	e := wire.Event{
		Type:      wire.EventExec,
		Session:   w.loop.cfg.Session,
		Command:   a.caller.command.ID,
		Process:   &wire.Process{PID: a.process.PID, StartTime: a.process.Start, Exe: a.caller.path, Cwd: a.request.Cwd},
		Argv:      shorten(a.argv),
		Path:      a.files[0].Path,
		Target:    a.payloadPath(),
		Decision:  decision,
		Mechanism: "seccomp",
		Message:   a.diagnostic.Message,
		Hint:      a.diagnostic.Hint,
		Rule:      ruleAt(a.diagnostic),
	}
	if a.judged != nil {
		e.Rule = a.judged.Rule
	}
	if a.approval != nil {
		e.By = a.approval.by
	}
	if to := redirect(a.decision); to != nil {
		replacement := strings.Join(append(append([]string{to.Command}, to.Args...), to.ArgsAppend...), " ")
		e.Hint = strings.TrimSpace(e.Hint + " use instead: " + replacement)
	}
	return e
}

func ruleAt(d policy.Diagnostic) *wire.RuleAt {
	at := &wire.RuleAt{Name: d.Rule}
	if d.Pos.Line > 0 {
		at.At = d.Pos.String()
	}
	return at
}

func redirect(d policy.Decision) *policy.RedirectTo {
	if d.Effect != policy.Redirect || d.Rule == nil {
		return nil
	}
	return d.Rule.Redirect
}

// Bounds of an argument vector in an event.
const (
	eventArgs  = 256
	eventBytes = 16 << 10
)

// shorten cuts an argument vector for an event and says so.
func shorten(argv []string) []string {
	total := 0
	for i, arg := range argv {
		total += len(arg)
		if i == eventArgs || total > eventBytes {
			rest := fmt.Sprintf("... %d more arguments", len(argv)-i)
			return append(append([]string{}, argv[:i]...), rest)
		}
	}
	return argv
}
