package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"agentsh/internal/foreground"
	"agentsh/internal/text"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/audit"
)

// maxDenials is how many refusals are printed after a command, and
// maxKeptDenials how many different ones are remembered.
const (
	maxDenials     = 20
	maxKeptDenials = 1000
)

// denial is one refusal, and how often it happened.
type denial struct {
	What    string      `json:"what"`
	Rule    wire.RuleAt `json:"rule,omitzero"`
	Message string      `json:"message,omitempty"`
	Hint    string      `json:"hint,omitempty"`
	Count   int         `json:"count"`

	answered bool // the program got the reason as the answer of a request
}

// denials collects the refusals of a session, in the order they first happened.
// The zero value is empty.
type denials struct {
	list    []*denial
	known   map[denial]*denial
	dropped int // different ones beyond the limit
}

// refusals reads the denials since event from.
func refusals(ctx context.Context, log *audit.Log, from uint64) (denials, error) {
	var d denials
	last := log.Head().Seq
	if last < from {
		return d, nil
	}
	follower, err := log.Subscribe(from)
	if err != nil {
		return d, err
	}
	for err == nil {
		var e wire.Event
		if e, err = follower.Next(context.WithoutCancel(ctx)); err != nil {
			break
		}
		d.note(e)
		if e.Seq >= last {
			break
		}
	}
	return d, errors.Join(err, follower.Close())
}

// note takes one audit event.
func (d *denials) note(e wire.Event) {
	if e.Decision != policy.Deny.String() || e.Type == wire.EventApproval { // the event of the operation follows
		return
	}
	what := strings.Join(e.Argv, " ")
	if what == "" {
		what = strings.Join(slices.DeleteFunc([]string{e.Op, e.Path, e.Target}, func(s string) bool { return s == "" }), " ")
	}
	n := denial{What: printable(what), Message: printable(e.Message), Hint: printable(e.Hint), answered: answered(e)}
	if e.Rule != nil {
		n.Rule = *e.Rule
	}
	if d.known == nil {
		d.known = map[denial]*denial{}
	}
	times := max(e.Count, 1)
	switch known := d.known[n]; {
	case known != nil:
		known.Count += times
	case len(d.list) == maxKeptDenials:
		d.dropped++
	default:
		counted := n
		counted.Count = times
		d.known[n] = &counted
		d.list = append(d.list, &counted)
	}
}

// first is the first line of a denial, and the only one that it always has.
func (n *denial) first() string {
	return text.Denied(n.What, n.Rule.Name, n.Rule.Position(), n.Message)
}

// line describes a denial for a person.
func (n *denial) line() string {
	line := n.first()
	if n.Hint != "" {
		line += "\nagentsh: hint: " + n.Hint
	}
	return line
}

// print prints the denials that the command did not show itself.
func (d *denials) print(w io.Writer, shown *foreground.Shown, auditPath string) {
	d.list = slices.DeleteFunc(d.list, func(n *denial) bool { return n.answered && shown.Since(n.first(), time.Time{}) })
	for _, n := range d.list[:min(len(d.list), maxDenials)] {
		fmt.Fprintln(w, n.line())
	}
	if more := len(d.list) + d.dropped - maxDenials; more > 0 {
		fmt.Fprintf(w, "agentsh: %d more refusals in %s\n", more, auditPath)
	}
}

// printable escapes control characters: an agent chooses these texts.
func printable(s string) string { return text.Visible(s) }
