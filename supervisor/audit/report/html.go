package report

import (
	"crypto/sha256"
	_ "embed" // the style is a file of its own
	"encoding/base64"
	"fmt"
	"html"
	"io"
	"time"
)

//go:embed page.css
var pageStyle string

// Style is the style of the parts.
func Style() string { return pageStyle }

// ContentPolicy is the content security policy of a page with one style: it
// allows that and nothing more.
func ContentPolicy(style string) string {
	sum := sha256.Sum256([]byte(style))
	return fmt.Sprintf(
		"default-src 'none'; style-src 'sha256-%s'; base-uri 'none'; form-action 'none'",
		base64.StdEncoding.EncodeToString(sum[:]),
	)
}

// pageHead is followed by the content security policy, the style and the body.
const pageHead = `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>Audit report</title>
<meta http-equiv="Content-Security-Policy" content="%s">
<style>%s</style>
</head>
<body>
`

// HTML writes the report as one HTML page. The page has no scripts and loads nothing. Its
// content security policy allows only its own style.
func (r *Report) HTML(w io.Writer) error {
	_, err := fmt.Fprintf(w, pageHead+"%s\n</body>\n</html>\n", html.EscapeString(ContentPolicy(pageStyle)), pageStyle, r.body())
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return nil
}

func (r *Report) body() Markup {
	verified := "bad"
	if r.Verified {
		verified = "good"
	}
	return Element("h1", nil, Text("Audit report")) + newLine +
		Element("p", nil, Text("Log "), code(r.Source), lineBreak, Element("span", Class(verified), Text(r.Check))) +
		omitted(r.Omitted, Text(" events of further sessions are not shown.")) +
		each(r.Sessions, (*Session).html)
}

func (s *Session) html() Markup {
	about := Text(s.About) + lineBreak + Text(Stamp(s.Begin)+" to "+Stamp(s.End)+", "+Span(s.End.Sub(s.Begin)))
	switch {
	case s.Why != "":
		about += Text(", ") + Element("span", Class("bad"), Text(s.Why))
	case !s.Ended:
		about += Text(", ") + Element("span", Class("bad"), Text("its end is not in the log"))
	}
	return newLine + Element("section", nil,
		newLine+Element("h2", nil, Text("Session "), code(s.ID)),
		newLine+Element("p", nil, about),
		omitted(s.Omitted, Text(" events do not fit on this page; "), code("agentsh events"), Text(" shows them.")),
		s.Timeline().HTML(),
		headed("Commands", CommandsHTML(s.Commands)),
		headed("Refusals by rule", RefusalsHTML(s.Refusals)),
		each(s.Tables(), func(t Table) Markup { return headed(t.Title, RowsHTML(t.Rows)) }),
		newLine)
}

// omitted says how many entries the page leaves out, if it does.
func omitted(n int, what ...Markup) Markup {
	if n == 0 {
		return ""
	}
	return newLine + Element("p", Class("note"), Text(fmt.Sprint(n)), join(what...))
}

// headed is a part of a session with its heading.
func headed(title string, part Markup) Markup {
	return newLine + Element("h3", nil, Text(title)) + newLine + part
}

// Tone is the class of a decision.
func Tone(decision string) string {
	switch decision {
	case "allow", "audit", "deny", "approve", "redirect":
		return decision
	}
	return "other"
}

// Bounds of a timeline.
const (
	maxLanes = 60
	maxMarks = 2000
)

// Sizes of a timeline in units of its own.
const (
	laneHeight = 18
	laneLeft   = 160
	laneWidth  = 820
	axisHeight = 22
)

// Timeline shows a session over time.
type Timeline struct {
	Height  int
	Lanes   []Lane
	Ticks   []Tick
	Omitted int // commands without a lane
}

// Lane is one command of a timeline.
type Lane struct {
	Y, Text  int
	X, Width float64
	Label    string
	Title    string
	Bad      bool
	Marks    []Mark
}

// Mark is one event of a lane.
type Mark struct {
	X     float64
	Tone  string
	Title string
}

// Tick is a label of the time axis.
type Tick struct {
	X     float64
	Label string
}

// Timeline returns a lane for each command with its events, and one more lane for events
// without a command.
func (s *Session) Timeline() Timeline {
	t := Timeline{Omitted: max(len(s.Commands)-maxLanes, 0)}
	scale := scale{begin: s.Begin, length: max(s.End.Sub(s.Begin), time.Millisecond), marks: maxMarks}
	rows := s.rowsByCommand()
	for _, c := range s.Commands[:min(len(s.Commands), maxLanes)] {
		end := c.End
		if c.Exit == "" {
			end = s.End
		}
		l := Lane{X: scale.at(c.Begin), Label: short(c.Argv), Title: c.Argv + ": " + c.ended(), Bad: c.Bad}
		l.Width = max(scale.at(end)-l.X, 2)
		for _, p := range c.Programs {
			scale.mark(&l, p.At, p.Decision, p.Argv)
		}
		for _, r := range rows[c.ID] {
			scale.mark(&l, r.At, r.Decision, r.What)
		}
		delete(rows, c.ID)
		t.Lanes = append(t.Lanes, l)
	}
	if rest := rows[""]; len(rest) > 0 {
		l := Lane{X: laneLeft, Label: "(files, session)"}
		for _, r := range rest {
			scale.mark(&l, r.At, r.Decision, r.What)
		}
		t.Lanes = append(t.Lanes, l)
	}
	for i := range t.Lanes {
		t.Lanes[i].Y = axisHeight + i*laneHeight
		t.Lanes[i].Text = t.Lanes[i].Y + laneHeight - 6
	}
	const ticks = 5
	for i := range ticks {
		t.Ticks = append(t.Ticks, Tick{laneLeft + laneWidth*float64(i)/(ticks-1), Span(scale.length * time.Duration(i) / (ticks - 1))})
	}
	t.Height = axisHeight + len(t.Lanes)*laneHeight + 4
	return t
}

// rowsByCommand returns the rows of all tables by command.
func (s *Session) rowsByCommand() map[string][]*Row {
	out := map[string][]*Row{}
	for _, table := range s.Tables() {
		for _, r := range table.Rows {
			out[r.Command] = append(out[r.Command], r)
		}
	}
	return out
}

// scale converts times of a session to positions on its timeline.
type scale struct {
	begin  time.Time
	length time.Duration
	marks  int // how many more are allowed
}

func (s *scale) at(t time.Time) float64 {
	part := float64(t.Sub(s.begin)) / float64(s.length)
	return laneLeft + laneWidth*min(max(part, 0), 1)
}

func (s *scale) mark(l *Lane, when time.Time, decision, title string) {
	if s.marks--; s.marks >= 0 {
		l.Marks = append(l.Marks, Mark{s.at(when), Tone(decision), title})
	}
}

// short cuts the label of a lane.
func short(s string) string {
	const most = 22
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most-1]) + "…"
}
