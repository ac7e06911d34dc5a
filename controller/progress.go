package controller

import (
	"fmt"
	"strings"

	"agentsh/controller/runtime"
)

// Kinds of [Update].
const (
	UpdateStep    = "step" // a step starts
	UpdateWarning = "warning"
	UpdateOutput  = "output"  // a line of the agent or of a script
	UpdateRefusal = "refusal" // the policy refused something for the first time
)

// Update reports the progress of a run. Its texts are clean, see
// [runtime.Clean].
type Update struct {
	Kind    string
	Step    string
	Text    string // warning, output
	Stream  string // output: stdout or stderr
	Refusal Refusal
}

// progress receives the updates of a run; nil drops them.
type progress func(Update)

func (p progress) send(u Update) {
	if p != nil {
		p(u)
	}
}

// warn reports a warning, on one line.
func (p progress) warn(format string, args ...any) {
	text := strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")
	p.send(Update{Kind: UpdateWarning, Text: runtime.Clean(text)})
}

// output reports one line of output.
func (p progress) output(stream, text string) {
	p.send(Update{Kind: UpdateOutput, Stream: stream, Text: text})
}
