package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"agentsh/controller/harness"
	"agentsh/controller/image"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/tools"
	"agentsh/controller/webhook"
	"agentsh/internal/statedir"
)

// Options are the inputs of [Run].
type Options struct {
	Harness    string // file
	Load       harness.Options
	Repo       string // the target repository; [Hold] does without
	Out        string // directory of the results, created or replaced; not used by [Hold]
	AllowDirty bool   // run from HEAD even if tracked files differ from it
	Backend    sandbox.Backend
	State      statedir.Dir
	Model      ModelOptions
	Gateway    string // directory of the local gateway, see provider.OpenLocal
	Caller
	Progress func(Update)
	Force    context.Context // its end stops the extraction after a stopped run; may be nil
	Agent    AgentOptions
	EndOptions
	Images image.Config // where images are
}

// EndOptions say how a run ends.
type EndOptions struct {
	// KeepSandbox is how long the sandbox outlives the controller if the agent fails
	// or the controller is killed. 0: it is deleted at once.
	KeepSandbox time.Duration
	// WaitForSpace is how long the run waits, in all, when a disk of this machine is full while the
	// agent's work is taken out and delivered. 0: it fails at once.
	WaitForSpace time.Duration
}

// Caller is what the process has that runs an agent.
type Caller struct {
	Environ []string // environment, NAME=value
	// Command is the command line, and Dir the current directory, for [TakeOver] in another
	// process. Empty: nobody takes the run over.
	Command []string
	Dir     string
	Member  Member
	// Approvals answers the questions of policies with approvals: {via: webhook}; nil: nobody does.
	Approvals *webhook.Sender
	// Observe makes what follows the run; nil: nobody does. The result is that of the start.
	Observe func(Result, Member) Observer
}

// Member says which run of a batch this is. The zero value is a run of its own.
type Member struct {
	Batch  string            // id; empty: none
	Name   string            // of the run in the batch
	RunID  string            // of this attempt, from [record.NewRunID]
	Labels map[string]string // for the record
	// Shared is what the runs of a batch have in common; nil: nothing. The batch also
	// cleans up after killed controllers, see [Collect].
	Shared *Shared
}

// AgentOptions say how the agent works.
type AgentOptions struct {
	MaxOutput int64 // bytes that it may print in one iteration; 0: DefaultOutput
	// Session makes the session of an agent's program on this machine, if the harness has it there;
	// nil: none.
	Session sandbox.Backend
	// Tools are those of such an agent in a sandbox: the name of the server and its history.
	Tools func(sandbox.Executor) tools.Config
	// Outside works in the sandbox in place of the agent of the harness; nil: that runs. The
	// work is taken out when it returns, as after an agent.
	Outside func(context.Context, Workplace) error
	// Unpinned leaves the pins of MCP servers unread: Outside makes them.
	Unpinned bool
}

// Workplace is a sandbox that is ready for [AgentOptions.Outside].
type Workplace struct {
	Sandbox sandbox.Executor
	Dir     string            // where commands start
	Env     []string          // of every command, NAME=value
	Run     map[string]string // see [wire.ExecRequest]
}

// run is the state of one run. Its methods are the steps and the code that runs
// them. A step passes values to the functions of other files and stores their
// results here.
type run struct {
	o        Options
	progress progress
	control  *control
	journal  *journal
	result   Result
	counts   *counts
	findings *findings

	plan     plan     // set by load, expand and preflight
	program  program  // set by preflight
	checkout checkout // set by preflight, again by pre_script
	results  *results // set by preflight
	box      *box     // set by create_sandbox
	work     work     // set by iterations
	failed   error    // the first failure of a step
	blocked  bool     // a scan withholds the results
}

