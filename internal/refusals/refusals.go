// Package refusals collects what was refused while a command ran, and describes it for
// a person.
package refusals

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/policy"
)

// MaxPrinted is how many refusals are printed after a command, and maxKept how many
// different ones are remembered.
const (
	MaxPrinted = 20
	maxKept    = 1000
)

// Refusal is one refusal, and how often it happened.
type Refusal struct {
	What    string      `json:"what"`
	Rule    wire.RuleAt `json:"rule,omitzero"`
	Message string      `json:"message,omitempty"`
	Hint    string      `json:"hint,omitempty"`
	Count   int         `json:"count"`

	answered bool // the program got the reason as the answer of a request
}

// List collects the refusals of a session, in the order they first happened. The zero
// value is empty.
type List struct {
	All     []*Refusal
	Dropped int // different ones beyond the limit

	unreached []string // lines about permitted destinations that did not answer
	known     map[Refusal]*Refusal
}

// Note takes one audit event.
func (l *List) Note(e wire.Event) {
	if e.Op == wire.OpUnreachable {
		line := text.Unreachable(text.Visible(e.Target), text.Visible(e.Message))
		if !Answered(e) && len(l.unreached) < MaxPrinted && !slices.Contains(l.unreached, line) {
			l.unreached = append(l.unreached, line)
		}
		return
	}
	if e.Decision != policy.Deny.String() || e.Type == wire.EventApproval { // the event of the operation follows
		return
	}
	what := strings.Join(e.Argv, " ")
	if what == "" {
		what = strings.Join(slices.DeleteFunc([]string{e.Op, e.Path, e.Target}, func(s string) bool { return s == "" }), " ")
	}
	n := Refusal{What: text.Visible(what), Message: text.Visible(e.Message), Hint: text.Visible(e.Hint), answered: Answered(e)}
	if e.Rule != nil {
		n.Rule = *e.Rule
	}
	if l.known == nil {
		l.known = map[Refusal]*Refusal{}
	}
	times := max(e.Count, 1)
	switch known := l.known[n]; {
	case known != nil:
		known.Count += times
	case len(l.All) == maxKept:
		l.Dropped++
	default:
		counted := n
		counted.Count = times
		l.known[n] = &counted
		l.All = append(l.All, &counted)
	}
}

// Answered reports whether a program gets the reason of a refusal as the answer of a request.
func Answered(e wire.Event) bool {
	return e.Net != nil && (e.Net.Via == "http" || e.Phase == "request")
}

// Answered reports whether the program got the reason as the answer of a request.
func (n *Refusal) Answered() bool { return n.answered }

// First is the first line of a refusal, and the only one that it always has.
func (n *Refusal) First() string {
	return text.Denied(n.What, n.Rule.Name, n.Rule.Position(), n.Message)
}

// Line describes a refusal for a person.
func (n *Refusal) Line() string {
	line := n.First()
	if n.Hint != "" {
		line += "\nagentsh: hint: " + n.Hint
	}
	return line
}

// Lines are the refusals, then what could not be reached.
func (l *List) Lines() []string {
	var out []string
	for _, n := range l.All {
		out = append(out, n.Line())
	}
	return append(out, l.unreached...)
}

// Shown knows the lines that a command has shown.
type Shown interface {
	// Since reports whether a line was written at a time or later.
	Since(line string, at time.Time) bool
}

// Print prints the refusals that the command did not show itself, then what could not be
// reached.
func (l *List) Print(w io.Writer, shown Shown, auditPath string) {
	l.All = slices.DeleteFunc(l.All, func(n *Refusal) bool { return n.answered && shown.Since(n.First(), time.Time{}) })
	for _, n := range l.All[:min(len(l.All), MaxPrinted)] {
		fmt.Fprintln(w, n.Line())
	}
	if more := len(l.All) + l.Dropped - MaxPrinted; more > 0 {
		fmt.Fprintf(w, "agentsh: %d more refusals in %s\n", more, auditPath)
	}
	for _, line := range l.unreached {
		fmt.Fprintln(w, line)
	}
}
