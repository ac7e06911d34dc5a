// Package failure says how a command line of agentsh ends when it fails: the
// error, advice and the exit status.
package failure

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// Exit statuses of agentsh itself. The status of a command passes through.
const (
	Found = 1   // a check or a test found something wrong
	Usage = 2   // the command line is wrong
	Ours  = 125 // agentsh could not do its part
)

// Failure is an error with the advice and the exit status that go with it. A nil
// Err prints nothing: the message is already out.
type Failure struct {
	Err  error
	Hint string
	Code int
}

func (f *Failure) Error() string {
	if f.Err == nil {
		return ""
	}
	return f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

// New makes a failure that exits with code. hint may be empty.
func New(code int, err error, hint string) error { return &Failure{Err: err, Hint: hint, Code: code} }

// Usagef makes a failure of a command line that is wrong.
func Usagef(format string, args ...any) error {
	return New(Usage, fmt.Errorf(format, args...), "run with --help for usage")
}

// Report prints err the way every message of agentsh looks: what is wrong, one
// line each, then what a person would do about it.
func Report(w io.Writer, err error) int {
	if err == nil {
		return 0
	}
	var f *Failure
	if !errors.As(err, &f) {
		f = &Failure{Err: err, Code: Usage, Hint: "run 'agentsh help' for usage"}
	}
	if f.Err != nil {
		fmt.Fprintf(w, "agentsh: %v\n", f.Err)
	}
	if hint := cmp.Or(f.Hint, hintFor(f.Err)); hint != "" {
		fmt.Fprintf(w, "agentsh: hint: %s\n", hint)
	}
	return f.Code
}

// hintFor is the advice for an error of the machine that has none of its own.
func hintFor(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free space on the disk of this file; XDG_STATE_HOME names another place for the state of agentsh"
	case errors.Is(err, syscall.EACCES): // EPERM also refuses what concerns no path
		return "check who owns the path, and who may read or write it"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit of open files (ulimit -n)"
	}
	return ""
}
