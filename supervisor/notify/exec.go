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

// attempt is one execve that is evaluated and verified.
type attempt struct {
	rules   Rules
	process target.Identity
	caller  caller
	subject
	verdict
	given bool // to a follower, which closes it
	// arrived is set when the program has opened the files that it was started for.
	arrived *atomic.Bool
}

// closeUnlessGiven closes the attempt, unless a follower does.
func (a *attempt) closeUnlessGiven() {
	if !a.given {
		a.close()
	}
}

// verdict is a decision with its explanation.
type verdict struct {
	decision   policy.Decision
	diagnostic policy.Diagnostic
	decided    *Decided  // set when the supervisor decided before
	approval   *approval // set when a person allowed the exec
}

// execs answers execve and execveat, and follows scripts.
type execs struct {
	unverified bool // see [Config]
	root       *target.Root
	images     *images
	follows    *follows
	budget     copyBudget
	record     *recorder
	approver   *approver
	tasks      *tasks
}

func (h *execs) execve(c *call) (answer, error) {
	return h.answer(c, execArgs{dir: unix.AT_FDCWD, path: c.Args[0], argv: c.Args[1]})
}

func (h *execs) execveat(c *call) (answer, error) {
	if file := h.follows.removeOpen(c.TID); file != nil {
		return file.answer()
	}
	const check = 0x10000 // AT_EXECVE_CHECK: the kernel only reports whether it would execute the file
	flags := int(uint32(c.Args[4]))
	if flags&^(unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW|check) != 0 {
		return noAnswer, fmt.Errorf("execveat flags %#x: %w", flags, unix.EINVAL)
	}
	return h.answer(c, execArgs{dir: int(int32(c.Args[0])), path: c.Args[1], argv: c.Args[2], flags: flags})
}

// execArgs are the arguments that execve and execveat share. Each integer
// argument is as wide as the kernel takes it.
type execArgs struct {
	dir        int
	path, argv uint64
	flags      int
}

// answer answers one execve: it reads the call, evaluates the policy and verifies what
// the process becomes.
func (h *execs) answer(c *call, args execArgs) (answer, error) {
	t, err := target.OpenCall(c.TID)
	if err != nil {
		return noAnswer, err
	}
	defer t.Close()
	if h.root != nil {
		t.Within(h.root)
	}
	a := &attempt{rules: c.rules}
	a.budget = &h.budget
	a.copies, a.direct = !h.unverified, c.direct
	moved := false // to another thread, which closes a
	defer func() {
		if !moved {
			a.closeUnlessGiven()
		}
	}()
	if err := a.read(t, args); err != nil {
		if errors.Is(err, errWaits) {
			return noAnswer, err
		}
		if !c.valid() {
			return noAnswer, errGone
		}
		if errno, ok := kernelErrno(err); ok {
			return deny(errno), nil // there is nothing to evaluate
		}
		return noAnswer, err
	}
	if err := h.describe(t, a); err != nil {
		return noAnswer, err
	}
	if !c.valid() {
		return noAnswer, errGone
	}
	if err := a.evaluate(); err != nil {
		return noAnswer, err
	}
	return h.apply(c, a, &moved)
}

// apply applies a decision. It sets moved when another thread took a over.
func (h *execs) apply(c *call, a *attempt, moved *bool) (answer, error) {
	onThread := func(f func(*call, *attempt) (answer, error)) (answer, error) {
		*moved = true
		c.direct, a.direct = false, false
		return h.tasks.answerOnThread(c, func(c *call) (answer, error) { return f(c, a) }, a.closeUnlessGiven)
	}
	switch {
	case a.decided == nil && h.approver.decides(a.decision):
		if h.unverified {
			return noAnswer, fmt.Errorf("an approval covers what is verified, and no exec is verified here: %w", unix.EACCES)
		}
		return onThread(h.approve)
	case !a.permits():
		h.record.report(a.event("deny")) // before the answer: its consequences come later in the log
		return deny(unix.EACCES), nil
	case h.unverified:
		return h.trust(a)
	case a.follows() && c.engine.HoldsThread() && !h.follows.traces(c.TID, a.process.Process):
		return onThread(h.verify)
	}
	return h.verify(c, a)
}

// kernelErrno returns the errno of an error that the kernel would return as well.
func kernelErrno(err error) (unix.Errno, bool) {
	errno, ok := errnoOf(err)
	switch errno {
	case unix.ENOENT, unix.ENOTDIR, unix.ENAMETOOLONG, unix.EBADF, unix.ELOOP:
		return errno, ok
	}
	return errno, ok && errors.Is(err, errNoProgram)
}

// read reads the path and the arguments and finds the files they mean.
func (a *attempt) read(t *target.Target, args execArgs) error {
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
func (h *execs) describe(t *target.Target, a *attempt) error {
	var err error
	if a.process, err = t.Identity(); err != nil {
		return err
	}
	if a.caller, err = h.images.of(t, a.process); err != nil {
		return err
	}
	if own := a.caller.command.Rules; a.caller.depth < 0 && own.Evaluate != nil {
		a.rules = own
	}
	if a.direct && a.caller.image != nil && len(a.caller.pending) > 0 {
		return errWaits
	}
	if err := a.copyPending(t); err != nil {
		return err
	}
	if err := a.describe(t, a.rules.Identify); err != nil {
		return err
	}
	a.request.Interactive = a.caller.command.Interactive
	return nil
}

// evaluate decides the request. The place of an orphan in the process tree is not known
// exactly, so its request is evaluated at both ends of the possible range. The stricter
// decision counts. Approval is asked only if neither denies.
func (a *attempt) evaluate() error {
	a.request.Argv = a.argv
	if j := a.caller.command.Decided; j != nil && a.caller.depth < 0 && j.Path == a.request.Path && slices.Equal(j.Argv, a.argv) {
		a.verdict = verdict{decided: j}
		return nil
	}
	a.verdict = verdict{}
	for i, from := range []*image{a.caller.image, a.caller.deepest} {
		if from == nil {
			continue
		}
		next, err := from.next(a.files[0].Path)
		if err != nil {
			return err
		}
		a.request.Depth, a.request.Parent, a.request.Ancestors = next.depth, from.path, next.ancestors
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
	return v.decided != nil || v.approval != nil || v.decision.Permits()
}

// event describes the attempt for the audit log.
func (a *attempt) event(decision string) wire.Event {
	e := wire.Event{
		Type:      wire.EventExec,
		Command:   a.caller.command.ID,
		Process:   &wire.Process{PID: a.process.PID, StartTime: a.process.Start, Exe: a.caller.path, Cwd: a.request.Cwd},
		Argv:      shorten(a.argv),
		Path:      a.files[0].Path,
		Target:    a.payloadPath(),
		Decision:  decision,
		Mechanism: "seccomp",
		Message:   a.diagnostic.Message,
		Hint:      a.diagnostic.Hint,
		Rule:      a.diagnostic.At(),
	}
	if called := a.request.Called; called != e.Path {
		e.Called = called
	}
	e.Chain = ChainPaths(a.request.Chain)
	if a.decided != nil {
		e.Rule = a.decided.Rule
	}
	if a.approval != nil {
		e.By = a.approval.by
	}
	if to := redirect(a.decision); to != nil {
		replacement := strings.Join(append(append([]string{to.Command}, to.Args...), to.ArgsAppend...), " ")
		e.Hint = "run instead: " + replacement
	}
	return e
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

// shorten cuts an argument vector for an event. Its last argument then says how many are missing.
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
