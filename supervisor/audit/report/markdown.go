package report

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// Markdown writes the report as CommonMark. Every text that a command can choose is in a
// code span, where no markup has an effect.
func (r *Report) Markdown(w io.Writer) error {
	m := &markdown{}
	m.line("# Audit report")
	m.line("")
	m.line("- log: %s", Code(r.Source))
	m.line("- %s", Code(r.Check))
	if r.Omitted > 0 {
		m.line("- %d events of further sessions are not shown", r.Omitted)
	}
	for _, s := range r.Sessions {
		m.session(s)
	}
	_, err := io.WriteString(w, m.String())
	return err
}

// Markdown is a session as CommonMark, with headings of the second level.
func (s *Session) Markdown() string {
	m := &markdown{}
	m.session(s)
	return m.String()
}

type markdown struct{ strings.Builder }

func (m *markdown) line(format string, args ...any) {
	fmt.Fprintf(m, format+"\n", args...)
}

func (m *markdown) session(s *Session) {
	m.line("\n## Session %s\n", Code(s.ID))
	m.line("- %s", Code(s.About))
	m.line("- from %s to %s, %s%s", Stamp(s.Begin), Stamp(s.End), Span(s.End.Sub(s.Begin)), noEnd(s))
	if s.Omitted > 0 {
		m.line("- %d events do not fit on this page; `agentsh events` shows them", s.Omitted)
	}
	m.line("\n### Commands\n")
	for _, c := range s.Commands {
		m.command(c)
	}
	m.line("\n### Refusals by rule\n")
	for _, f := range s.Refusals {
		m.line("- %d × %s%s", f.Count, Code(f.Rule), withMessage(f.Message))
		for _, e := range f.Examples {
			m.line("  - %s", Code(e))
		}
		if f.Hint != "" {
			m.line("  - hint: %s", Code(f.Hint))
		}
	}
	if len(s.Refusals) == 0 {
		m.line("None.")
	}
	for _, t := range s.Tables() {
		m.line("\n### %s\n", t.Title)
		for _, r := range t.Rows {
			m.line("- %s %s %d × %s%s%s", Clock(r.At), Code(r.Decision), r.Count, Code(r.What), withRule(r.Rule), withMessage(r.Message))
		}
	}
}

func (m *markdown) command(c *Command) {
	asked := ""
	if c.By != "" {
		asked = ", asked for by " + Code(c.By)
	}
	m.line(
		"- %s %s %s%s: %s, %s%s%s",
		Clock(c.Begin),
		Code(c.Decision),
		Code(c.Argv),
		asked,
		Code(c.ended()),
		Span(c.Duration()),
		withRule(c.Rule),
		withMessage(c.Message),
	)
	for _, p := range c.Programs {
		m.line("  - %s %s %s%s%s", Clock(p.At), Code(p.Decision), Code(p.Argv), withRule(p.Rule), withMessage(p.Message))
	}
}

func (c *Command) ended() string {
	if c.Exit == "" {
		return "its end is not in the log"
	}
	return c.Exit
}

// Code makes a code span whose fence is longer than every run of backticks in
// it. See CommonMark, section 6.1.
func Code(s string) string {
	if s == "" {
		return "-"
	}
	longest, run := 0, 0
	for _, r := range s {
		if r == '`' {
			run++
		} else {
			run = 0
		}
		longest = max(longest, run)
	}
	fence := strings.Repeat("`", longest+1)
	if longest > 0 {
		return fence + " " + s + " " + fence
	}
	return fence + s + fence
}

func withRule(rule string) string {
	if rule == "" {
		return ""
	}
	return " by " + Code(rule)
}

func withMessage(message string) string {
	if message == "" {
		return ""
	}
	return " – " + Code(message)
}

func noEnd(s *Session) string {
	switch {
	case s.Why != "":
		return ", " + Code(s.Why)
	case s.Ended:
		return ""
	}
	return ", its end is not in the log"
}

// Stamp is a date and time of a page.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") }

// Clock is the time of an event.
func Clock(t time.Time) string { return t.UTC().Format("15:04:05.000") }

// Span formats a duration with about three digits.
func Span(d time.Duration) string {
	switch {
	case d >= time.Minute:
		return d.Round(time.Second).String()
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(time.Microsecond).String()
}

// Table is a part of a session's page.
type Table struct {
	Title string
	Rows  []*Row
}

// Tables are the tables of the session that have rows.
func (s *Session) Tables() []Table {
	var out []Table
	for _, t := range []Table{{"Files", s.Files}, {"Signals", s.Signals}, {"Network", s.Network}, {"Faults", s.Faults}, {"Other events",
		s.Others}} {
		if len(t.Rows) > 0 {
			out = append(out, t)
		}
	}
	return out
}
