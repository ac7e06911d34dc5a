package report

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"agentsh/internal/wire"
)

// hostile is what a command would write to break a page, a terminal or a
// Markdown reader.
var hostile = []string{
	"</style></title><script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "' onmouseover='alert(1)",
	"\x1b[2J\x1b]0;owned\a", "a\u009b2Jb", "\u202egpj.exe", "\xff\xfe", "line\nbreak\r\n# Heading\n| a | b |",
	"``` [x](javascript:alert(1)) `",
	"javascript:alert(1)", "{{.}}", "</svg></body></html>", "<!--", "]]>",
}

// example is a session in which every text that a command chooses is hostile.
func example(t *testing.T) *Report {
	t.Helper()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var clock time.Duration
	r := &Report{Source: "log", Verified: true, Check: "good"}
	add := func(e wire.Event) {
		clock += 10 * time.Millisecond
		e.Time, e.Session = start.Add(clock), "S1"
		r.Add(e)
	}
	add(wire.Event{Type: wire.EventSession, Phase: "begin", Message: "policy p"})
	for i, h := range hostile {
		id := fmt.Sprint("c", i)
		at := &wire.RuleAt{Name: "rule " + h, File: h}
		add(wire.Event{Type: wire.EventCommand, Phase: "begin", Command: id, By: h, Argv: []string{h, h}, Path: h, Decision: "allow", Rule: at})
		add(wire.Event{Type: wire.EventExec, Command: id, Argv: []string{h}, Path: h, Decision: "deny", Rule: at, Message: h, Hint: h})
		add(wire.Event{Type: wire.EventFile, Op: "write", Path: h, Target: h, Decision: "deny", Rule: at, Message: h, Count: 3})
		add(wire.Event{Type: wire.EventSignal, Command: id, Op: h, Target: h, Decision: h, Message: h})
		add(wire.Event{Type: wire.EventFault, Path: h, Message: h})
		add(wire.Event{Type: h, Message: h})
		add(wire.Event{Type: wire.EventCommand, Phase: "end", Command: id, Exit: &wire.Exit{Kind: wire.ExitSpawnFailed, Message: h}})
	}
	r.Finish()
	return r
}