// Run runs an agent. The result describes the run up to its end, also if there
// is an error. The error is a [*Failure]. Run always deletes the sandbox, unless
// [Options.KeepSandbox] leaves it to operators, and
// leaves no process. If the controller itself is killed, [Collect] cleans up.
// To stop the run, cancel ctx with the cause [Interrupted]: Run then stops the
// agent and extracts its work.
func Run(ctx context.Context, o Options) (Result, error) {
	ctx, r := newRun(ctx, o)
	defer r.control.close()
	err := r.open(ctx)
	if err == nil {
		err = r.steps(ctx, steps)
	}
	return r.finish(ctx, err)
}

// newRun is a run that has not begun, with its context. The caller closes its control.
func newRun(ctx context.Context, o Options) (context.Context, *run) {
	r := &run{o: o, progress: o.Progress, result: newResult(o)}
	r.counts = newCounts(func(x Refusal) { r.progress.send(Update{Kind: UpdateRefusal, Refusal: x}) })
	ctx, r.control = newControl(ctx, o.Force)
	return ctx, r
}

// open cleans up after killed controllers, then creates the run record.
func (r *run) open(ctx context.Context) (err error) {
	if r.o.Member.Batch == "" {
		collectKilled(ctx, r.o, r.progress)
	}
	r.result.RunID = cmp.Or(r.o.Member.RunID, record.NewRunID(r.result.Started))
	r.observe()
	r.journal, err = newJournal(r.o, r.result.RunID, r.result.Started)
	if r.journal != nil {
		r.result.Record = r.journal.dir.Path
	}
	if err != nil {
		return asFailure(ctx, "record", err)
	}
	return nil
}

// collectKilled cleans up after killed controllers.
func collectKilled(ctx context.Context, o Options, p progress) {
	left, err := Collect(ctx, o.State, o.Backend, CollectOptions{RunsOlderThan: RecordAge})
	if err != nil && ctx.Err() == nil {
		p.warn("earlier runs: %v", err)
	}
	for _, l := range left {
		if !l.Record && l.File == "" {
			p.warn("removed what the killed run %s had left", l.RunID)
		}
	}
}

// steps runs steps. It returns the first failure.
func (r *run) steps(ctx context.Context, steps []step) error {
	for _, s := range steps {
		agentRan := len(r.result.Iterations) > 0
		if r.failed != nil && (!s.salvage || !agentRan) {
			continue
		}
		if r.result.skipped() || s.when != nil && !s.when(r) {
			continue
		}
		err := r.step(ctx, s)
		if r.failed == nil {
			r.failed = err
		} else if err != nil {
			r.progress.warn("%v", err)
		}
	}
	return r.failed
}

// step runs one step and records it.
func (r *run) step(ctx context.Context, s step) error {
	err := beginStep(ctx, r, s)
	if err != nil && s.salvage { // salvage steps run even if they cannot be recorded
		r.progress.warn("%v", err)
		err = nil
	}
	if err != nil {
		return asFailure(ctx, s.name, err)
	}
	r.progress.send(Update{Kind: UpdateStep, Step: s.name})
	err = context.Cause(ctx)
	if err == nil || s.salvage {
		err = s.do(r, ctx)
	}
	last := r.journal.endStep()
	defer func() { r.counts.observer.Step(*last) }()
	if err != nil {
		f := asFailure(ctx, s.name, err)
		if f.Code == ExitSandbox && !errors.Is(f.Err, sandbox.ErrGone) { // other failures are known, and gone may wait
			if cause := r.box.gone(); cause != nil {
				f.Err = oneLine{sandbox.Explain(cause, f.Err)}
			}
		}
		if end := (*sandbox.End)(nil); errors.As(f.Err, &end) && end.Hint != "" { // it knows more than what it ended
			f.Hint = end.Hint
		}
		checkFull(f, writtenDirs(r.journal, r.results, r.checkout))
		last.Error, last.Code = f.Err.Error(), f.Code
		return f
	}
	return nil
}

// beginStep records the start of a step. One that needs the record waits for space if an agent has worked.
func beginStep(ctx context.Context, r *run, s step) error {
	r.journal.beginStep(s.name)
	if s.salvage || len(r.result.Iterations) == 0 {
		return r.journal.storeSteps()
	}
	return r.control.do(ctx, s.name, func(context.Context) error { return r.journal.storeSteps() })
}

