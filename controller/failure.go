package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"agentsh/controller/harness"
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

// Failure is why a run did not succeed.
type Failure struct {
	Step     string           // the step that failed
	Code     int              // exit code of the command line
	Problems harness.Problems // configuration: every problem, with its position; else empty
	Hint     string           // what to do, may be empty
	Err      error
}

// Error is one line, the step first.
func (f *Failure) Error() string { return f.Step + ": " + f.Err.Error() }

// Unwrap is the cause.
func (f *Failure) Unwrap() error { return f.Err }

// Interrupted is the cause of a context that a signal to the controller ended,
// or an operator as if by a signal.
type Interrupted struct {
	Signal syscall.Signal
	By     string // the operator; empty: a signal
}

// operatorSignal is the signal that means that an operator ended the run.
const operatorSignal = syscall.SIGTERM

// Error names the signal.
func (i Interrupted) Error() string {
	if i.By != "" {
		return "ended by " + i.By
	}
	return fmt.Sprintf("interrupted by signal %d (%s)", int(i.Signal), i.Signal)
}

// fail makes a failure of a step. The caller of the step adds its name.
func fail(code int, hint string, err error) error {
	return &Failure{Code: code, Hint: hint, Err: err}
}

// badConfig is a failure because of the operator's files.
func badConfig(hint, format string, args ...any) error {
	return fail(ExitConfiguration, hint, fmt.Errorf(format, args...))
}

// problemsFailure is a failure with the problems of harness files.
func problemsFailure(ps harness.Problems) error {
	errs := ps.Errors()
	return &Failure{Code: ExitConfiguration, Problems: errs, Err: fmt.Errorf("%d problem(s) in the harness", len(errs))}
}

// asFailure gives err the name of its step, and a code and hint if it has none.
// An interruption replaces the errors that it caused.
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

// oneLine is an error whose text has one line.
type oneLine struct{ error }

func (o oneLine) Error() string { return strings.ReplaceAll(o.error.Error(), "\n", "; ") }
func (o oneLine) Unwrap() error { return o.error }

// hintFor is the hint for errors of the machine.
func hintFor(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), strings.Contains(err.Error(), syscall.ENOSPC.Error()):
		return "free some disk space, or set XDG_STATE_HOME to a larger file system; 'agentctl gc' removes what earlier runs left"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return "check who owns the path and who may write it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit of open files (ulimit -n)"
	}
	return ""
}
