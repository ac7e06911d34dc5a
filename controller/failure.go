package controller

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"

	"agentsh/controller/harness"
	"agentsh/controller/sandbox"
	"agentsh/internal/statedir"
	"agentsh/internal/text"
)

// Exit codes of a run.
const (
	ExitDone             = 0
	ExitAgentFailed      = 1
	ExitConfiguration    = 2
	ExitScan             = 3
	ExitSandbox          = 4
	ExitTimeout          = 5
	ExitValidationFailed = 6
	ExitPostScriptFailed = 7
	exitSignalBase       = 128
)

// Failure is the reason why a run did not succeed.
type Failure struct {
	Step     string           // the step that failed
	Code     int              // exit code of the command line
	Problems harness.Problems // configuration errors, each with its position; empty for other failures
	Hint     string           // how to fix it; may be empty
	Err      error
}

// Error is one line that begins with the step.
func (f *Failure) Error() string { return f.Step + ": " + f.Err.Error() }

// Unwrap is the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Interrupted is the cause of a context that was ended by a signal to the
// controller, or by an operator.
type Interrupted struct {
	Signal syscall.Signal
	By     string // the operator; empty: a signal
}

// operatorSignal is the signal of an [Interrupted] by an operator.
const operatorSignal = syscall.SIGTERM

// Error names the signal.
func (i Interrupted) Error() string {
	if i.By != "" {
		return "ended by " + i.By
	}
	return fmt.Sprintf("interrupted by signal %d (%s)", int(i.Signal), i.Signal)
}

// fail makes a failure without the name of the step, which the caller of the
// step adds.
func fail(code int, hint string, err error) error {
	return &Failure{Code: code, Hint: hint, Err: err}
}

// badConfig makes a failure that the operator's files cause.
func badConfig(hint, format string, args ...any) error {
	return fail(ExitConfiguration, hint, fmt.Errorf(format, args...))
}

// problemsFailure makes a failure of the problems of harness files.
func problemsFailure(ps harness.Problems) error {
	errs := ps.Errors()
	return &Failure{Code: ExitConfiguration, Problems: errs, Err: fmt.Errorf("%s in the harness", text.Count(len(errs), "problem"))}
}

// asFailure makes a failure of err, with the name of its step and default
// values for the code and the hint. An interruption replaces the errors that it
// caused.
func asFailure(ctx context.Context, step string, err error) *Failure {
	var f *Failure
	if !errors.As(err, &f) {
		f = &Failure{Code: ExitSandbox, Err: err}
	}
	f.Step = step
	var i Interrupted
	if errors.As(context.Cause(ctx), &i) {
		return &Failure{Step: step, Code: exitSignalBase + int(i.Signal), Err: i}
	}
	if f.Hint == "" {
		f.Hint = hintFor(f.Err)
	}
	if f.Code == ExitSandbox {
		f.Err = oneLine{f.Err}
	}
	return f
}

// HostFailure is the failure of a step before the run by an error of the host, such as a full disk.
func HostFailure(step string, err error) *Failure { return asFailure(context.Background(), step, err) }

// oneLine is an error with its text on one line.
type oneLine struct{ error }

func (o oneLine) Error() string { return strings.ReplaceAll(o.error.Error(), "\n", "; ") }
func (o oneLine) Unwrap() error { return o.error }

// hintFor is the hint for errors of the host, such as a full disk.
func hintFor(err error) string {
	var end *sandbox.End
	switch {
	case errors.As(err, &end) && end.Hint != "":
		return end.Hint
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), strings.Contains(err.Error(), syscall.ENOSPC.Error()):
		return "free some disk space, or set XDG_STATE_HOME to a larger file system; 'agentctl gc' removes what earlier runs left"
	case errors.Is(err, syscall.EROFS):
		return "make the file system writable, or set XDG_STATE_HOME to another one if it is that of the state directory"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "check who owns the path and who may write it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit of open files (ulimit -n)"
	}
	return ""
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
// if its audit log cannot be written. What another hint says does not free a disk.
func checkFull(f *Failure, dirs []string) {
	if f.Code != ExitAgentFailed && f.Code != ExitSandbox || f.Hint == hintFor(syscall.ENOSPC) {
		return
	}
	if full := firstFull(dirs, fewBytes); full != nil {
		f.Err = oneLine{fmt.Errorf("%w (%w)", f.Err, full)}
		f.Code, f.Hint = ExitSandbox, hintFor(f.Err)
	}
}

// firstFull is the error of the first directory whose disk has less than some bytes free; nil: there is none.
func firstFull(dirs []string, need int64) error {
	for _, dir := range dirs {
		if full := statedir.CheckRoom(dir, need); errors.Is(full, syscall.ENOSPC) {
			return full
		}
	}
	return nil
}

// Trouble reports whether a run failed by trouble of the infrastructure alone, so that
// another attempt may succeed: the sandbox could not be made or was lost, or this machine
// had no room. A failure of the agent, of a check, of a scan or of a script is none, nor is
// a sandbox whose memory was full: the agent filled it. Nor is a run whose work was delivered as
// a whole: another attempt would deliver it again.
func (r Result) Trouble() bool {
	switch {
	case r.ExitCode != ExitSandbox || r.Error == nil:
		return false
	case r.Error.End == sandbox.EndMemory:
		return false
	}
	return !r.Delivered || r.Partial
}
