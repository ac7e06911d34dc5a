package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"agentsh/controller/attach"
	"agentsh/controller/extract"
	"agentsh/controller/git"
	"agentsh/controller/harness"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/scan"
	"agentsh/internal/statedir"
	"agentsh/internal/wire"
)

// Options are the inputs of [Run].
type Options struct {
	Harness    string // file
	Load       harness.Options
	Repo       string // the target repository
	Out        string // directory of the results, made or replaced
	AllowDirty bool   // run from HEAD although tracked files differ from it
	Backend    sandbox.Backend
	State      statedir.Dir
	Scanner    string   // absolute path of the program of llm_guard; empty: none
	Gateway    string   // directory of the local gateway, see provider.OpenLocal
	Environ    []string // the host's environment, NAME=value
	Progress   func(Update)
	Hurry      context.Context // when it ends, results of a stopped run are no longer waited for; may be nil
	Keep       time.Duration   // how long the sandbox of an agent that failed is kept for operators; 0: not
}

// Kinds of [Update].
const (
	UpdateStep    = "step"    // a step begins
	UpdateWarning = "warning" // something to know
	UpdateOutput  = "output"  // a line of the agent or of a script
	UpdateRefusal = "refusal" // the policy refused something for the first time
)

// Update is what a run tells while it goes. Texts are clean, see
// [runtime.Clean].
type Update struct {
	Kind    string
	Step    string
	Text    string // warning, output
	Stream  string // output: stdout or stderr
	Refusal Refusal
}

// Statuses of a [Result].
const (
	StatusDone             = "done"
	StatusAgentFailed      = "agent_failed"
	StatusTimeout          = "timeout"
	StatusValidationFailed = "validation_failed"
	StatusPostScriptFailed = "post_script_failed"
	StatusBlocked          = "blocked" // by a scan
	StatusFailed           = "failed"
	StatusCancelled        = "cancelled"
)

// Result is what a run leaves, as result.json.
type Result struct {
	Version    int               `json:"version"` // 1
	RunID      string            `json:"run_id"`
	Status     string            `json:"status"`
	ExitCode   int               `json:"exit_code"`
	Error      *ResultError      `json:"error,omitempty"`
	Harness    string            `json:"harness"`
	Agent      string            `json:"agent,omitempty"`
	Role       string            `json:"role,omitempty"`
	Slug       string            `json:"slug,omitempty"`
	About      string            `json:"description,omitempty"`
	Doc        string            `json:"doc,omitempty"`
	Runtime    string            `json:"runtime,omitempty"`
	Backend    string            `json:"backend"`
	Policy     string            `json:"policy_digest,omitempty"`
	Repo       string            `json:"repo"`
	Base       string            `json:"base_commit,omitempty"`
	Branch     string            `json:"branch,omitempty"`           // in the target repository; empty: no commit was made
	Branches   []string          `json:"further_branches,omitempty"` // of other branches of the agent
	Commits    []Commit          `json:"commits"`
	Withheld   []extract.Refused `json:"refused_commits,omitempty"` // with all that build on them
	Bundle     string            `json:"bundle,omitempty"`          // all commits of the agent, when some were refused
	Changed    []Changed         `json:"changed"`
	Skipped    []string          `json:"not_taken,omitempty"` // what cannot leave a sandbox, each with the reason
	Partial    bool              `json:"partial"`             // the agent was stopped, or some of its work could not be taken out
	Iterations []IterationResult `json:"iterations"`
	Usage      *runtime.Usage    `json:"usage,omitempty"` // of all iterations
	Commands   int               `json:"commands"`        // programs started
	Programs   []Program         `json:"programs"`
	Refusals   int               `json:"refusals"`
	Refused    []Refusal         `json:"refused"`
	AuditGaps  int               `json:"audit_gaps"`      // events that never came
	Added      []string          `json:"added,omitempty"` // to the repository in the sandbox, and ignored by git
	Hooks      Hooks             `json:"hooks"`
	Trace      string            `json:"trace_id,omitempty"` // joins findings, when the harness says so
	Findings   []scan.Finding    `json:"findings"`           // of the scans
	Review     *Review           `json:"review,omitempty"`   // critical findings ask for one
	Out        string            `json:"out"`
	Audit      string            `json:"audit,omitempty"`
	Trashed    int               `json:"trashed,omitempty"` // files that soft_delete kept, in the results
	Record     string            `json:"record,omitempty"`
	Started    time.Time         `json:"started"`
	Ended      time.Time         `json:"ended"`
}

