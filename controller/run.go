package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
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
	// KeepSandbox is how long the sandbox outlives the controller if the agent fails
	// or the controller is killed. 0: it is deleted at once.
	KeepSandbox time.Duration
	Images      image.Config // where images are
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
	err := r.journal.begin(s.name)
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
	last := r.journal.end()
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

// writtenDirs are the directories that a run writes to. The results may be nil.
func writtenDirs(j *journal, results *results, c checkout) []string {
	dirs := []string{j.dir.Path}
	if results != nil {
		dirs = append(dirs, filepath.Dir(results.out))
	}
	if c.target.Dir != "" {
		dirs = append(dirs, c.target.Dir)
	}
	return dirs
}

// fewBytes is the free space below which a disk counts as full, in bytes.
const fewBytes = 64 << 10

// checkFull adds the cause to a failure if a disk is full. The errors of git
// and other programs do not always name it, and the supervisor kills an agent
// if its audit log cannot be written.
func checkFull(f *Failure, dirs []string) {
	if f.Code != ExitAgentFailed && (f.Code != ExitSandbox || f.Hint != "") {
		return
	}
	for _, dir := range dirs {
		if full := statedir.CheckRoom(dir, fewBytes); errors.Is(full, syscall.ENOSPC) {
			f.Err = oneLine{fmt.Errorf("%w (%w)", f.Err, full)}
			f.Code, f.Hint = ExitSandbox, hintFor(f.Err)
			return
		}
	}
}

// finish deletes the sandbox, writes the result and closes the record.
func (r *run) finish(ctx context.Context, failed error) (Result, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTime, errors.New("cleaning up took too long"))
	defer cancel()
	forget(r.o.Backend, r.result.RunID)
	if r.box != nil {
		if err := r.box.closeSide(ctx, r.journal, r.results, &r.result); err != nil { // deliver has done it, if it came so far
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
	if err := r.results.writeResult(r.result); err != nil && failed == nil {
		failed = asFailure(ctx, "deliver", fmt.Errorf("write result: %w", err))
		r.result.fail(failed)
	}
	if r.journal != nil {
		err := r.journal.storeResult(r.result)
		if r.results != nil && !r.blocked { // a scan withholds the agent's logs, too
			err = errors.Join(err, r.journal.storeLogs(r.results.dir()))
		}
		if err != nil {
			r.progress.warn("%v", err)
		}
	}
	if err := r.results.discard(); err != nil {
		r.progress.warn("clean up: %v", err)
	}
	if r.journal != nil {
		if err := r.journal.close(r.result); err != nil {
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
