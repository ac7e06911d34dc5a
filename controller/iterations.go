package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"agentsh/controller/harness"
	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/controller/sandbox/host"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
)

// defaultTimeout is the time limit of one iteration.
const defaultTimeout = 60 * time.Minute

// agentLoop runs the agent until its output is valid.
type agentLoop struct {
	harness    *harness.Harness
	program    program
	sandbox    sandbox.Sandbox
	results    *results
	scripts    scripts
	extraction extraction
	progress   progress
	counts     *counts
	legacy     runDirectory // of scripts of other runners

	elsewhere  elsewhere         // an agent outside of the sandbox
	maxOutput  int64             // bytes that the agent may print in one iteration
	iterations []IterationResult // iterations that ran
	work       work              // of the last one that was extracted
	skipped    []string          // files of transcripts that were not taken, each with the reason
	logged     logged            // entries that were read
}

// logged are numbers of entries in logs of the sandbox.
type logged struct{ hooks, servers int }

// run runs the iterations. After a failure, the fields of the loop describe
// what was done.
func (l *agentLoop) run(ctx context.Context) error {
	most := 1
	if l.harness.ValidationLoop.Script.V != "" && l.elsewhere.instead == nil {
		most = max(l.harness.ValidationLoop.MaxIterations.Or(1), 1)
	}
	for n := 1; ; n++ {
		it, err := l.iterate(ctx, n)
		l.iterations = append(l.iterations, it)
		storeErr := l.extraction.control.do(ctx, "recording the iteration", func(context.Context) error {
			return storeIterations(l.extraction.recordDir, l.iterations)
		})
		if err == nil {
			err = storeErr
		}
		if err != nil || it.Validation == "" || it.Validation == validationPassed {
			return err
		}
		if n == most {
			return validationFailure(it, most)
		}
		if err := l.sendFeedback(ctx, it); err != nil {
			return err
		}
	}
}

// iterate runs the agent once, extracts its work and validates it.
func (l *agentLoop) iterate(ctx context.Context, n int) (IterationResult, error) {
	limit := defaultTimeout
	if m := l.harness.TimeoutMinutes.V; m > 0 {
		limit = time.Duration(m) * time.Minute
	}
	start := time.Now()
	in, rt := &l.program.invocation, l.program.runtime
	in.Iteration, in.Deadline = n, start.Add(limit)
	if err := l.removeState(ctx); err != nil {
		return IterationResult{Number: n}, err
	}
	listener := newListener(n, l.results, l.progress)
	limited := newOutputLimit(l.runsAgent(), l.maxOutput)
	var ex sandbox.Executor = limited
	if l.elsewhere.instead != nil {
		ex = l.sandbox // each tool has a limit of its own
	}
	exit, err := l.runAgent(ctx, ex, listener, limit)
	it := IterationResult{Number: n, Exit: exit, Duration: time.Since(start)}
	l.readHookLog(ctx)
	l.readServerLog(ctx)
	listener.into(&it)
	if listener.failed != nil {
		l.results.logError = errors.Join(l.results.logError, fmt.Errorf("the agent's log: %w", listener.failed))
	}
	failed := listener.end(agentFailure(exit, err, limit), rt.Traits().Ends && l.elsewhere.instead == nil)
	if over := limited.failure(); over != nil {
		failed = over
	}
	if failed != nil && ctx.Err() != nil {
		failed = context.Cause(ctx)
	}
	var skipped []string
	it.Transcripts, skipped = l.extraction.transcripts(ctx, l.transcripts(rt), n)
	l.skipped = append(l.skipped, skipped...)
	if l.work, err = l.extraction.run(ctx, l.work, n, failed != nil); err != nil {
		return it, errors.Join(failed, err)
	}
	if failed != nil || l.harness.ValidationLoop.Script.V == "" {
		return it, failed
	}
	return l.validate(ctx, it)
}

// runAgent runs the agent of the harness, or what works in its place until the time limit.
func (l *agentLoop) runAgent(ctx context.Context, ex sandbox.Executor, to *listener, limit time.Duration) (wire.Exit, error) {
	in, rt := l.program.invocation, l.program.runtime
	if l.elsewhere.side != nil {
		return l.runOutside(ctx, ex, to)
	}
	if l.elsewhere.instead == nil {
		return runtime.Run(ctx, ex, rt, in, to.add)
	}
	c, err := rt.Command(in)
	if err != nil {
		return wire.Exit{}, fmt.Errorf("prepare runtime %s: %w", rt.Name(), err)
	}
	limited, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err = l.elsewhere.instead(limited, Workplace{Sandbox: ex, Dir: in.Start(), Env: c.Env, Run: c.Run})
	if limited.Err() != nil && ctx.Err() == nil {
		return wire.Exit{Kind: wire.ExitDeadline}, nil
	}
	return wire.Exit{Kind: wire.ExitExited}, err
}

