package report

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"agentsh/controller"
	"agentsh/controller/agenthost"
	"agentsh/controller/attach"
	"agentsh/controller/harness"
	"agentsh/controller/record"
	"agentsh/controller/runtime"
	"agentsh/controller/scan"
	"agentsh/internal/wire"
	auditreport "agentsh/supervisor/audit/report"
)

// hostile are texts with which an agent would try to break a page, a terminal
// or a Markdown reader.
var hostile = []string{
	"</style></title><script>alert(1)</script>", `"><img src=http://example.com/x onerror=alert(1)>`, "' onmouseover='alert(1)",
	"\x1b[2J\x1b]0;owned\a", "a\u009b2Jb", "\u202egpj.exe", "\xff\xfe", "line\nbreak\r\n# Heading\n| a | b |",
	"``` [x](javascript:alert(1)) `",
	"javascript:alert(1)", "{{.}}", "</svg></body></html>", "<!--", "]]>", "</pre></details>",
	"<a href=http://example.com>", "<link rel=stylesheet href=//example.com/x.css>", "\u2066\u200b\U000e0041",
}

// files are the files in the directory of a run.
type files map[string]any

// example is a run with the given status. Every text that an agent or a
// repository can choose is hostile.
func example(t testing.TB, status string) record.Run {
	t.Helper()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	end := at(9000)
	run := record.Run{Path: t.TempDir(), Record: record.Record{
		Version: 1, RunID: "20260102t030405-0a1b2c3d", Harness: "harness/fix.yaml", Agent: "fix-bug", Repo: "/work/repo",
		Out:     filepath.Join(t.TempDir(), "out"),
		Backend: "local", Sandbox: "20260102t030405-0a1b2c3d", Status: status, Started: start, Ended: &end,
	}}
	for i, name := range []string{"load", "expand", "preflight", "create_sandbox", "wait_ready", "bootstrap", "iterations", "deliver",
		"delete"} {
		began, ended := at(i*300), at(i*300+250)
		if name == "iterations" {
			ended = at(8000)
		}
		if i > 6 {
			began, ended = at(8000+i), at(8200+i)
		}
		run.Steps = append(run.Steps, record.Step{Name: name, Started: began, Ended: &ended})
	}
	acts := []attach.Action{{Time: at(4000), By: "root", What: "exec ls"}}
	result := controller.Result{
		Version: 1, RunID: run.RunID, Status: status, Agent: "fix-bug", Runtime: "claude", Role: "tester", Policy: "sha256:abc",
		Engine: "trace", Degraded: []string{"cgroup", "landlock_scopes"}, Advisory: "rules about nested programs",
		Guarantees: []controller.Guarantee{{Group: "commands", HeldBy: "agentsh"}, {Group: "network", HeldBy: "OpenShell"},
			{Group: "signals", HeldBy: "not held"}, {Group: "limits", HeldBy: "agentsh"}},
		AgentHost: &agenthost.About{Program: "/bin/x", Why: "no namespaces"},
		Repo:      run.Repo, Base: strings.Repeat("a", 40),
		Branch: "agentctl/fix-bug/x", Out: run.Out, Audit: filepath.Join(run.Out, "audit.jsonl"), Commands: 12, Refusals: 3, Started: start,
		Ended: end,
		Iterations: []controller.IterationResult{
			{Number: 1, Exit: wire.Exit{Kind: wire.ExitExited}, Validation: "failed", Duration: 3 * time.Second},
			{Number: 2, Exit: wire.Exit{Kind: wire.ExitExited}, Validation: "passed", Duration: 2 * time.Second},
		},
	}
	changes := controller.Changes{Version: 1, Files: []controller.FileDiff{
		{
			Path:    "slot.go",
			Status:  "modified",
			OldMode: 0o644,
			NewMode: 0o644,
			Added:   1,
			Removed: 1,
			Diff:    "@@ -10,3 +10,3 @@ func merge\n \tfor _, s := range slots {\n-\t\tif s.From < out[last].To {\n+\t\tif s.From <= out[last].To {\n",
		},
		{Path: "logo.png", Status: "modified", By: wire.ByBoth, OldMode: 0o644, NewMode: 0o755, OldSize: 1200, NewSize: 4096, Why: "binary"},
	}}
	events := []record.AgentEvent{
		{Time: at(3000), Iteration: 1, Event: runtime.Event{Kind: runtime.EventSaid, Text: "I will look at the test first."}},
		{Time: at(3100), Iteration: 1, Event: runtime.Event{Kind: runtime.EventToolCall, Tool: "Bash", Call: "1", Text: "go test ./..."}},
		{
			Time:      at(3900),
			Iteration: 1,
			Event: runtime.Event{
				Kind:   runtime.EventToolResult,
				Call:   "1",
				Failed: true,
				Text:   "--- FAIL: TestMerge\n    slot_test.go:12: got 2 slots, want 1",
			},
		},
		{
			Time:      at(3910),
			Iteration: 1,
			Event: runtime.Event{
				Kind:  runtime.EventUsage,
				Usage: &runtime.Usage{Model: "model-a", Turns: 2, Input: 12345, Output: 678, CacheRead: 90000, CostUSD: 0.0421},
			},
		},
		{Time: at(5000), Iteration: 2, Event: runtime.Event{Kind: runtime.EventLine, Stream: "stderr", Text: "a line"}},
		{Time: at(5001), Iteration: 2, Event: runtime.Event{Kind: runtime.EventLine, Stream: "stderr", Text: "another"}},
		{Time: at(5100), Iteration: 2, Event: runtime.Event{Kind: runtime.EventResult, Text: "The bug is mended."}},
	}
	add := func(e wire.Event) wire.Event { e.Session = "S1"; return e }
	log := []wire.Event{
		add(wire.Event{Time: at(2000), Type: wire.EventSession, Phase: "begin", Message: "policy demo " + strings.Repeat("0123456789abcdef", 4)}),
		add(
			wire.Event{
				Time:     at(3000),
				Type:     wire.EventCommand,
				Phase:    "begin",
				Command:  "c",
				By:       "root",
				Argv:     []string{"bash", "run.sh"},
				Decision: "allow",
			},
		),
		add(
			wire.Event{
				Time:     at(3500),
				Type:     wire.EventNet,
				Command:  "c",
				Phase:    "begin",
				Target:   "api.example.com:443",
				Decision: "allow",
				Rule:     &wire.RuleAt{Name: "api", File: "p.yaml", Line: 3, Column: 1},
				Net:      &wire.Net{ID: 7},
			},
		),
		add(
			wire.Event{
				Time:     at(3600),
				Type:     wire.EventNet,
				Command:  "c",
				Target:   "169.254.169.254:80",
				Decision: "deny",
				Rule:     &wire.RuleAt{Name: "block-metadata"},
				Message:  "no metadata",
			},
		),
		add(
			wire.Event{
				Time:     at(3700),
				Type:     wire.EventNet,
				Command:  "c",
				Phase:    "end",
				Target:   "api.example.com:443",
				Decision: "allow",
				Rule:     &wire.RuleAt{Name: "api", File: "p.yaml", Line: 3, Column: 1},
				Net:      &wire.Net{ID: 7, Sent: 2048, Received: 1 << 20},
			},
		),
	}
	for i, h := range hostile {
		result.Findings = append(
			result.Findings,
			scan.Finding{File: h, Line: 1, Column: 2, Rule: h, Severity: scan.Severity(i % 4), Message: h, Excerpt: h, Hint: h},
		)
		result.Commits = append(result.Commits, controller.Commit{ID: h, Subject: h})
		result.Branches = append(result.Branches, h)
		result.Review = &controller.Review{Label: h}
		result.Iterations[0].Feedback += h + "\n"
		changes.Files = append(
			changes.Files,
			controller.FileDiff{Path: h, Status: "added", Added: 2, Diff: "@@ -0,0 +1,2 @@\n+" + strings.ReplaceAll(h, "\n", "\n+") + "\n"},
		)
		for _, kind := range []string{runtime.EventSaid, runtime.EventToolCall, runtime.EventToolResult, runtime.EventLine, runtime.EventError,
			runtime.EventResult, h} {
			events = append(
				events,
				record.AgentEvent{Time: at(5200 + i), Iteration: 2, Event: runtime.Event{Kind: kind, Stream: h, Tool: h, Call: h, Text: h}},
			)
		}
		events = append(
			events,
			record.AgentEvent{Iteration: 2, Event: runtime.Event{Kind: runtime.EventUsage, Usage: &runtime.Usage{Model: h, Input: 1}}},
		)
		rule := &wire.RuleAt{Name: h, File: h}
		log = append(
			log,
			add(
				wire.Event{
					Time:     at(4000 + i),
					Type:     wire.EventExec,
					Command:  "c",
					Argv:     []string{h},
					Path:     h,
					Decision: "deny",
					Rule:     rule,
					Message:  h,
					Hint:     h,
				},
			),
			add(
				wire.Event{Time: at(4100 + i), Type: wire.EventNet, Command: "c", Target: h, Op: h, Path: h, Decision: "deny", Rule: rule, Message: h},
			),
		)
		acts = append(acts, attach.Action{By: h, What: h})
	}
	log = append(
		log,
		add(wire.Event{Time: at(8000), Type: wire.EventCommand, Phase: "end", Command: "c", Exit: &wire.Exit{Kind: wire.ExitExited}}),
		add(wire.Event{Time: at(8100), Type: wire.EventSession, Phase: "end"}),
	)
	all := files{
		record.ResultFile:      result,
		record.ChangesFile:     changes,
		record.AgentEventsFile: events,
		record.AuditFile:       log,
		"operator.jsonl":       acts,
	}
	if status != controller.StatusDone {
		result.Error = &controller.ResultError{
			Step:     "iterations",
			Message:  hostile[0],
			Hint:     hostile[1],
			Problems: harness.Problems{{Message: hostile[2]}},
		}
		all[record.ResultFile] = result
	}
	switch status {
	case controller.StatusBlocked:
		result.Audit = ""
		all[record.ResultFile] = result
		delete(all, record.ChangesFile)
		delete(all, record.AgentEventsFile)
	case record.StatusAbandoned:
		delete(all, record.ResultFile)
		delete(all, record.AgentEventsFile)
		delete(all, record.ChangesFile)
		run.Ended, run.Steps = nil, run.Steps[:4]
		run.Steps[3].Ended = nil
	}
	all.write(t, &run)
	return run
}