// ResultError is why a run did not succeed.
type ResultError struct {
	Step     string           `json:"step"`
	Message  string           `json:"message"`
	Hint     string           `json:"hint,omitempty"`
	Problems harness.Problems `json:"problems,omitempty"`
}

// Review asks a person to look at a run with critical findings.
type Review struct {
	Label string `json:"label"` // for the change or ticket of the run; who reads the result sets it
}

// Commit is one commit of the agent.
type Commit struct {
	ID      string `json:"id"`
	Subject string `json:"subject"`
}

// Changed is one path of the repository that differs from the base commit.
type Changed struct {
	Path   wire.Name `json:"path"`
	Status string    `json:"status"` // added, modified, deleted, type_changed
}

// IterationResult is how the agent ended in one iteration.
type IterationResult struct {
	Number     int           `json:"number"`
	Exit       wire.Exit     `json:"exit"`
	Validation string        `json:"validation,omitempty"` // passed, failed, timeout
	Feedback   string        `json:"feedback,omitempty"`   // what the validator said
	Duration   time.Duration `json:"duration_ns"`

	Usage       *runtime.Usage `json:"usage,omitempty"`       // as the program reports it
	Tools       []Tool         `json:"tools,omitempty"`       // used, in order of their first call
	Errors      []string       `json:"errors,omitempty"`      // the program reported, at most 20
	Transcripts string         `json:"transcripts,omitempty"` // directory of the program's own records, below the results
}

// run is the state that the steps of one run share.
type run struct {
	o       Options
	dir     *record.Dir
	record  record.Record
	result  Result
	tally   *tally
	events  chan struct{} // closed when the event stream has ended
	lookup  harness.Lookup
	cleanup []func() error // host files to remove at the end, last first

	harness *harness.Harness
	x       *harness.Expanded
	files   []harness.File
	runtime runtime.Runtime
	invoke  runtime.Invocation
	rules   []byte         // AGENTS.md of a repository without one; nil: none
	canary  string         // planted in the agent's definition; empty: none
	own     []runtime.File // configure the runtime, no command writes them
	spec    sandbox.Spec
	secrets []wire.Credential // of the providers, with their values
	git     git.Tool
	target  git.Repository
	clone   git.Clone       // fresh repository on the host that goes into the sandbox, without its files
	tree    []git.TreeEntry // those files
	taken   extract.Result
	repoDir string // the repository inside
	box     sandbox.Sandbox
	deleted chan error // how the deletion of box ended; nil: it did not begin
	results *results

	logError error // of the agent's logs

	attached  *attach.Server          // nil: nobody can attach to the sandbox
	interrupt context.CancelCauseFunc // stops the run as a signal does
	hurry     context.CancelFunc
	keeping   atomic.Bool // the sandbox is kept for operators
	release   chan struct{}
	released  sync.Once // closes release

	agentRan bool
	failed   error       // the first failure of a step
	critical int         // findings
	blocked  bool        // a scan holds the results back
	stopping atomic.Bool // the end of the event stream is expected
}

// Run runs an agent. The result says how far it came, also when the error is
// not nil; the error is then a [*Failure]. Whatever happens, the sandbox is
// deleted and no process is left, unless the controller itself is killed: then
// [Collect] does it. Cancel ctx with the cause [Interrupted] to stop the run:
// the agent is stopped and what there is is taken out.
func Run(ctx context.Context, o Options) (Result, error) {
	r := &run{o: o, events: make(chan struct{}), release: make(chan struct{}), lookup: lookupIn(o.Environ)}
	close(r.events)
	r.tally = newTally(func(x Refusal) { r.tell(Update{Kind: UpdateRefusal, Refusal: x}) })
	r.result = Result{
		Version: 1, Status: record.StatusRunning, Harness: o.Harness, Repo: o.Repo, Backend: o.Backend.Name(), Out: o.Out,
		Started: time.Now().UTC(),
		Commits: []Commit{}, Changed: []Changed{}, Iterations: []IterationResult{}, Programs: []Program{}, Refused: []Refusal{},
		Findings: []scan.Finding{},
	}
	ctx, r.interrupt = context.WithCancelCause(ctx)
	defer r.interrupt(nil)
	if r.o.Hurry == nil {
		r.o.Hurry = context.Background()
	}
	r.o.Hurry, r.hurry = context.WithCancel(r.o.Hurry)
	defer r.hurry()
	err := r.open(ctx)
	if err == nil {
		err = r.steps(ctx)
	}
	return r.finish(ctx, err)
}

