package report

import (
	"fmt"
	"io"
	"strings"

	"agentsh/controller/runtime"
	"agentsh/internal/text"
	auditreport "agentsh/supervisor/audit/report"
)

// Markdown writes the report as CommonMark. Every text that an agent could
// choose is in a code span or block, where it has no effect.
func (r *Report) Markdown(w io.Writer) error {
	m := &markdown{}
	m.head(r)
	m.steps(r)
	m.findings(r)
	m.agent(r)
	m.files(r)
	if r.Log != nil {
		m.line("\n## Commands and decisions\n\n- %s", code(r.Log.Check))
		for _, s := range r.Log.Sessions {
			m.WriteString(s.Markdown())
		}
	}
	m.rest(r)
	_, err := io.WriteString(w, m.String())
	return err
}

type markdown struct{ strings.Builder }

func (m *markdown) line(format string, args ...any) { fmt.Fprintf(m, format+"\n", args...) }

func code(s string) string { return auditreport.Code(s) }

func (m *markdown) head(r *Report) {
	m.line("# Run %s: %s\n", code(r.Title()), code(r.Status()))
	if p := r.Problem; p != nil {
		m.line("**%s** %s", code(p.Step), code(oneLine(p.Message)))
		for _, x := range p.List {
			m.line("- %s", code(oneLine(x)))
		}
		if p.Hint != "" {
			m.line("\nhint: %s", code(oneLine(p.Hint)))
		}
		m.line("")
	}
	for _, n := range r.Notes {
		m.line("- note: %s", code(n))
	}
	for _, t := range r.Tiles {
		m.line("- %s: %s %s", t.Name, code(t.Value), t.More)
	}
}

func (m *markdown) steps(r *Report) {
	m.line("\n## Steps\n")
	for _, s := range r.Steps {
		took := "did not end"
		if s.Ended {
			took = span(s.Took)
		}
		m.line("- %s %s%s", code(s.Name), took, said(s.Error))
	}
	if r.Result == nil {
		return
	}
	for _, it := range r.Result.Iterations {
		m.line("- iteration %d: %s, %s%s", it.Number, code(ExitText(it.Exit)), span(it.Duration), said(it.Validation))
		if it.Feedback != "" {
			m.block(lines(it.Feedback, textShown), "")
		}
	}
}

func (m *markdown) findings(r *Report) {
	if len(r.Findings) == 0 {
		return
	}
	m.line("\n## Findings of the scans\n")
	if r.Result != nil && r.Result.Review != nil {
		m.line("A person is to review this run: %s\n", code(text.Short(r.Result.Review.Label, nameShown)))
	}
	for _, f := range r.Findings {
		m.line(
			"- %s %s %s%s%s",
			f.Severity,
			code(text.Short(fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column), nameShown)),
			code(text.Visible(f.Rule)),
			said(text.Visible(f.Message)),
			said(text.Visible(f.Excerpt)),
		)
	}
}

func (m *markdown) agent(r *Report) {
	if len(r.Agent) == 0 {
		return
	}
	m.line("\n## What the agent said and did")
	for _, s := range r.Agent {
		if s.New && s.Iteration > 0 {
			m.line("\n### Iteration %d", s.Iteration)
		}
		switch s.Kind {
		case runtime.EventLine:
			m.block(s.Text, "")
			continue
		case runtime.EventToolCall:
			m.line("\nuses %s", code(s.Tool))
		default:
			m.line("\n%s", code(kindText(s.Kind)))
		}
		m.block(s.Text, "")
		if s.Answered && s.Answer != "" {
			m.line("\n%s", map[bool]string{true: "failed:", false: "answer:"}[s.Failed])
			m.block(s.Answer, "")
		}
	}
	if r.Omitted.Agent > 0 {
		m.line("\n%d further events do not fit on this page.", r.Omitted.Agent)
	}
}

func (m *markdown) files(r *Report) {
	if len(r.Files) == 0 {
		return
	}
	m.line("\n## Files changed")
	for _, f := range r.Files {
		m.line("\n- %s %s %s +%d −%d%s", code(f.Path), f.Status+f.By.Mark(), f.Mode(), f.Added, f.Removed, said(f.Why))
		var b strings.Builder
		for _, l := range f.Lines {
			b.WriteString(l.Text + "\n")
		}
		m.block(strings.TrimSuffix(b.String(), "\n"), "diff")
	}
	if r.Omitted.Files > 0 {
		m.line("\n%d further files do not fit on this page.", r.Omitted.Files)
	}
}

func (m *markdown) rest(r *Report) {
	if len(r.Operator) > 0 {
		m.line("\n## What operators did in the sandbox\n")
		for _, a := range r.Operator {
			m.line("- %s %s: %s", a.Time.UTC().Format("15:04:05"), code(text.Visible(a.By)), code(text.Visible(a.What)))
		}
	}
	if len(r.Network) > 0 {
		m.line("\n## Network\n")
		for _, c := range r.Network {
			m.line(
				"- %s %s %d×, %s sent, %s received%s%s",
				code(c.Decision),
				code(c.Target),
				c.Times,
				size(c.Sent),
				size(c.Received),
				said(c.Rule),
				said(c.Message),
			)
		}
	}
	if len(r.Usage) > 0 {
		m.line("\n## Tokens and cost\n")
		for _, u := range r.Usage {
			m.line(
				"- %s: %s, %s in, %s cached, %s out, $%.4f",
				code(u.Model),
				text.Count(u.Turns, "turn"),
				count(u.Input),
				count(u.CacheRead),
				count(u.Output),
				u.CostUSD,
			)
		}
	}
	m.line("\n## About this run\n")
	for _, f := range r.Facts {
		m.line("- %s: %s", f.Name, code(f.Value))
	}
}

// block writes a fenced code block. Its fence is longer than every run of
// backticks in the text. See CommonMark, section 4.5.
func (m *markdown) block(s, info string) {
	if s == "" {
		return
	}
	fence := "```"
	for strings.Contains(s, fence) {
		fence += "`"
	}
	m.line("\n%s%s\n%s\n%s", fence, info, s, fence)
}

func said(s string) string {
	if s == "" {
		return ""
	}
	return " – " + code(oneLine(s))
}

func oneLine(s string) string { return strings.ReplaceAll(s, "\n", " ") }