// finish deletes the sandbox, writes the result and closes the record.
func (r *run) finish(ctx context.Context, failed error) (Result, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTime, errors.New("cleaning up took too long"))
	defer cancel()
	forget(r.o.Backend, r.result.RunID)
	if r.results == nil || !r.results.published {
		r.control.space.left = 0 // nothing of the work is left to wait for
	}
	if r.box != nil {
		if err := closeSide(ctx, r); err != nil { // deliver has done it, if it came so far
			r.progress.warn("%v", err)
		}
		last := deleteStep
		if r.keeps() {
			last = keepStep
		}
		if err := r.step(ctx, last); err != nil && failed == nil {
			failed = err
		}
	}
	r.conclude(failed)
	keep := func(write func(context.Context) error) error { return r.control.do(ctx, "writing the result", write) }
	err := keep(func(context.Context) error { return r.results.writeResult(r.result) })
	if err != nil && failed == nil {
		failed = asFailure(ctx, "deliver", fmt.Errorf("write result: %w", err))
		r.result.fail(failed)
	}
	if r.journal != nil {
		err := keep(func(context.Context) error {
			err := r.journal.storeResult(r.result)
			if r.results != nil && !r.blocked { // a scan withholds the agent's logs, too
				err = errors.Join(err, r.journal.storeLogs(r.results.dir()))
			}
			return err
		})
		if err != nil {
			r.progress.warn("%v", err)
		}
	}
	if err := r.results.discard(); err != nil {
		r.progress.warn("clean up: %v", err)
	}
	if r.journal != nil {
		err := keep(func(context.Context) error { return r.journal.end(r.result) })
		if err := errors.Join(err, r.journal.dir.Close()); err != nil {
			r.progress.warn("%v", err)
		}
	}
	return r.result, failed
}

// conclude writes the end of the run, its counts and its findings into the
// result. Results that were not delivered are not called partial.
func (r *run) conclude(failed error) {
	r.result.end(failed)
	r.result.Partial = r.result.Partial && r.result.Delivered
	r.counts.into(&r.result)
	r.plan.helped.into(&r.result)
	r.findings.into(&r.result)
	r.result.Telemetry = r.counts.observer.End(r.result)
}

// Kinds of [Update].
const (
	UpdateStep    = "step" // a step starts
	UpdateWarning = "warning"
	UpdateOutput  = "output"  // a line of the agent or of a script
	UpdateRefusal = "refusal" // the policy refused something for the first time
	UpdateUsage   = "usage"   // the agent used a model
)

// Update reports the progress of a run. Its texts are clean, see
// [runtime.Clean].
type Update struct {
	Kind    string
	Step    string
	Text    string // warning, output
	Stream  string // output: stdout or stderr
	Refusal Refusal
	Usage   runtime.Usage // since the last update
}

// progress receives the updates of a run; nil drops them.
type progress func(Update)

func (p progress) send(u Update) {
	if p != nil {
		p(u)
	}
}

// warn reports a warning, on one line.
func (p progress) warn(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	p.send(Update{Kind: UpdateWarning, Text: runtime.Clean(text)})
}

// output reports one line of output.
func (p progress) output(stream, text string) {
	p.send(Update{Kind: UpdateOutput, Stream: stream, Text: text})
}

// control ends a run early, after a signal or on the request of an attached
// operator.
type control struct {
	interrupt context.CancelCauseFunc // stops the run like a signal does
	forced    context.Context         // its end stops the extraction of the agent's work
	force     context.CancelFunc
	space     space
}

// errForced is the cause of the end of work that a second interruption stopped.
var errForced = errors.New("stopped by a second signal, or by an operator with --force")

// newControl returns the context of the run. The caller calls close.
func newControl(ctx, forced context.Context) (context.Context, *control) {
	c := &control{}
	ctx, c.interrupt = context.WithCancelCause(ctx)
	if forced == nil {
		forced = context.Background()
	}
	c.forced, c.force = context.WithCancel(forced)
	return ctx, c
}

