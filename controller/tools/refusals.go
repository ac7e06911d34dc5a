package tools

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"agentsh/controller/sandbox"
	"agentsh/internal/refusals"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Refusal is something that the policy refused to a command.
type Refusal struct {
	What    string `json:"what"`
	Rule    string `json:"rule,omitempty" jsonschema:"name of the rule"`
	At      string `json:"at,omitempty" jsonschema:"file:line:column of the rule"`
	Message string `json:"message,omitempty"`
	Hint    string `json:"hint,omitempty" jsonschema:"what to do instead"`
}

// String describes a refusal in one or two lines, for a model.
func (r Refusal) String() string {
	line := text.Denied(r.What, r.Rule, r.At, r.Message)
	if r.Hint != "" {
		line += "\nagentsh: hint: " + r.Hint
	}
	return line
}

// Refused collects the refusals of the commands that run, from the audit log of the sandbox.
// It is safe for concurrent use.
type Refused struct {
	from sandbox.Executor

	mu    sync.Mutex
	next  uint64                    // sequence number of the first event that was not read
	quiet int                       // commands without a refusal since the last reading
	of    map[string]*refusals.List // by the request id of the command
}

// NewRefused collects refusals in a sandbox from now on. A sandbox that does not give its
// events within 10 seconds is an error.
func NewRefused(ctx context.Context, from sandbox.Executor) (*Refused, error) {
	r := &Refused{from: from, of: map[string]*refusals.List{}, next: wire.LastEvent}
	limited, cancel := context.WithTimeoutCause(ctx, eventsWait, errEventsWait)
	defer cancel()
	if err := r.read(limited); err != nil {
		if cause := context.Cause(limited); cause != nil {
			err = cause
		}
		return nil, fmt.Errorf("read the events of the sandbox: %w", err)
	}
	if r.next == wire.LastEvent { // there is no event
		r.next = 0
	}
	return r, nil
}

// read reads the events up to the last one that there is.
func (r *Refused) read(ctx context.Context) error {
	return r.from.Events(ctx, wire.EventRequest{From: r.next, SoFar: true}, func(e wire.Event) error {
		r.next = e.Seq + 1
		if list := r.of[e.Command]; list != nil {
			list.Note(e)
		}
		return nil
	})
}

// Begin has the refusals of a command collected, by its request id.
func (r *Refused) Begin(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.of[id] = &refusals.List{}
}

// eventsWait bounds the reading of the events of a command.
const eventsWait = 10 * time.Second

var errEventsWait = fmt.Errorf("no answer within %s", eventsWait)

// maxQuiet is how many commands without a refusal may end before the events are read, so that the next reading is short.
const maxQuiet = 100

// Finish returns the refusals of a command that has ended. All of its events are written
// when the supervisor reports the end.
func (r *Refused) Finish(id string, exit wire.Exit) []Refusal {
	ctx, cancel := context.WithTimeout(context.Background(), eventsWait)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.of[id]
	defer delete(r.of, id)
	if exit.NothingRefused && len(list.All) == 0 && r.quiet < maxQuiet {
		r.quiet++
		return nil
	}
	r.quiet = 0
	err := r.read(ctx)
	var out []Refusal
	for _, one := range list.All[:min(len(list.All), refusals.MaxPrinted)] {
		out = append(out, Refusal{
			What: text.Short(one.What, maxWhat), Rule: text.Visible(one.Rule.Name), At: text.Visible(one.Rule.Position()),
			Message: one.Message, Hint: one.Hint,
		})
	}
	if more := len(list.All) + list.Dropped - len(out); more > 0 {
		out = append(out, Refusal{What: text.Count(more, "further refusal") + " of this command"})
	}
	if err != nil && len(out) > 0 { // without the sandbox the result says why
		out = append(out, Refusal{What: "perhaps more, which is not known: " + text.Visible(err.Error())})
	}
	return out
}

// maxWhat bounds the description of what was refused, in characters.
const maxWhat = 400

// tell is a text with the refusals of a command, after its output. The output may have some already.
func tell(output string, list []Refusal) string {
	var b strings.Builder
	b.WriteString(output)
	if output != "" && !strings.HasSuffix(output, "\n") {
		b.WriteByte('\n')
	}
	for _, r := range list {
		if said := r.String(); !strings.Contains(output, said) {
			b.WriteString(said + "\n")
		}
	}
	return b.String()
}

// ofExit is the refusal of the command itself.
func ofExit(what string, e wire.Exit) Refusal {
	one := Refusal{What: text.Short(what, maxWhat), Message: text.Visible(e.Message), Hint: text.Visible(e.Hint)}
	if e.Rule != nil {
		one.Rule, one.At = text.Visible(cmp.Or(e.Rule.Name, "default")), text.Visible(e.Rule.Position())
	}
	return one
}
