// Package prescript reads what a script says before a run: lines NAME=value in a
// file that a variable names. The lines can ask that the run be skipped.
package prescript

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"agentsh/internal/lazy"

	"golang.org/x/sys/unix"
)

// Neutral is the exit status of a script that asks that the run be skipped.
const Neutral = 78

// Names that have a meaning.
const (
	skippedName = "skipped"
	reasonName  = "reason"
)

const (
	maxFile   = 1 << 20 // bytes
	maxReason = 1024    // bytes of a reason that a script printed
)

// Variables name the file to scripts.
func Variables(file string) []string {
	return []string{"AGENTSH_PRESCRIPT_OUTPUT=" + file, "FULLSEND_PRESCRIPT_OUTPUT=" + file}
}

// Output is what a script said.
type Output struct {
	Skipped bool
	Reason  string
	Values  map[string]string // all lines; the last one of a name counts
}

var nameRE = lazy.Regexp(`^[A-Za-z_][A-Za-z0-9_-]*$`)

// Parse reads the file of a script that succeeded. Whatever is not a line of the
// format is an error: a misspelt request to skip must not start an agent.
func Parse(file string) (Output, error) {
	// A script may put another kind of file in its place: a pipe does not block.
	f, err := os.OpenFile(file, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return Output{}, errors.New("the script removed the file of its output")
	}
	if err != nil {
		return Output{}, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return Output{}, errors.Join(err, errors.New("the script put something else than a regular file in place of its output"))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return Output{}, err
	}
	if len(data) > maxFile {
		return Output{}, fmt.Errorf("the output of the script has more than %d bytes", maxFile)
	}
	out := Output{Values: map[string]string{}}
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, err := split(line)
		if err != nil {
			return Output{}, fmt.Errorf("line %d of the output of the script: %w", number, err)
		}
		out.Values[name] = value
	}
	switch value, said := out.Values[skippedName]; {
	case !said || value == "false":
	case value == "true":
		out.Skipped = true
	default:
		return Output{}, fmt.Errorf("the output of the script says skipped=%.50s, which is neither true nor false", value)
	}
	out.Reason = out.Values[reasonName]
	return out, nil
}

// split reads one line.
func split(line string) (name, value string, err error) {
	name, value, found := strings.Cut(line, "=")
	name, value = strings.TrimSpace(name), strings.TrimSpace(value)
	before, _, block := strings.Cut(line, "<<")
	switch {
	case block && nameRE().MatchString(before):
		return "", "", fmt.Errorf("%.100q: a value of several lines is not supported", line)
	case !found:
		return "", "", fmt.Errorf("%.100q is not NAME=value", line)
	case !nameRE().MatchString(name):
		return "", "", fmt.Errorf("%.100q is no name", name)
	case strings.IndexFunc(value, control) >= 0 || !utf8.ValidString(value):
		return "", "", fmt.Errorf("the value of %s has a control character, or is not UTF-8", name)
	}
	for _, known := range []string{skippedName, reasonName} {
		if name != known && strings.EqualFold(name, known) {
			return "", "", fmt.Errorf("write %s in small letters", known)
		}
	}
	return name, value, nil
}

func control(r rune) bool { return r < 0x20 || r == 0x7f }

// ParseNeutral reads the file of a script that ended with [Neutral]. The status
// alone skips the run. The last line that the script printed is the reason unless
// the file has one.
func ParseNeutral(file, printed string) Output {
	out, err := Parse(file)
	if err != nil {
		out = Output{Values: map[string]string{}}
	}
	out.Skipped = true
	out.Values[skippedName] = "true"
	if out.Reason == "" {
		out.Reason = clip(strings.TrimSpace(strings.Map(func(r rune) rune {
			if control(r) {
				return -1
			}
			return r
		}, printed)))
	}
	if out.Reason != "" {
		out.Values[reasonName] = out.Reason
	}
	return out
}

// clip shortens a reason.
func clip(s string) string {
	if len(s) <= maxReason {
		return s
	}
	s = s[:maxReason]
	for !utf8.ValidString(s) {
		s = s[:len(s)-1]
	}
	return s
}

// Lines are the values with skipped first, each as NAME=value and a line end.
func (o Output) Lines() string {
	names := make([]string, 0, len(o.Values))
	for name := range o.Values {
		if name != skippedName {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var b strings.Builder
	fmt.Fprintf(&b, "%s=%t\n", skippedName, o.Skipped)
	for _, name := range names {
		fmt.Fprintf(&b, "%s=%s\n", name, o.Values[name])
	}
	return b.String()
}

// Relay appends the values to the output of a step of GitHub Actions, if the
// environment is that of one.
func Relay(o Output, lookup func(string) (string, bool)) error {
	file, _ := lookup("GITHUB_OUTPUT")
	if actions, _ := lookup("GITHUB_ACTIONS"); file == "" || actions != "true" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("GITHUB_OUTPUT: %w", err)
	}
	_, err = f.WriteString(o.Lines())
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("GITHUB_OUTPUT: %w", err)
	}
	return nil
}
