package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"time"

	"agentsh/controller/runtime"
	"agentsh/controller/sandbox/host"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
)

// defaultTimeout is how long one iteration may take.
const defaultTimeout = 60 * time.Minute

// iterations runs the agent until its output is valid. What it left is taken
// out after each iteration, also when it failed or was stopped.
func (r *run) iterations(ctx context.Context) error {
	if err := r.results.make(); err != nil {
		return fmt.Errorf("make results: %w", err)
	}
	most := 1
	if r.harness.ValidationLoop.Script.V != "" {
		most = max(r.harness.ValidationLoop.MaxIterations.Or(1), 1)
	}
	for n := 1; ; n++ {
		it, err := r.iterate(ctx, n)
		r.result.Iterations = append(r.result.Iterations, it)
		if it.Usage != nil {
			if r.result.Usage == nil {
				r.result.Usage = &runtime.Usage{}
			}
			r.result.Usage.Add(*it.Usage)
		}
		if err != nil || it.Validation == "" || it.Validation == validationPassed {
			return err
		}
		if n == most {
			return validationFailure(it, most)
		}
		if err := r.feedBack(ctx, it); err != nil {
			return err
		}
	}
}

// iterate runs the agent once, takes its work out and validates it.
func (r *run) iterate(ctx context.Context, n int) (IterationResult, error) {
	limit := defaultTimeout
	if m := r.harness.TimeoutMinutes.V; m > 0 {
		limit = time.Duration(m) * time.Minute
	}
	start := time.Now()
	r.invoke.Iteration, r.invoke.Deadline = n, start.Add(limit)
	if err := r.forget(ctx); err != nil {
		return IterationResult{Number: n}, err
	}
	r.agentRan = true
	heard := r.listen(n)
	exit, err := runtime.Run(ctx, r.box, r.runtime, r.invoke, heard.said)
	it := IterationResult{Number: n, Exit: exit, Duration: time.Since(start)}
	heard.into(&it)
	r.logError = errors.Join(r.logError, heard.failed)
	failed := heard.verdict(agentFailure(exit, err, limit), r.runtime.Traits().Ends)
	if failed != nil && ctx.Err() != nil {
		failed = context.Cause(ctx)
	}
	it.Transcripts = r.takeTranscripts(ctx)
	if err := r.takeOut(ctx, failed != nil); err != nil {
		return it, errors.Join(failed, err)
	}
	if failed != nil || r.harness.ValidationLoop.Script.V == "" {
		return it, failed
	}
	return r.validate(ctx, it)
}

// forget removes what the program kept for itself in the iteration before.
func (r *run) forget(ctx context.Context) error {
	if r.invoke.Iteration == 1 {
		return nil
	}
	for _, name := range r.runtime.State(r.invoke) {
		if err := r.box.Remove(ctx, name, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("clear what the agent kept: %w", err)
		}
	}
	return nil
}

// agentLogHint says where more is to be read.
const agentLogHint = "what it printed is in " + agentLogName + ", beside " + resultName

// addToFailure adds to a failure what the agent said of it.
func addToFailure(err error, said string) error {
	var f *Failure
	if said == "" || !errors.As(err, &f) {
		return err
	}
	more := *f
	more.Err = fmt.Errorf("%w: %s", f.Err, said)
	return &more
}

// agentFailure is nil when the agent exited with status 0.
func agentFailure(exit wire.Exit, err error, limit time.Duration) error {
	if err != nil {
		return fail(ExitSandbox, "", err)
	}
	switch exit.Kind {
	case wire.ExitExited:
		if exit.Code == 0 {
			return nil
		}
		return fail(ExitAgentFailed, agentLogHint, fmt.Errorf("the agent exited with status %d", exit.Code))
	case wire.ExitSignaled:
		return fail(ExitAgentFailed, "", fmt.Errorf("the agent was killed by signal %d", exit.Signal))
	case wire.ExitOOM:
		return fail(ExitAgentFailed, "raise resource_limits.max_memory_mb in the policy", errors.New("the agent was killed: out of memory"))
	case wire.ExitDeadline:
		return fail(ExitTimeout, "raise timeout_minutes in the harness", fmt.Errorf("the agent did not end within %s", limit))
	case wire.ExitDenied:
		return fail(ExitAgentFailed, exit.Hint, fmt.Errorf("the agent's program was denied: %s%s", exit.Message, ruleSuffix(exit.Rule)))
	case wire.ExitSpawnFailed:
		return fail(ExitAgentFailed, exit.Hint, fmt.Errorf("the agent's program was not started: %s", exit.Message))
	}
	lost := fmt.Errorf("the agent was lost: %s", exit.Message)
	return fail(ExitSandbox, cmp.Or(hintFor(lost), exit.Hint), lost) // what a run can do, before what a session could
}

