package boxes

import (
	"errors"
	"strings"

	"agentsh/controller"
	"agentsh/internal/lazy"
)

// madeHarness is a place in a harness that this package has made: nobody knows that file.
var madeHarness = lazy.Regexp(`(\S*/)?agentctl-(sandbox|mcp)-\w+/\w+\.(yaml|md)(:\d+:\d+)?: (error: )?`)

// inWords are what its messages say for who has written a specification or flags.
var inWords = strings.NewReplacer(
	"write image: NAME in the harness", "name it with --image NAME, or with image in a specification",
	"write --connect, or connect in the harness", "write --connect, or connect in a specification",
	"degraded of the harness has the same names: see doc/harness.md", "--degraded NAME, or degraded in a specification, has the same names",
	"in the harness", "in a specification",
	"the harness has problems", "the specification has problems",
)

// plainFailure is a failure with other words.
type plainFailure struct {
	message string
	err     error
}

func (p *plainFailure) Error() string { return p.message }
func (p *plainFailure) Unwrap() error { return p.err }

// Plain has a failure of a run without a harness of its user speak of what the user wrote: flags, or a specification.
func Plain(err error) error {
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
	words := func(s string) string { return inWords.Replace(madeHarness().ReplaceAllString(s, "")) }
	return &controller.Failure{Step: f.Step, Code: f.Code, Hint: words(f.Hint), Err: &plainFailure{words(said), f.Err}}
}
