package controller

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"agentsh/controller/runtime"
)

// Tool is a tool that an agent used.
type Tool struct {
	Name   string `json:"name"`
	Calls  int    `json:"calls"`
	Failed int    `json:"failed"`
}

// Bounds of what an iteration's result lists; more is counted or dropped.
const (
	maxTools  = 200
	maxErrors = 20
)

// otherTools stands for the tools beyond the bound.
const otherTools = "(others)"

// loggedEvent is one line of the agent's event log.
type loggedEvent struct {
	Time      time.Time `json:"time"`
	Iteration int       `json:"iteration"`
	runtime.Event
}

// listener keeps and shows what the agent of one iteration says and does, and
// sums it up. Its said may be called by two goroutines, one for each stream.
type listener struct {
	iteration int
	results   *results
	show      func(stream, text string)

	mu     sync.Mutex
	usage  *runtime.Usage
	tools  []*Tool
	byName map[string]*Tool
	calls  map[string]*Tool // running, by id
	errors []string
	ended  *runtime.Event // the last result
	last   string         // text of the model
	stderr string         // the last line of standard error that is not empty
	failed error          // to write a log, told once
}

func (r *run) listen(iteration int) *listener {
	return &listener{
		iteration: iteration, results: r.results, byName: map[string]*Tool{}, calls: map[string]*Tool{},
		show: func(stream, text string) { r.tell(Update{Kind: UpdateOutput, Stream: stream, Text: text}) },
	}
}

// said takes one event.
func (l *listener) said(e runtime.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line, err := json.Marshal(loggedEvent{Time: time.Now().UTC(), Iteration: l.iteration, Event: e})
	if err == nil {
		err = l.results.event(line)
	}
	for _, text := range l.sum(e) {
		if logErr := l.results.line(text); err == nil {
			err = logErr
		}
		l.show(e.Stream, text)
	}
	if l.failed == nil {
		l.failed = err
	}
}

// sum counts an event and returns the lines that tell people of it.
func (l *listener) sum(e runtime.Event) []string {
	switch e.Kind {
	case runtime.EventLine:
		if e.Stream == "stderr" && strings.TrimSpace(e.Text) != "" {
			l.stderr = e.Text
		}
		return []string{e.Text}
	case runtime.EventSaid:
		l.last = e.Text
		return strings.Split(e.Text, "\n")
	case runtime.EventToolCall:
		l.call(e)
		return []string{e.Tool + ": " + oneLineOf(e.Text)}
	case runtime.EventToolResult:
		if !e.Failed {
			return nil
		}
		tool := e.Tool
		if t := l.calls[e.Call]; t != nil {
			t.Failed++
			tool = t.Name
		}
		delete(l.calls, e.Call)
		return []string{tool + " failed: " + oneLineOf(e.Text)}
	case runtime.EventUsage:
		if e.Usage != nil {
			if l.usage == nil {
				l.usage = &runtime.Usage{}
			}
			l.usage.Add(*e.Usage)
		}
		return nil
	case runtime.EventError:
		if len(l.errors) < maxErrors {
			l.errors = append(l.errors, short(e.Text))
		}
		return strings.Split("error: "+e.Text, "\n")
	case runtime.EventResult:
		l.ended = &e
		if e.Text == l.last || e.Text == "" {
			return nil
		}
		return strings.Split(e.Text, "\n")
	}
	return []string{e.Text}
}

// call counts a call of a tool.
func (l *listener) call(e runtime.Event) {
	name := short(e.Tool)
	t := l.byName[name]
	if t == nil {
		if len(l.tools) >= maxTools {
			name = otherTools
		}
		if t = l.byName[name]; t == nil {
			t = &Tool{Name: name}
			l.byName[name] = t
			l.tools = append(l.tools, t)
		}
	}
	t.Calls++
	if e.Call != "" && len(l.calls) < maxRefusals {
		l.calls[e.Call] = t
	}
}

// into writes the sums into the iteration's result.
func (l *listener) into(it *IterationResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	it.Usage, it.Errors = l.usage, l.errors
	for _, t := range l.tools {
		it.Tools = append(it.Tools, *t)
	}
}

// verdict is what the program says of its own end: an error when it failed, and
// when it should have said something and did not. exit is how its process
// ended, nil when that was well.
func (l *listener) verdict(exit error, must bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	said := "it ended without a result"
	switch {
	case l.ended != nil && l.ended.Failed:
		said = cmp.Or(l.ended.Text, "it does not say why")
	case l.ended != nil, exit == nil && !must:
		return exit
	case len(l.errors) > 0:
		said = l.errors[len(l.errors)-1]
	case exit != nil && !must:
		return exit
	case exit != nil:
		said = l.stderr
	}
	said = short(strings.TrimSpace(said))
	if exit == nil {
		return fail(ExitAgentFailed, agentLogHint, fmt.Errorf("the agent failed: %s", said))
	}
	return addToFailure(exit, said)
}

// oneLineOf is a text on one line.
func oneLineOf(text string) string { return short(strings.TrimSpace(text)) }
