// Package output prints what commands of agentctl say: results, problems, progress and errors.
package output

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"agentsh/controller"
	"agentsh/internal/text"
)

// PrintRows prints rows as a table.
func PrintRows(out io.Writer, rows [][]string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	return w.Flush()
}

// Failure is an error with the exit code of the command.
type Failure struct {
	Code int
	Err  error  // nil: already printed
	Hint string // how to fix it; may be empty
}

func (f *Failure) Error() string {
	if f.Err == nil {
		return fmt.Sprintf("exit code %d", f.Code)
	}
	return f.Err.Error()
}

func (f *Failure) Unwrap() error { return f.Err }

// Remedy is the hint, for callers that wrap the error.
func (f *Failure) Remedy() string { return f.Hint }

// Report prints the error of a command and returns the exit code. It is the
// only function that prints errors. An error without an exit code is an error
// of usage or configuration.
func Report(err error, w io.Writer) int {
	if err == nil {
		return controller.ExitDone
	}
	f := &Failure{Code: controller.ExitConfiguration, Err: err}
	errors.As(err, &f)
	if f.Err != nil {
		fmt.Fprintf(w, "agentctl: %s\n", Printable(f.Err.Error()))
	}
	if f.Hint != "" {
		fmt.Fprintf(w, "agentctl: hint: %s\n", Printable(f.Hint))
	}
	return f.Code
}

// maxPrinted bounds a printed message, in bytes.
const maxPrinted = 16 << 10

// Printable returns a message that may contain text of a sandbox: control
// characters are escaped. Its further lines begin with a bar, so that none of them
// looks like a message of its own or like a command of a CI system.
func Printable(message string) string {
	if len(message) > maxPrinted {
		message = fmt.Sprintf("%s... (%d bytes)", strings.ToValidUTF8(message[:maxPrinted], ""), len(message))
	}
	lines := strings.Split(strings.TrimRight(message, "\n"), "\n")
	for i, line := range lines {
		lines[i] = text.Line(line)
	}
	return strings.Join(lines, "\n  | ")
}

// Since formats a duration.
func Since(start, end time.Time) time.Duration { return end.Sub(start).Round(100 * time.Millisecond) }

// Version is the version of this build, as main knows it.
var Version = "unknown"
