package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"agentsh/controller/runtime"
	"agentsh/controller/sandbox"
	"agentsh/internal/wire"
)

// Tool is a tool that an agent used.
type Tool struct {
	Name   string `json:"name"`
	Calls  int    `json:"calls"`
	Failed int    `json:"failed"`
}

// Bounds of an iteration's result. Further tools are counted together; further
// errors are dropped.
const (
	maxTools  = 200
	maxErrors = 20
)

// otherTools counts the tools beyond the bound.
const otherTools = "(others)"

// loggedEvent is one line of the log of agent events.
type loggedEvent struct {
	Time      time.Time `json:"time"`
	Iteration int       `json:"iteration"`
	runtime.Event
}

// listener logs, shows and counts the events of the agent in one iteration. Two
// goroutines may call add, one for each stream.
type listener struct {
	iteration int
	results   *results
	show      progress

	mu     sync.Mutex
	usage  *runtime.Usage
	shown  runtime.Usage // of the updates since the last usage event
	tools  []*Tool
	byName map[string]*Tool
	calls  map[string]*Tool // running, by id
	errors []string
	ended  *runtime.Event // the last result event
	last   string         // last text of the model
	stderr string         // the last line of standard error that is not empty
	failed error          // the first failure to write a log
}

func newListener(iteration int, to *results, show progress) *listener {
	return &listener{iteration: iteration, results: to, show: show, byName: map[string]*Tool{}, calls: map[string]*Tool{}}
}

// add handles one event.
func (l *listener) add(e runtime.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Kind == runtime.EventUsing {
		if e.Usage != nil {
			l.shown.Add(*e.Usage)
			l.show.send(Update{Kind: UpdateUsage, Usage: *e.Usage})
		}
		return
	}
	line, err := json.Marshal(loggedEvent{Time: time.Now().UTC(), Iteration: l.iteration, Event: e})
	if err == nil {
		err = l.results.event(line)
	}
	for _, text := range l.count(e) {
		if logErr := l.results.line(text); err == nil {
			err = logErr
		}
		l.show.output(e.Stream, text)
	}
	if l.failed == nil {
		l.failed = err
	}
}

// count counts an event and returns its description as lines of text.
func (l *listener) count(e runtime.Event) []string {
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
			l.show.send(Update{Kind: UpdateUsage, Usage: e.Usage.Without(l.shown)})
			l.shown = runtime.Usage{}
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

// into writes the counts into the iteration's result.
func (l *listener) into(it *IterationResult) {
	l.mu.Lock()
	defer l.mu.Unlock()
	it.Usage, it.Errors = l.usage, l.errors
	for _, t := range l.tools {
		it.Tools = append(it.Tools, *t)
	}
}

// end is the error of the iteration, with the error that the program reported.
// exit is the error of the process; it is nil after exit status 0. With must,
// the program must report its end, otherwise the iteration failed.
func (l *listener) end(exit error, must bool) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	reason := "it ended without a result"
	switch {
	case l.ended != nil && l.ended.Failed:
		reason = cmp.Or(l.ended.Text, "it does not say why")
	case l.ended != nil, exit == nil && !must:
		return exit
	case len(l.errors) > 0:
		reason = l.errors[len(l.errors)-1]
	case exit != nil && !must:
		return exit
	case exit != nil:
		reason = l.stderr
	}
	reason = short(strings.TrimSpace(reason))
	if exit == nil {
		return fail(ExitAgentFailed, agentLogHint, fmt.Errorf("the agent failed: %s", reason))
	}
	return addToFailure(exit, reason)
}

// oneLineOf shortens a text to one line.
func oneLineOf(text string) string { return short(strings.TrimSpace(text)) }

// DefaultOutput is the number of bytes that an agent may print in one iteration.
const DefaultOutput = 1 << 30

// outputLimit is an executor that ends a command that prints too much.
type outputLimit struct {
	sandbox.Executor
	limit int64 // bytes of both outputs together
	over  atomic.Bool
}

func newOutputLimit(ex sandbox.Executor, limit int64) *outputLimit {
	return &outputLimit{Executor: ex, limit: cmp.Or(limit, DefaultOutput)}
}

// Run implements [sandbox.Executor].
func (o *outputLimit) Run(ctx context.Context, req wire.ExecRequest, s sandbox.Streams) (wire.Exit, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var printed atomic.Int64
	count := func(w io.Writer) io.Writer {
		return writerFunc(func(p []byte) (int, error) {
			if printed.Add(int64(len(p))) > o.limit {
				o.over.Store(true)
				cancel()
				return len(p), nil // dropped until the command has ended
			}
			return w.Write(p)
		})
	}
	s.Stdout, s.Stderr = count(s.Stdout), count(s.Stderr)
	return o.Executor.Run(ctx, req, s)
}

// failure is the failure of a command that printed too much; nil: it did not.
func (o *outputLimit) failure() error {
	if !o.over.Load() {
		return nil
	}
	return fail(ExitAgentFailed, "raise --max-output", fmt.Errorf("the agent printed more than %d MiB and was ended", o.limit>>20))
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
