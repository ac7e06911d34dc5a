package tools

import (
	"context"
	"encoding/json"
	"errors"
	"path"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"agentsh/controller/sandbox"
	"agentsh/internal/layout"
	"agentsh/internal/wire"
)

// TestOutputsOfAllCommandsAreBounded has as many commands as may run print without an end, all at once and one
// after the other.
func TestOutputsOfAllCommandsAreBounded(t *testing.T) {
	block := make([]byte, 1<<20)
	for name, at := range map[string]int{"at once": maxRunning, "one after the other": 1} {
		var all commands
		var live []*command
		for len(live) < maxRunning {
			for range at {
				live = append(live, all.add("", func(error) {}))
			}
			for _, one := range live[len(live)-at:] {
				for range 20 {
					if _, err := one.output.Write(block); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		held := 0
		for _, one := range live {
			held += cap(one.output.kept)
			if total, kept := one.output.size(); total != 20<<20 || kept < maxAll/maxRunning {
				t.Errorf("%s: %d bytes of %d are kept", name, kept, total)
			}
		}
		if held > 2*maxAll {
			t.Errorf("%s: %d MiB are held", name, held>>20)
		}
		for _, one := range live {
			one.output.end()
			all.retire(one)
		}
		one := all.add("", func(error) {})
		for range 20 {
			_, _ = one.output.Write(block)
		}
		if _, kept := one.output.size(); kept < maxKept || len(all.live) != 1 {
			t.Errorf("%s: %d bytes are kept when one of %d runs", name, kept, len(all.live))
		}
	}
}

// TestArgumentsOfWaitingCallsAreBounded has many large writes wait for another writer.
func TestArgumentsOfWaitingCallsAreBounded(t *testing.T) {
	box := openTools(t)
	client := connect(t, box)
	box.limits.writing <- struct{}{}
	const size, calls = 15 << 20, 10
	content := strings.Repeat("x", size)
	var refused atomic.Int32
	results := make(chan string, calls)
	for range calls {
		go func() { // ends with the call
			r, err := client.CallTool(context.Background(), &mcp.CallToolParams{Name: "write", Arguments: map[string]any{
				"path": layout.Workspace + "/large", "content": content}})
			switch {
			case err != nil:
				results <- err.Error()
			case r.IsError:
				refused.Add(1)
				results <- r.Content[0].(*mcp.TextContent).Text
			default:
				results <- ""
			}
		}()
	}
	fits := maxArguments / (size + 100)
	var said []string
	for range calls - fits {
		said = append(said, <-results)
	}
	<-box.limits.writing
	for range fits {
		if s := <-results; s != "" {
			t.Error(s)
		}
	}
	for _, s := range said {
		if !strings.Contains(s, "MiB of arguments") {
			t.Errorf("%.200s", s)
		}
	}
	if box.limits.held.held != 0 || int(refused.Load()) != calls-fits {
		t.Errorf("%d bytes are still counted; %d calls were refused", box.limits.held.held, refused.Load())
	}
}

// TestReadsWaitForEachOther holds how many contents are in memory at a time.
func TestReadsWaitForEachOther(t *testing.T) {
	box := openTools(t)
	client := connect(t, box)
	for range maxContents {
		box.limits.contents <- struct{}{}
	}
	read := &mcp.CallToolParams{Name: "read", Arguments: map[string]any{"path": "/etc/passwd"}}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := client.CallTool(ctx, read); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	<-box.limits.contents
	if r, err := client.CallTool(context.Background(), read); err != nil || r.IsError {
		t.Errorf("%v %v", r, err)
	}
}

// TestAPatchOfLikeLinesEnds has hunks that fit nearly everywhere.
func TestAPatchOfLikeLinesEnds(t *testing.T) {
	file := strings.Repeat("same\n", 400_000)
	h := hunk{old: append(slices.Repeat([]string{"same"}, 200_000), "other"), new: []string{"x"}}
	f := filePatch{from: "f", to: "f", hunks: []hunk{h}}
	if _, err := f.apply(file, newEffort(context.Background())); err == nil || !strings.Contains(err.Error(), "at too many places") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errKilled)
	work := newEffort(ctx)
	if _, err := f.apply(file, work); !errors.Is(err, errKilled) || work.left < maxCompared-100_000 {
		t.Errorf("%v after %d comparisons", err, maxCompared-work.left)
	}
	f.hunks[0].old, f.hunks[0].at = h.old[:200_000], 300_000 // it fits at 200,000 places
	if _, err := f.apply(file, newEffort(context.Background())); err == nil {
		t.Error("200,000 places of 200,000 lines are compared")
	}
	f.hunks[0].old, f.hunks[0].at = h.old[:3], 300_000
	if got, err := f.apply(file, newEffort(context.Background())); err != nil || strings.Index(got, "x") != 5*299_999 {
		t.Errorf("at %d, %v", strings.Index(got, "x"), err)
	}
}

// TestAPatchOfManyLargeFilesIsRefused holds what a patch keeps in memory.
func TestAPatchOfManyLargeFilesIsRefused(t *testing.T) {
	box := openTools(t)
	client := connect(t, box)
	var patch strings.Builder
	patch.WriteString("*** Begin Patch\n")
	for _, name := range []string{"a", "b", "c"} {
		file := layout.Workspace + "/" + name
		if _, err := box.put(context.Background(), file, "first\n"+strings.Repeat("a line\n", 2_000_000)); err != nil {
			t.Fatal(err)
		}
		patch.WriteString("*** Update File: " + file + "\n-first\n+second\n")
	}
	patch.WriteString("*** End Patch\n")
	arguments := map[string]any{"patch": patch.String()}
	r, err := client.CallTool(context.Background(), &mcp.CallToolParams{Name: "apply_patch", Arguments: arguments})
	const refused = "nothing was changed: the files of the patch have more than 64 MiB"
	if err != nil || !r.IsError || !strings.Contains(r.Content[0].(*mcp.TextContent).Text, refused) {
		t.Errorf("%v %v", r, err)
	}
}

// TestNamesOfChangesComeInBatches holds that a script gets no more arguments than the kernel takes.
func TestNamesOfChangesComeInBatches(t *testing.T) {
	var list []Change
	var want []string
	for i := range 700 {
		name := strings.Repeat(string(rune('a'+i%26)), i*5)
		list = append(list, Change{Change: wire.Change{Path: wire.Name(name)}})
		want = append(want, path.Join("/w", name))
	}
	var got []string
	for names := range batches("/w", list) {
		if n := len(strings.Join(names, " ")); n > maxNames {
			t.Errorf("%d bytes", n)
		}
		got = append(got, names...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%d names of %d", len(got), len(want))
	}
}

// countedEvents counts how often events are read.
type countedEvents struct {
	sandbox.Executor
	n atomic.Int32
}

func (c *countedEvents) Events(ctx context.Context, req wire.EventRequest, fn func(wire.Event) error) error {
	c.n.Add(1)
	return c.Executor.Events(ctx, req, fn)
}

// TestEventsAreReadWhereSomethingWasRefused runs commands to which nothing is refused, and commands to which a program, a file or
// the command itself is.
func TestEventsAreReadWhereSomethingWasRefused(t *testing.T) {
	events := &countedEvents{Executor: openBox(t)}
	box, err := New(context.Background(), Config{Program: "test", Version: "1", Sandbox: events, Dir: layout.Sandbox})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(box.Close)
	client := connect(t, box)
	refusals := func(argv ...string) string {
		res, err := callExec(context.Background(), client, argv...)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(res.StructuredContent)
		if err != nil {
			t.Fatal(err)
		}
		var out execOutput
		if err := json.Unmarshal(data, &out); err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, one := range out.Refusals {
			list = append(list, one.What)
		}
		return strings.Join(list, "; ")
	}
	began := events.n.Load() // when the tools were made
	for range maxQuiet {
		if got := refusals("true"); got != "" {
			t.Fatal(got)
		}
	}
	if n := events.n.Load() - began; n != 0 {
		t.Errorf("the events were read %d times for nothing", n)
	}
	refusals("true")
	if n := events.n.Load() - began; n != 1 {
		t.Errorf("after %d commands the events were read %d times", maxQuiet+1, n)
	}
	for _, tt := range []struct{ script, want string }{
		{"/bin/kill -l; true", "/bin/kill -l"},
		{"true; cat /etc/shadow", "/etc/shadow"},
		{"mkdir /sandbox/claude-config", "/sandbox/claude-config"},
	} {
		if got := refusals("sh", "-c", tt.script); !strings.Contains(got, tt.want) {
			t.Errorf("%s: %q", tt.script, got)
		}
	}
	if got := refusals("kill", "-l"); !strings.Contains(got, "kill -l") {
		t.Errorf("kill: %q", got)
	}
}
