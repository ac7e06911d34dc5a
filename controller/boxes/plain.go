package boxes

import (
	"errors"
	"path/filepath"
	"strings"

	"agentsh/controller"
)

// inWords are what its messages say for who has written a specification or flags.
var inWords = []string{
	"write image: NAME in the harness", "name it with --image NAME, or with image in a specification",
	"degraded of the harness has the same names: see doc/harness.md", "--degraded NAME, or degraded in a specification, has the same names",
	"in the harness", "in a specification",
}

// plainFailure is a failure with other words.
type plainFailure struct {
	message string
	err     error
}

func (p *plainFailure) Error() string { return p.message }
func (p *plainFailure) Unwrap() error { return p.err }

// Plain has a failure of a run speak of what its user wrote: flags, or a specification. file is the harness of the run, which
// [Spec.HarnessFile] made: nobody knows it.
func Plain(err error, file string) error {
	var f *controller.Failure
	if !errors.As(err, &f) {
		return err
	}
	said := f.Err.Error()
	if len(f.Problems) > 0 {
		lines := make([]string, 0, len(f.Problems))
		for _, p := range f.Problems {
			line := p.String()
			if p.Hint != "" && p.Hint != "paths start from /" {
				line += ": " + p.Hint
			}
			lines = append(lines, line)
		}
		said = strings.Join(lines, "; ")
	}
	known := strings.NewReplacer(inWords...)
	words := func(s string) string { return known.Replace(withoutPlaces(s, filepath.Dir(file))) }
	return &controller.Failure{Step: f.Step, Code: f.Code, Hint: words(f.Hint), Err: &plainFailure{words(said), f.Err}}
}

// withoutPlaces leaves out of a message the places in files of a directory, as "DIR/FILE:1:2: error: ". The message may
// have the directory as it is, or relative to the current one.
func withoutPlaces(message, dir string) string {
	var out strings.Builder
	name := filepath.Base(dir) + "/" // no other file has it: it is random
	for {
		at := strings.Index(message, name)
		if at < 0 {
			return out.String() + message
		}
		before, rest := message[:at], message[at+len(name):]
		after, isPlace := placeEnd(rest)
		if isPlace {
			before = before[:strings.LastIndexAny(before, " \t\n")+1] // what stands above the directory
		} else {
			before += name
		}
		out.WriteString(before)
		message = after
	}
}

// placeEnd returns what follows a place that begins with a file name, if s begins with one.
func placeEnd(s string) (after string, is bool) {
	file, rest, found := strings.Cut(s, ":")
	if !found || strings.ContainsAny(file, " \t\n/") {
		return s, false
	}
	for range 2 { // line and column
		if digits := len(rest) - len(strings.TrimLeft(rest, "0123456789")); digits > 0 && strings.HasPrefix(rest[digits:], ":") {
			rest = rest[digits+1:]
		}
	}
	after, found = strings.CutPrefix(rest, " ")
	if !found {
		return s, false
	}
	return strings.TrimPrefix(after, "error: "), true
}