// open makes the run record, after what killed controllers left was removed.
func (r *run) open(ctx context.Context) error {
	left, err := Collect(ctx, r.o.State, r.o.Backend, CollectOptions{RunsOlderThan: RecordAge})
	if err != nil && ctx.Err() == nil {
		r.warn("earlier runs: %v", err)
	}
	for _, l := range left {
		if !l.Record {
			r.warn("removed what the killed run %s had left", l.RunID)
		}
	}
	id := record.NewRunID(r.result.Started)
	r.result.RunID = id
	if r.dir, err = record.Create(r.o.State, id); err != nil {
		return asFailure(ctx, "record", err)
	}
	r.record = record.Record{
		Version: 1, RunID: id, Harness: r.o.Harness, Repo: r.o.Repo, Out: r.o.Out, Backend: r.o.Backend.Name(),
		Status: record.StatusRunning, Started: r.result.Started, Steps: []record.Step{},
	}
	r.result.Record = r.dir.Path
	if err := r.dir.Write(r.record); err != nil {
		return asFailure(ctx, "record", err)
	}
	return nil
}

// step is one named part of a run.
type step struct {
	name    string
	do      func(*run, context.Context) error
	salvage bool            // also after a failure, when an agent ran: its work is taken out
	when    func(*run) bool // nil: always
}

// steps are the parts of a run in their order. Up to preflight nothing outside
// the run record is touched.
var steps = []step{
	{name: "load", do: (*run).load},
	{name: "expand", do: (*run).expand},
	{name: "preflight", do: (*run).preflight},
	{name: "scan_context", do: (*run).scanContext, when: (*run).scans},
	{name: "pre_script", do: (*run).preScript, when: func(r *run) bool { return r.harness.PreScript.V != "" }},
	{name: "providers", do: (*run).providers, when: func(r *run) bool { return len(r.harness.Providers) > 0 }},
	{name: "create_sandbox", do: (*run).createSandbox},
	{name: "wait_ready", do: (*run).waitReady},
	{name: "bootstrap", do: (*run).bootstrap},
	{name: "scan_sandbox", do: (*run).scanSandbox, when: (*run).scans},
	{name: "iterations", do: (*run).iterations},
	{name: "scan_output", do: (*run).scanOutput, salvage: true, when: (*run).scans},
	{name: "deliver", do: (*run).deliver, salvage: true, when: func(r *run) bool { return !r.blocked }},
	{name: "post_script", do: (*run).postScript, when: func(r *run) bool { return r.harness.PostScript.V != "" }},
}

// StepNames are the names of the steps in their order, as progress, record and
// errors have them. What a harness does not ask for is left out of a run.
func StepNames() []string {
	names := make([]string, 0, len(steps)+1)
	for _, s := range steps {
		names = append(names, s.name)
	}
	return append(names, record.StepDelete)
}

// keepStep comes between an agent that failed and taking its work to the
// operator, where the sandbox is to be kept.
var keepStep = step{name: "keep_sandbox", do: (*run).keepSandbox, salvage: true}

// steps runs the steps. The first failure is the run's.
func (r *run) steps(ctx context.Context) error {
	kept := r.o.Keep == 0
	for _, s := range steps {
		if s.salvage && r.failed != nil && r.agentRan && !kept {
			kept = true
			if err := r.step(ctx, keepStep); err != nil {
				r.warn("%v", err)
			}
		}
		if r.failed != nil && (!s.salvage || !r.agentRan) {
			continue
		}
		if s.when != nil && !s.when(r) {
			continue
		}
		err := r.step(ctx, s)
		if r.failed == nil {
			r.failed = err
		} else if err != nil {
			r.warn("%v", err)
		}
	}
	return r.failed
}

// step runs one step and notes it in the record.
func (r *run) step(ctx context.Context, s step) error {
	now := time.Now().UTC()
	r.record.Steps = append(r.record.Steps, record.Step{Name: s.name, Started: now})
	err := r.dir.Write(r.record)
	if err != nil && s.salvage { // what scans, keeps and removes is done without a note of it
		r.warn("%v", err)
		err = nil
	}
	if err != nil {
		return asFailure(ctx, s.name, err)
	}
	r.tell(Update{Kind: UpdateStep, Step: s.name})
	err = context.Cause(ctx)
	if err == nil || s.salvage {
		err = s.do(r, ctx)
	}
	ended := time.Now().UTC()
	note := &r.record.Steps[len(r.record.Steps)-1]
	note.Ended = &ended
	if err != nil {
		f := asFailure(ctx, s.name, err)
		if cause := r.sandboxGone(); cause != nil && f.Code == ExitSandbox {
			f.Err = oneLine{cause}
		}
		r.noteFull(f)
		note.Error = f.Err.Error()
		return f
	}
	return nil
}