func ruleSuffix(rule *wire.RuleAt) string {
	if rule == nil {
		return ""
	}
	return " (" + rule.Name + " " + rule.Place() + ")"
}

// How a validation ended.
const (
	validationPassed  = "passed"
	validationFailed  = "failed"
	validationTimeout = "timeout"
)

// validate runs the validator on the host over what was taken out.
func (r *run) validate(ctx context.Context, it IterationResult) (IterationResult, error) {
	more := []string{
		"AGENTSH_ITERATION=" + strconv.Itoa(it.Number), "FULLSEND_ITERATION=" + strconv.Itoa(it.Number),
		"AGENTSH_FILES_DIR=" + filepath.Join(r.results.dir(), filesName),
	}
	if schema := r.harness.ValidationLoop.Schema; schema.V != "" {
		more = append(more, "AGENTSH_OUTPUT_SCHEMA="+r.harness.Path(schema), "FULLSEND_OUTPUT_SCHEMA="+r.harness.Path(schema))
	}
	res, err := r.script(ctx, r.harness.ValidationLoop.Script, more)
	it.Feedback = runtime.CleanText(string(res.Stdout) + string(res.Stderr))
	switch {
	case errors.Is(err, host.ErrTimeout):
		it.Validation = validationTimeout
		return it, fail(ExitTimeout, "", fmt.Errorf("%s: validator: %w", r.harness.ValidationLoop.Script.At, err))
	case err != nil:
		return it, fail(ExitValidationFailed, "", fmt.Errorf("%s: validator: %w", r.harness.ValidationLoop.Script.At, err))
	case res.Err() != nil:
		it.Validation = validationFailed
	default:
		it.Validation = validationPassed
	}
	return it, nil
}

func validationFailure(it IterationResult, most int) error {
	text := lastLine(it.Feedback)
	return fail(ExitValidationFailed, "raise validation_loop.max_iterations, or see feedback in "+resultName,
		fmt.Errorf("the output is not valid after %d iteration(s): %s", most, text))
}

// feedBack gives the validator's text to the next iteration.
func (r *run) feedBack(ctx context.Context, it IterationResult) error {
	r.invoke.Feedback, r.invoke.Objection = "", ""
	if r.harness.ValidationLoop.FeedbackMode.V == "none" {
		return nil
	}
	name := path.Join(layout.Feedback, fmt.Sprintf("iteration-%d.txt", it.Number))
	if err := r.box.WriteFile(ctx, name, []byte(it.Feedback), 0o644); err != nil {
		return fmt.Errorf("hand over feedback: %w", err)
	}
	r.invoke.Feedback, r.invoke.Objection = name, it.Feedback
	return nil
}

// deliver stops the sandbox, puts the agent's commits on a branch of the target
// and the results at their place.
func (r *run) deliver(ctx context.Context) error {
	ctx, cancel := r.salvage(ctx, "taking the results out")
	defer cancel()
	if err := r.stopSandbox(ctx); err != nil {
		return err
	}
	if err := r.takeAudit(ctx); err != nil {
		return err
	}
	if err := r.takeTrash(ctx); err != nil {
		return err
	}
	r.beginDelete(ctx)
	if err := r.takeCommits(ctx); err != nil {
		return err
	}
	if err := r.keepChanges(ctx); err != nil {
		r.warn("%v", err)
	}
	if r.logError != nil {
		return r.logError
	}
	return r.publish()
}

// publish puts the results at their place, with a result.json that says how the
// run ended if nothing fails from here on: post_script reads it, and a controller
// that is killed leaves it.
func (r *run) publish() error {
	staged := r.result.Out
	r.result.Out, r.result.Audit = r.results.out, filepath.Join(r.results.out, auditName)
	r.conclude(r.failed)
	err := r.results.writeResult(r.result)
	if err == nil {
		err = r.results.publish()
	}
	if err != nil {
		r.result.Out, r.result.Audit = staged, ""
		return err
	}
	r.record.Staging = ""
	return nil
}

// takeTrash copies what soft_delete kept to the results: the sandbox goes with
// the rest.
func (r *run) takeTrash(ctx context.Context) (err error) {
	r.result.Trashed, err = r.box.Trash(ctx, filepath.Join(r.results.staging, trashName))
	return err
}

// takeAudit copies the audit log and counts what the stream did not bring.
func (r *run) takeAudit(ctx context.Context) error {
	log, err := r.box.AuditLog(ctx)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer log.Close()
	if err := r.results.copyAudit(log); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	f, err := os.Open(filepath.Join(r.results.staging, auditName))
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	defer f.Close()
	return r.tally.read(f)
}