// write writes the files of a run.
func (f files) write(t testing.TB, run *record.Run) {
	t.Helper()
	for name, v := range f {
		var data []byte
		switch v := v.(type) {
		case []wire.Event:
			data = chain(t, v)
		case []record.AgentEvent:
			data = jsonLines(t, v)
		case []attach.Action:
			data = jsonLines(t, v)
		case string:
			data = []byte(v)
		default:
			var err error
			if data, err = json.Marshal(v); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(run.Path, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
		run.Stored = append(run.Stored, record.Stored{Name: name, Bytes: int64(len(data)), Of: int64(len(data))})
	}
}

func jsonLines[T any](t testing.TB, all []T) (out []byte) {
	t.Helper()
	for _, one := range all {
		line, err := json.Marshal(one)
		if err != nil {
			t.Fatal(err)
		}
		out = append(append(out, line...), '\n')
	}
	return out
}

// chain makes the lines of a log.
func chain(t testing.TB, events []wire.Event) (out []byte) {
	t.Helper()
	prev := ""
	for i, e := range events {
		e.Seq, e.Prev = uint64(i+1), prev
		body, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(body)
		prev = hex.EncodeToString(sum[:])
		out = append(append(out, body[:len(body)-1]...), `,"hash":"`+prev+`"}`+"\n"...)
	}
	return out
}

var kinds = []string{
	controller.StatusDone, controller.StatusAgentFailed, controller.StatusTimeout, controller.StatusValidationFailed,
	controller.StatusPostScriptFailed,
	controller.StatusBlocked, controller.StatusFailed, controller.StatusCancelled, record.StatusAbandoned,
}

func pages(t *testing.T, run record.Run) (html, markdown string) {
	t.Helper()
	r, err := Load(run)
	if err != nil {
		t.Fatal(err)
	}
	var h, m strings.Builder
	if err := r.HTML(&h); err != nil {
		t.Fatal(err)
	}
	if err := r.Markdown(&m); err != nil {
		t.Fatal(err)
	}
	return h.String(), m.String()
}

func TestAPageHasNoElementThatIsNotItsOwn(t *testing.T) {
	own := strings.Fields(
		"html head meta title style body header nav a h1 h2 h3 p b code pre br span div section svg line text rect table tr th td details summary",
	)
	for _, status := range kinds {
		t.Run(status, func(t *testing.T) {
			out, _ := pages(t, example(t, status))
			head, body, _ := strings.Cut(out, "</style>")
			for _, tag := range regexp.MustCompile(`<[^>]*>?`).FindAllString(body, -1) {
				name := regexp.MustCompile(`^</?([a-z0-9]+)`).FindStringSubmatch(tag)
				if name == nil || !slices.Contains(own, name[1]) {
					t.Errorf("the page has %q", tag)
				}
				if regexp.MustCompile(
					`(?i)[ '"](on[a-z]+|style|src|http-equiv)=`,
				).MatchString(
					regexp.MustCompile(`="[^"]*"`).ReplaceAllString(tag, "="),
				) ||
					strings.Contains(tag, "href") && !regexp.MustCompile(`^<a href="#[a-z]+">$`).MatchString(tag) {
					t.Errorf("the page has %q", tag)
				}
			}
			style := head[strings.Index(head, "<style>")+len("<style>"):]
			if strings.ContainsAny(style, "<@\\") && regexp.MustCompile(`(?i)<|@import|url\(|expression`).MatchString(style) {
				t.Error("the style loads something")
			}
			sum := sha256.Sum256([]byte(style))
			policy := "default-src &#39;none&#39;; style-src &#39;sha256-" + strings.ReplaceAll(
				base64.StdEncoding.EncodeToString(sum[:]),
				"+",
				"&#43;",
			) + "&#39;; base-uri &#39;none&#39;; form-action &#39;none&#39;"
			if !strings.Contains(head, `content="`+policy+`"`) {
				t.Error("the content security policy is not that of the style")
			}
		})
	}
}

func TestNothingOnAPageIsHidden(t *testing.T) {
	for _, status := range kinds {
		html, markdown := pages(t, example(t, status))
		for name, page := range map[string]string{"HTML": html, "Markdown": markdown} {
			for _, r := range page {
				if r != '\n' && r != '\t' && r != '\u202f' && !unicode.IsPrint(r) {
					t.Errorf("%s of a run that is %s has %U", name, status, r)
				}
			}
		}
	}
}

func TestMarkdownOutsideOfCodeHasNoAgentText(t *testing.T) {
	_, out := pages(t, example(t, controller.StatusDone))
	out = regexp.MustCompile("(?ms)^(`{3,})[a-z]*\n.*?\n`{3,}$").ReplaceAllStringFunc(out, func(block string) string {
		fence := block[:len(block)-len(strings.TrimLeft(block, "`"))]
		if !strings.HasSuffix(block, "\n"+fence) {
			t.Errorf("a block ends early: %q", block)
		}
		return ""
	})
	for line := range strings.Lines(out) {
		rest := withoutSpans(line)
		for _, bad := range []string{"<", "javascript", "alert", "[x]", "Heading", "owned"} {
			if strings.Contains(rest, bad) {
				t.Errorf("outside of code: %q in %q", bad, line)
			}
		}
	}
}

// withoutSpans removes the code spans of a line. A span ends at the next run of
// as many backticks as at its start. See CommonMark, section 6.1.
func withoutSpans(line string) string {
	runs := regexp.MustCompile("`+").FindAllStringIndex(line, -1)
	out, at := "", 0
	for i := 0; i < len(runs); i++ {
		for j := i + 1; j < len(runs); j++ {
			if runs[j][1]-runs[j][0] == runs[i][1]-runs[i][0] {
				out, at, i = out+line[at:runs[i][0]], runs[j][1], j
				break
			}
		}
	}
	return out + line[at:]
}

func TestAPageShowsTheRun(t *testing.T) {
	html, markdown := pages(t, example(t, controller.StatusDone))
	for _, want := range []string{
		"fix-bug", "done", "20260102t030405-0a1b2c3d", "I will look at the test first.", "go test ./...", "TestMerge", "a line\nanother",
		"api.example.com:443", "block-metadata", "1.0 MiB", "2.0 KiB",
		"slot.go", "s.From &lt;= out[last].To", "mode 644 → 755", "binary", "12\u202f345", "$0.0421", "model-a", "the chain of", "Iteration 2",
		"asked for by root", "no longer at", "modified (both)",
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page does not show %q", want)
		}
		if want = strings.ReplaceAll(want, "&lt;", "<"); !strings.Contains(strings.ReplaceAll(markdown, "`", ""), want) {
			t.Errorf("the Markdown does not show %q", want)
		}
	}
}

func TestAPageSaysWhatIsMissing(t *testing.T) {
	tests := []struct {
		name   string
		change func(*record.Run)
		says   string
		bad    bool // an error that names the file
	}{
		{"results of another run", func(r *record.Run) {
			if err := os.MkdirAll(r.Out, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(r.Out, "result.json"), []byte(`{"run_id": "later"}`), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "holds the results of the later run later now", false},
		{"no audit log", func(r *record.Run) { os.Remove(filepath.Join(r.Path, "audit.jsonl")) }, "the audit log was not kept", false},
		{"an audit log that was changed", func(r *record.Run) {
			file := filepath.Join(r.Path, "audit.jsonl")
			data, _ := os.ReadFile(file)
			os.WriteFile(file, []byte(strings.Replace(string(data), "bash", "dash", 1)), 0o600)
		}, "NOT good: line 2", false},
		{"a log that was cut", func(r *record.Run) {
			for i := range r.Stored {
				r.Stored[i].Of += 1000
			}
		}, "audit.jsonl: only the first", false},
		{"no changes", func(r *record.Run) { os.Remove(filepath.Join(r.Path, "changes.json")) }, "About this run", false},
		{"no agent", func(r *record.Run) { os.Remove(filepath.Join(r.Path, "agent.jsonl")) }, "what the agent said was not kept", false},
		{"no result", func(r *record.Run) { os.Remove(filepath.Join(r.Path, "result.json")) }, "the run has no result", false},
		{"half a result", func(r *record.Run) {
			os.WriteFile(filepath.Join(r.Path, "result.json"), []byte(`{"version"`), 0o600)
		}, "result.json", true},
		{"half an event", func(r *record.Run) {
			os.WriteFile(filepath.Join(r.Path, "agent.jsonl"), []byte("{}\n{\"kind\""), 0o600)
		}, "agent.jsonl:2", true},
		{"half the changes", func(r *record.Run) {
			os.WriteFile(filepath.Join(r.Path, "changes.json"), []byte(`[`), 0o600)
		}, "changes.json", true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			run := example(t, controller.StatusDone)
			tt.change(&run)
			r, err := Load(run)
			if tt.bad {
				if err == nil || !strings.Contains(err.Error(), tt.says) {
					t.Errorf("err = %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			if err := r.HTML(&b); err != nil || !strings.Contains(b.String(), tt.says) {
				t.Errorf("the page does not say %q: %v, notes %q", tt.says, err, r.Notes)
			}
		})
	}
}

func TestAPageIsBounded(t *testing.T) {
	long := strings.Repeat("<x>", 100_000)
	r := &Report{Run: record.Run{Record: record.Record{RunID: "r"}}, Log: &auditreport.Report{}}
	for i := range 3 * maxAgentEvents {
		r.said(record.AgentEvent{Iteration: i, Event: runtime.Event{Kind: runtime.EventSaid, Text: long[:20_000]}})
		r.said(record.AgentEvent{Event: runtime.Event{Kind: runtime.EventUsage, Usage: &runtime.Usage{Model: fmt.Sprint(i), Input: 1}}})
	}
	for i := range 3 * maxTargets {
		r.connection(wire.Event{Type: wire.EventNet, Target: fmt.Sprint(i, long[:2000])})
	}
	r.finish()
	if len(r.Agent) != maxAgentEvents || r.Omitted.Agent == 0 || len(r.Network) != maxTargets || r.Omitted.Network == 0 ||
		len(r.Usage) != maxModels ||
		r.TotalUsage().Input != 3*maxAgentEvents {
		t.Errorf("%d said, %d destinations, %d models", len(r.Agent), len(r.Network), len(r.Usage))
	}
}

func TestAnAnswerIsShownBesideItsCall(t *testing.T) {
	r := &Report{}
	for _, e := range []runtime.Event{
		{Kind: runtime.EventToolCall, Tool: "A", Call: "1"}, {Kind: runtime.EventToolCall, Tool: "B", Call: "2"},
		{Kind: runtime.EventToolResult, Call: "1", Text: "one"}, {Kind: runtime.EventToolResult, Call: "2", Text: "two", Failed: true},
		{Kind: runtime.EventToolResult, Call: "1", Text: "again"}, {Kind: runtime.EventToolResult, Text: "of nobody"},
	} {
		r.said(record.AgentEvent{Event: e})
	}
	if len(r.Agent) != 4 || r.Agent[0].Answer != "one" || r.Agent[0].Failed || r.Agent[1].Answer != "two" || !r.Agent[1].Failed ||
		r.Agent[2].Text != "again" {
		for _, s := range r.Agent {
			t.Errorf("%+v", s)
		}
	}
}

func TestAPageNamesTheEngineAndWhatTheSandboxRanWithout(t *testing.T) {
	_, page := pages(t, example(t, controller.StatusDone))
	for _, want := range []string{"- engine: `trace`\n", "- without: `cgroup, landlock_scopes`\n",
		"- held by agentsh: `commands; limits`\n", "- held by OpenShell: `network`\n", "- not held: `signals`\n",
		"- advisory: `rules about nested programs`\n", "- agent on the host: `/bin/x, without a session of its own: no namespaces`\n"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
}