func (c *control) close() {
	c.force()
	c.interrupt(nil)
}

// stopRun ends the run for an operator. A running run is stopped as by a
// signal. With force, the extraction of the agent's work is stopped, too.
func (c *control) stopRun(by string, force bool) {
	c.interrupt(Interrupted{Signal: operatorSignal, By: by})
	if force {
		c.force()
	}
}

// cleanupTime bounds the work after the end of a run.
const cleanupTime = 2 * time.Minute

// salvage returns a context for work after the end of the run's context. A
// second interruption ends it.
func (c *control) salvage(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	ctx, end := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTime, errors.New(what+" took too long"))
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.forced, func() { cancel(errForced) })
	return ctx, func() {
		stop()
		cancel(nil)
		end()
	}
}

// do does a part of the work after the end of the run's context, in a context of [control.salvage]. Where a disk of
// this machine is full, it waits until there is room, and does the part again: that must be possible. The time of
// the part does not go on meanwhile.
func (c *control) do(ctx context.Context, what string, part func(context.Context) error) error {
	for n := 0; ; n++ {
		limited, end := c.salvage(ctx, what)
		err := part(limited)
		end()
		if err == nil || c.space.left <= 0 || c.forced.Err() != nil || !c.space.wait(c.forced, err, n) {
			return err
		}
	}
}

// space is the wait for room on the disks of this machine, when there is an agent's work. The zero value does not wait.
type space struct {
	dirs     []string        // that are written
	left     time.Duration   // that the run may wait
	gone     <-chan struct{} // ends the wait: closed when the sandbox is lost; nil: it is not needed
	giveUp   string          // what gives up the work
	progress progress
}

// newSpace waits for room on the disks that a run writes to.
func newSpace(r *run) space {
	return space{
		dirs: writtenDirs(r.journal, r.results, r.checkout), left: r.o.WaitForSpace, gone: r.box.sandbox.Gone(), progress: r.progress,
		giveUp: "a second Ctrl-C, or 'agentctl sandbox delete " + r.box.sandbox.ID() + " --force', gives up the work",
	}
}

// alone is used when the sandbox has ended, and nobody is let in.
func (s *space) alone() { s.gone, s.giveUp = nil, "a second Ctrl-C gives up what is not delivered" }

const (
	enoughBytes = 4 << 20     // the free space that a full disk must have for another attempt
	spacePoll   = time.Second // between two looks at it
	spacePause  = time.Minute // the longest between two attempts, which may need more than enoughBytes
)

// wait waits for room if a full disk is behind an error. It reports whether the part that failed may be done again.
// before is the number of attempts before that one.
func (s *space) wait(forced context.Context, err error, before int) bool {
	full := slices.DeleteFunc(slices.Clone(s.dirs), func(dir string) bool { return firstFull([]string{dir}, fewBytes) == nil })
	f := (*Failure)(nil)
	if errors.As(err, &f) && f.Code != ExitSandbox || len(full) == 0 && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
		return false
	}
	select {
	case <-s.gone:
		return false
	default:
	}
	started := time.Now()
	if before == 0 {
		why := cmp.Or(firstFull(full, enoughBytes), err)
		s.progress.warn("%v; the run goes on by itself when there is room, and waits until %s for it; %s",
			why, started.Add(s.left).Format(time.DateTime), s.giveUp)
	}
	defer func() { s.left -= time.Since(started) }()
	pause, over, look := min(spacePoll<<min(before, 10), spacePause), time.NewTimer(s.left), time.NewTicker(spacePoll)
	defer over.Stop()
	defer look.Stop()
	for {
		select {
		case <-forced.Done():
			return false
		case <-s.gone:
			return false
		case <-over.C:
			return firstFull(full, enoughBytes) == nil
		case <-look.C:
			if time.Since(started) >= pause && firstFull(full, enoughBytes) == nil {
				return true
			}
		}
	}
}