// runsAgent runs the agent's program.
func (l *agentLoop) runsAgent() sandbox.Executor {
	if l.elsewhere.side == nil {
		return l.sandbox
	}
	ex, _ := l.elsewhere.side.Executor()
	return ex
}

// transcripts are the logs of the agent's program, where they are.
func (l *agentLoop) transcripts(rt runtime.Runtime) programLogs {
	if l.elsewhere.side == nil {
		return programLogs{l.sandbox, l.sandbox.Cause, layout.Sandbox, rt.Transcripts(l.program.invocation)}
	}
	ex, root := l.elsewhere.side.Executor()
	return programLogs{ex, l.elsewhere.side.Cause, root, l.elsewhere.program.Transcripts}
}

// removeState removes the program's own state of the previous iteration.
func (l *agentLoop) removeState(ctx context.Context) error {
	if l.program.invocation.Iteration == 1 {
		return nil
	}
	state := l.elsewhere.program.State
	if l.elsewhere.side == nil {
		state = l.program.runtime.State(l.program.invocation)
	}
	for _, name := range state {
		if err := l.runsAgent().Remove(ctx, name, true); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove the state of the agent's program: %w", err)
		}
	}
	return nil
}

// Results of a validation.
const (
	validationPassed  = "passed"
	validationFailed  = "failed"
	validationTimeout = "timeout"
)

// validate runs the validator on the host, with the extracted work.
func (l *agentLoop) validate(ctx context.Context, it IterationResult) (IterationResult, error) {
	loop := l.harness.ValidationLoop
	more := []string{
		"AGENTSH_ITERATION=" + strconv.Itoa(it.Number), "FULLSEND_ITERATION=" + strconv.Itoa(it.Number),
		"AGENTSH_FILES_DIR=" + filepath.Join(l.results.dir(), filesName),
	}
	starter := l.scripts
	if inRunDirectory(l.harness, loop.Script) {
		from, vars, err := l.foreign(ctx, it.Number)
		if err != nil {
			return it, err
		}
		starter, more = from, append(more, vars...)
	}
	validator := script{loop.Script.At, l.harness.Path(loop.Script), loop.Timeout, "validation_loop.timeout_seconds"}
	res, err := starter.run(ctx, validator, more)
	it.Feedback = runtime.CleanText(string(res.Stdout) + string(res.Stderr))
	switch {
	case errors.Is(err, host.ErrTimeout):
		it.Validation = validationTimeout
		return it, validator.failure(ExitTimeout, "", fmt.Errorf("validator: %w", err))
	case err != nil:
		return it, fail(ExitValidationFailed, "", fmt.Errorf("%s: validator: %w", loop.Script.At, err))
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

// lastLine is the last line of a text that is not empty.
func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return strings.TrimSpace(text[strings.LastIndexByte(text, '\n')+1:])
}

// sendFeedback sends the validator's output to the next iteration.
func (l *agentLoop) sendFeedback(ctx context.Context, it IterationResult) error {
	in := &l.program.invocation
	in.Feedback = runtime.Feedback{}
	if l.harness.ValidationLoop.FeedbackMode.V == "none" {
		return nil
	}
	name := path.Join(layout.Feedback, fmt.Sprintf("iteration-%d.txt", it.Number))
	if err := l.sandbox.WriteFile(ctx, name, []byte(it.Feedback), 0o644); err != nil {
		return fmt.Errorf("send feedback: %w", err)
	}
	in.Feedback = runtime.Feedback{File: name, Text: it.Feedback}
	return nil
}

// agentLogHint names the file with the agent's output.
const agentLogHint = "what it printed is in " + agentLogName + ", beside " + resultName

// addToFailure adds the agent's own error message to a failure.
func addToFailure(err error, reason string) error {
	var f *Failure
	if reason == "" || !errors.As(err, &f) {
		return err
	}
	more := *f
	more.Err = fmt.Errorf("%w: %s", f.Err, reason)
	return &more
}

// agentFailure is the failure of an agent; nil if it exited with status 0.
func agentFailure(exit wire.Exit, err error, limit time.Duration) error {
	if err != nil {
		return fail(ExitSandbox, exit.Hint, err)
	}
	if exit.Cause != "" {
		lost := fmt.Errorf("the agent was lost: %s", exit.Message)
		return fail(ExitSandbox, cmp.Or(hintFor(lost), exit.Hint), lost)
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
	return fail(ExitSandbox, cmp.Or(hintFor(lost), exit.Hint), lost) // the hint for a run is better than that for a session
}

func ruleSuffix(rule *wire.RuleAt) string {
	if rule == nil {
		return ""
	}
	return " (" + rule.Name + " " + rule.Position() + ")"
}
