package report

import (
	"crypto/sha256"
	_ "embed" // the page and its style are files of their own
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"sync"
	"time"
)

//go:embed page.html
var pageText string

//go:embed parts.html
var partsText string

//go:embed page.css
var pageStyle string

// parts and page are parsed at first use: every supervisor would otherwise parse them at
// its start.
var parts = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("parts").Funcs(template.FuncMap{
		"clock": clock, "stamp": stamp, "span": span,
		"tone": tone,
	}).Parse(partsText))
})

var page = sync.OnceValue(func() *template.Template { return template.Must(Parts().New("page").Parse(pageText)) })

// Parts are the templates of a page's parts, for pages that show more than a
// log: timeline (a [Timeline]), commands, refusals and rows (lists of them),
// with the functions clock, stamp, span and tone. Each call makes them anew.
func Parts() *template.Template { return template.Must(parts().Clone()) }

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

// HTML writes the report as one HTML page. The page has no scripts and loads nothing. Its
// content security policy allows only its own style.
func (r *Report) HTML(w io.Writer) error {
	err := page().Execute(w, struct {
		*Report
		Style  template.CSS
		Policy string
	}{r, template.CSS(pageStyle), ContentPolicy(pageStyle)})
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return nil
}

// tone is the class of a decision.
func tone(decision string) string {
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
		t.Ticks = append(t.Ticks, Tick{laneLeft + laneWidth*float64(i)/(ticks-1), span(scale.length * time.Duration(i) / (ticks - 1))})
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
		l.Marks = append(l.Marks, Mark{s.at(when), tone(decision), title})
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
