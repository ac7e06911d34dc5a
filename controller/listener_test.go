package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"agentsh/controller/runtime"
)

// newTestListener returns a listener with its own logs, the lines that it
// shows, and a function that reads a log.
func newTestListener(t *testing.T) (l *listener, shown *[]string, read func(name string) string) {
	t.Helper()
	to := &results{staging: filepath.Join(t.TempDir(), "s")}
	if err := to.create(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = to.closeLogs() })
	shown = &[]string{}
	show := func(u Update) {
		if u.Kind == UpdateOutput {
			*shown = append(*shown, u.Text)
		}
	}
	return newListener(2, to, show), shown, func(name string) string {
		data, err := os.ReadFile(filepath.Join(to.staging, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
}

func TestAgentEventsAreRecordedShownAndSummarized(t *testing.T) {
	l, shown, read := newTestListener(t)
	for _, e := range []runtime.Event{
		{Kind: runtime.EventLine, Stream: "stderr", Text: "a line"},
		{Kind: runtime.EventSaid, Text: "two\nlines"},
		{Kind: runtime.EventToolCall, Tool: "Bash", Call: "1", Text: "make\ntest"},
		{Kind: runtime.EventToolCall, Tool: "Edit", Call: "2", Text: "a.go"},
		{Kind: runtime.EventToolResult, Call: "1", Text: "exit 2\nlong", Failed: true},
		{Kind: runtime.EventToolResult, Call: "2", Text: "ok"},
		{Kind: runtime.EventToolCall, Tool: "Bash", Call: "3", Text: "true"},
		{Kind: runtime.EventUsage, Usage: &runtime.Usage{Model: "m", Turns: 2, Input: 5, CostUSD: 0.5}},
		{Kind: runtime.EventUsage, Usage: &runtime.Usage{Turns: 1, Input: 7, CostUSD: math.MaxFloat64}},
		{Kind: runtime.EventError, Text: "no such thing"},
		{Kind: runtime.EventSaid, Text: "done"},
		{Kind: runtime.EventResult, Text: "done"},
	} {
		l.add(e)
	}
	want := []string{
		"a line",
		"two",
		"lines",
		"Bash: make test",
		"Edit: a.go",
		"Bash failed: exit 2 long",
		"Bash: true",
		"error: no such thing",
		"done",
	}
	if !slices.Equal(*shown, want) {
		t.Errorf("shown: %q", *shown)
	}
	if log := read(agentLogName); log != strings.Join(want, "\n")+"\n" {
		t.Errorf("log: %q", log)
	}
	lines := strings.Split(strings.TrimSpace(read(eventsName)), "\n")
	var e loggedEvent
	if err := json.Unmarshal([]byte(lines[4]), &e); err != nil || len(lines) != 12 || e.Iteration != 2 || e.Time.IsZero() || e.Call != "1" ||
		!e.Failed ||
		e.Text != "exit 2\nlong" {
		t.Errorf("%d events, %+v, %v", len(lines), e, err)
	}
	var it IterationResult
	l.into(&it)
	if !slices.Equal(it.Tools, []Tool{{"Bash", 2, 1}, {"Edit", 1, 0}}) || !slices.Equal(it.Errors, []string{"no such thing"}) ||
		*it.Usage != (runtime.Usage{Model: "m", Turns: 3, Input: 12, CostUSD: 0.5}) {
		t.Errorf("%+v %+v", it, it.Usage)
	}
	if _, err := json.Marshal(it); err != nil {
		t.Error(err)
	}
}

// Two goroutines read standard output and standard error.
func TestBothStreamsOfAnAgentAtOnce(t *testing.T) {
	l, shown, read := newTestListener(t)
	rt, err := runtime.Lookup("claude")
	if err != nil {
		t.Fatal(err)
	}
	p := rt.Parser(l.add)
	var both sync.WaitGroup
	for w, line := range map[io.Writer]string{
		p.Stdout(): `{"type":"assistant","message":{"id":"m","content":[{"type":"tool_use","id":"1","name":"Bash","input":{"command":"true"}}]}}`, p.Stderr(): "a line",
	} {
		both.Go(func() {
			for range 100 {
				if _, err := io.WriteString(w, line+"\n"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	both.Wait()
	p.Close()
	var it IterationResult
	l.into(&it)
	if len(it.Tools) != 1 || it.Tools[0].Calls != 100 || len(*shown) != 200 || strings.Count(read(eventsName), "\n") != 201 ||
		it.Usage.Turns != 1 {
		t.Errorf("%+v %+v, %d shown", it.Tools, it.Usage, len(*shown))
	}
}

func TestToolsOfAnAgentAreBounded(t *testing.T) {
	l, _, _ := newTestListener(t)
	for n := range 10_000 {
		l.add(runtime.Event{Kind: runtime.EventToolCall, Tool: fmt.Sprint("t", n), Call: fmt.Sprint(n)})
		l.add(runtime.Event{Kind: runtime.EventError, Text: strings.Repeat("x", 1000)})
	}
	var it IterationResult
	l.into(&it)
	calls := 0
	for _, tool := range it.Tools {
		calls += tool.Calls
	}
	if calls != 10_000 || len(it.Tools) > maxTools+1 || len(it.Errors) != maxErrors || len(it.Errors[0]) > maxWhat+10 ||
		len(l.calls) > maxRefusals {
		t.Errorf("%d calls of %d tools, %d errors, %d running", calls, len(it.Tools), len(it.Errors), len(l.calls))
	}
}

func TestLogsOfAnAgentAreBounded(t *testing.T) {
	l, shown, read := newTestListener(t)
	l.results.log.left, l.results.events.left = 100, 200
	for range 50 {
		l.add(runtime.Event{Kind: runtime.EventLine, Text: "more"})
	}
	if log := read(agentLogName); len(log) > 200 || !strings.HasSuffix(log, "more\n(the rest was dropped)\n") || l.failed != nil {
		t.Errorf("%q %v", log, l.failed)
	}
	for line := range strings.Lines(read(eventsName)) {
		var e loggedEvent
		if err := json.Unmarshal([]byte(line), &e); err != nil || e.Kind != runtime.EventLine {
			t.Errorf("%s: %v", line, err)
		}
	}
	if len(*shown) != 50 {
		t.Errorf("%d lines were shown", len(*shown))
	}
}

func TestAProgramThatSaysItFailedHasFailed(t *testing.T) {
	exit := fail(ExitAgentFailed, "h", errors.New("the agent exited with status 1"))
	timeout := fail(ExitTimeout, "h", errors.New("the agent did not end"))
	result := func(text string, failed bool) runtime.Event {
		return runtime.Event{Kind: runtime.EventResult, Text: text, Failed: failed}
	}
	report := runtime.Event{Kind: runtime.EventError, Text: "API\nError"}
	for name, tt := range map[string]struct {
		events []runtime.Event
		exit   error
		must   bool
		code   int
		says   string
	}{
		"it is done":            {[]runtime.Event{result("ok", false)}, nil, true, 0, ""},
		"a script says nothing": {nil, nil, false, 0, ""},
		"failed, with status 0": {[]runtime.Event{result("API Error", true)}, nil, true, ExitAgentFailed,
			"the agent failed: API Error"},
		"failed, and says nothing of it": {[]runtime.Event{result("", true)}, nil, true, ExitAgentFailed,
			"the agent failed: it does not say why"},
		"failed, then done": {[]runtime.Event{result("x", true), result("ok", false)}, nil, true, 0, ""},
		"failed, with a status": {[]runtime.Event{result("API Error", true)}, exit, true, ExitAgentFailed,
			"the agent exited with status 1: API Error"},
		"no result":                {nil, nil, true, ExitAgentFailed, "the agent failed: it ended without a result"},
		"no result after an error": {[]runtime.Event{report}, nil, true, ExitAgentFailed, "the agent failed: API Error"},
		"a status after an error":  {[]runtime.Event{report}, exit, true, ExitAgentFailed, "the agent exited with status 1: API Error"},
		"a status after a word of it": {[]runtime.Event{{Kind: runtime.EventLine, Stream: "stderr", Text: "no agent x"}}, exit, true,
			ExitAgentFailed, "the agent exited with status 1: no agent x"},
		"a script's status": {[]runtime.Event{{Kind: runtime.EventLine, Stream: "stderr", Text: "no agent x"}}, exit, false,
			ExitAgentFailed, "the agent exited with status 1"},
		"a status after done":              {[]runtime.Event{result("ok", false)}, exit, true, ExitAgentFailed, "the agent exited with status 1"},
		"a timeout stays one":              {[]runtime.Event{report}, timeout, true, ExitTimeout, "the agent did not end: API Error"},
		"a timeout after it says it ended": {[]runtime.Event{result("ok", false)}, timeout, true, ExitTimeout, "the agent did not end"},
	} {
		l, _, _ := newTestListener(t)
		for _, e := range tt.events {
			l.add(e)
		}
		err := l.end(tt.exit, tt.must)
		var f *Failure
		if errors.As(err, &f); (err == nil) != (tt.code == 0) || err != nil && (f.Code != tt.code || f.Err.Error() != tt.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