func render(t *testing.T, write func(*Report, *strings.Builder) error, r *Report) string {
	t.Helper()
	var b strings.Builder
	if err := write(r, &b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func htmlPage(r *Report, b *strings.Builder) error { return r.HTML(b) }

func markdownPage(r *Report, b *strings.Builder) error { return r.Markdown(b) }

func TestAPageHasNoElementThatIsNotItsOwn(t *testing.T) {
	out := render(t, htmlPage, example(t))
	own := strings.Fields("html head meta title style body h1 h2 h3 p code br span section svg line text rect table tr th td details summary")
	_, body, _ := strings.Cut(out, "</style>")
	for _, tag := range regexp.MustCompile(`<[^>]*>?`).FindAllString(body, -1) {
		name := regexp.MustCompile(`^</?([a-z0-9]+)`).FindStringSubmatch(tag)
		if name == nil || !slices.Contains(own, name[1]) {
			t.Errorf("the page has %q", tag)
		}
		if regexp.MustCompile(`(?i)[ '"]on[a-z]+=|href|src=`).MatchString(regexp.MustCompile(`="[^"]*"`).ReplaceAllString(tag, "=")) {
			t.Errorf("the page has %q", tag)
		}
	}
	if !strings.Contains(out, "&lt;script&gt;alert(1)&lt;/script&gt;") {
		t.Error("what the command did is not shown")
	}
	if n := strings.Count(out, "default-src &#39;none&#39;"); n != 1 {
		t.Errorf("the page has %d content security policies", n)
	}
}

func TestNothingOnAPageIsHidden(t *testing.T) {
	for name, write := range map[string]func(*Report, *strings.Builder) error{"HTML": htmlPage, "Markdown": markdownPage} {
		for _, r := range render(t, write, example(t)) {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%s has %U", name, r)
			}
		}
	}
}

func TestMarkdownShowsWhatCommandsChoseAsCodeOnly(t *testing.T) {
	out := render(t, markdownPage, example(t))
	span := regexp.MustCompile("(`+)(.*?[^`])(`+)")
	for line := range strings.Lines(out) {
		rest := line
		for {
			m := span.FindStringSubmatchIndex(rest)
			if m == nil {
				break
			}
			fence := rest[m[2]:m[3]]
			end := strings.Index(rest[m[3]:], "`"+"")
			for end >= 0 { // the first run of backticks of the same length closes the span
				run := len(rest[m[3]+end:]) - len(strings.TrimLeft(rest[m[3]+end:], "`"))
				if run == len(fence) {
					break
				}
				next := strings.Index(rest[m[3]+end+run:], "`")
				if next < 0 {
					end = -1
					break
				}
				end += run + next
			}
			if end < 0 {
				t.Fatalf("a code span does not end: %q", line)
			}
			rest = rest[:m[2]] + rest[m[3]+end+len(fence):]
		}
		for _, bad := range []string{"<", "javascript", "alert", "[x]", "Heading", "owned"} {
			if strings.Contains(rest, bad) {
				t.Errorf("outside of code: %q in %q", bad, line)
			}
		}
	}
}

func TestAReportCountsWhatWasRefusedByRule(t *testing.T) {
	r := &Report{}
	rule := &wire.RuleAt{Name: "no-write", File: "p.yaml", Line: 3, Column: 5}
	for i := range 10 {
		r.Add(wire.Event{Session: "s", Type: wire.EventFile, Op: "write", Path: fmt.Sprint("/", i%7), Decision: "deny", Rule: rule, Count: 2})
	}
	r.Add(wire.Event{Session: "s", Type: wire.EventExec, Argv: []string{"kill"}, Decision: "deny", Rule: &wire.RuleAt{Name: "no-kill"}})
	r.Finish()
	s := r.Sessions[0]
	if len(s.Refusals) != 2 || s.Refusals[0].Count != 20 || s.Refusals[0].Rule != "no-write (p.yaml:3:5)" ||
		len(s.Refusals[0].Examples) != maxExamples {
		t.Errorf("refusals %+v", s.Refusals[0])
	}
	if len(s.Files) != 7 || s.Files[0].Count != 4 {
		t.Errorf("%d files, first %+v", len(s.Files), s.Files[0])
	}
}

func TestAPageIsBounded(t *testing.T) {
	r := &Report{}
	long := strings.Repeat("<x>", 100_000)
	for i := range 3 * maxRows {
		r.Add(wire.Event{Session: "s", Type: wire.EventCommand, Phase: "begin", Command: fmt.Sprint(i), Argv: []string{long}, Message: long})
		r.Add(wire.Event{Session: "s", Type: wire.EventExec, Command: "1", Argv: []string{long, long}, Decision: "deny", Message: fmt.Sprint(i)})
		r.Add(wire.Event{Session: "s", Type: wire.EventExec, Command: "2", Argv: []string{long, long}, Decision: "allow"})
		r.Add(wire.Event{Session: "s", Type: wire.EventFile, Path: fmt.Sprint(i, long), Decision: "deny"})
		r.Add(wire.Event{Session: fmt.Sprint(i), Type: wire.EventSession})
	}
	r.Finish()
	if s := r.Sessions[0]; len(s.Commands) != maxCommands || s.index.programs != maxPrograms || len(s.Files) != maxRows ||
		len(s.Refusals) != maxRows ||
		s.Omitted == 0 {
		t.Errorf(
			"%d commands, %d programs, %d files, %d refusals, %d omitted",
			len(s.Commands),
			s.index.programs,
			len(s.Files),
			len(s.Refusals),
			s.Omitted,
		)
	}
	if len(r.Sessions) != maxSessions || r.Omitted == 0 {
		t.Errorf("%d sessions, %d events omitted", len(r.Sessions), r.Omitted)
	}
	if n := len(render(t, htmlPage, r)); n > 16<<20 {
		t.Errorf("a page of %d bytes", n)
	}
}

func TestATimelineOrdersCommandsByTime(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &Report{}
	at := func(second int, e wire.Event) {
		e.Time, e.Session = begin.Add(time.Duration(second)*time.Second), "s"
		r.Add(e)
	}
	at(0, wire.Event{Type: wire.EventSession, Phase: "begin"})
	at(2, wire.Event{Type: wire.EventCommand, Phase: "begin", Command: "a", Argv: []string{"make"}})
	at(4, wire.Event{Type: wire.EventExec, Command: "a", Argv: []string{"cc"}, Decision: "deny"})
	at(5, wire.Event{Type: wire.EventFile, Path: "/x", Decision: "deny"})
	at(6, wire.Event{Type: wire.EventCommand, Phase: "end", Command: "a", Exit: &wire.Exit{Kind: wire.ExitExited}})
	at(10, wire.Event{Type: wire.EventSession, Phase: "end"})
	r.Finish()
	line := r.Sessions[0].Timeline()
	if len(line.Lanes) != 2 {
		t.Fatalf("%d lanes", len(line.Lanes))
	}
	part := func(x float64) float64 { return (x - laneLeft) / laneWidth }
	l := line.Lanes[0]
	if part(l.X) != 0.2 || fmt.Sprintf("%.3f", l.Width/laneWidth) != "0.400" || len(l.Marks) != 1 || part(l.Marks[0].X) != 0.4 ||
		l.Marks[0].Tone != "deny" {
		t.Errorf("lane %+v", l)
	}
	if rest := line.Lanes[1]; len(rest.Marks) != 1 || part(rest.Marks[0].X) != 0.5 {
		t.Errorf("lane of the session %+v", rest)
	}
}