// fewBytes is less room than a small file needs, in bytes.
const fewBytes = 64 << 10

// noteFull adds to a failure that a disk is full, when it is: what git and others
// say of it does not always tell, and an agent is killed whose audit log cannot
// be written.
func (r *run) noteFull(f *Failure) {
	if f.Code != ExitAgentFailed && (f.Code != ExitSandbox || f.Hint != "") {
		return
	}
	dirs := []string{r.dir.Path}
	if r.results != nil {
		dirs = append(dirs, filepath.Dir(r.results.out))
	}
	if r.target.Dir != "" {
		dirs = append(dirs, r.target.Dir)
	}
	for _, dir := range dirs {
		if full := statedir.CheckRoom(dir, fewBytes); errors.Is(full, syscall.ENOSPC) {
			f.Err = oneLine{fmt.Errorf("%w (%w)", f.Err, full)}
			f.Code, f.Hint = ExitSandbox, hintFor(f.Err)
			return
		}
	}
}

// cleanupTime bounds what happens after a run was stopped.
const cleanupTime = 2 * time.Minute

// salvage is a context for what is done after the run's own has ended. A
// second interruption ends it.
func (r *run) salvage(ctx context.Context, what string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTime, errors.New(what+" took too long"))
	stop := context.AfterFunc(r.o.Hurry, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// finish deletes the sandbox, writes the result and closes the record.
func (r *run) finish(ctx context.Context, failed error) (Result, error) {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), cleanupTime, errors.New("cleaning up took too long"))
	defer cancel()
	if r.box != nil {
		if err := r.step(ctx, step{name: record.StepDelete, do: (*run).deleteSandbox, salvage: true}); err != nil && failed == nil {
			failed = err
		}
	}
	r.conclude(failed)
	if r.results != nil {
		if err := r.results.writeResult(r.result); err != nil && failed == nil {
			failed = asFailure(ctx, "deliver", fmt.Errorf("write result: %w", err))
			r.noteFailure(failed)
		}
	}
	if r.dir != nil {
		if err := r.storeResult(); err != nil {
			r.warn("%v", err)
		}
	}
	for i := len(r.cleanup) - 1; i >= 0; i-- {
		if err := r.cleanup[i](); err != nil {
			r.warn("clean up: %v", err)
		}
	}
	if r.dir != nil {
		r.record.Findings = r.result.Findings
		r.record.Status, r.record.ExitCode, r.record.Ended = r.result.Status, r.result.ExitCode, &r.result.Ended
		if err := errors.Join(r.dir.RemoveWork(), r.dir.Write(r.record), r.dir.Close()); err != nil {
			r.warn("%v", err)
		}
	}
	return r.result, failed
}

// conclude writes how the run ended into the result.
func (r *run) conclude(failed error) {
	r.result.Ended = time.Now().UTC()
	r.result.Status, r.result.ExitCode = StatusDone, ExitDone
	if failed != nil {
		r.noteFailure(failed)
	}
	r.tally.into(&r.result)
}

// noteFailure writes why the run failed into the result.
func (r *run) noteFailure(err error) {
	var f *Failure
	if !errors.As(err, &f) {
		f = &Failure{Step: "run", Code: ExitSandbox, Err: err}
	}
	r.result.ExitCode = f.Code
	r.result.Error = &ResultError{Step: f.Step, Message: f.Err.Error(), Hint: f.Hint, Problems: f.Problems}
	switch {
	case f.Code > exitSignalBase:
		r.result.Status, r.result.Partial = StatusCancelled, true
	case f.Code == ExitAgentFailed:
		r.result.Status = StatusAgentFailed
	case f.Code == ExitScan:
		r.result.Status = StatusBlocked
	case f.Code == ExitTimeout:
		r.result.Status = StatusTimeout
	case f.Code == ExitValidationFailed:
		r.result.Status = StatusValidationFailed
	case f.Code == ExitPostScriptFailed:
		r.result.Status = StatusPostScriptFailed
	default:
		r.result.Status = StatusFailed
	}
}

func (r *run) tell(u Update) {
	if r.o.Progress != nil {
		r.o.Progress(u)
	}
}

func (r *run) warn(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	r.tell(Update{Kind: UpdateWarning, Text: runtime.Clean(text)})
}
