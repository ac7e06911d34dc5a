package report

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// HTML is the timeline as one picture; nothing where it has no lanes.
func (t Timeline) HTML() Markup {
	if len(t.Lanes) == 0 {
		return ""
	}
	drawn := Element("svg",
		Attributes{"viewBox", fmt.Sprint("0 0 1000 ", t.Height), "role", "img", "aria-label", "Timeline of the commands"},
		each(t.Ticks, func(k Tick) Markup {
			x := number(k.X)
			return newLine + Element("line", Attributes{"class", "axis", "x1", x, "x2", x, "y1", "18", "y2", strconv.Itoa(t.Height)}) +
				Element("text", Attributes{"x", x, "y", "13", "text-anchor", "middle"}, Text(k.Label))
		}),
		each(t.Lanes, Lane.html),
		newLine)
	if t.Omitted > 0 {
		drawn += Element("p", Class("note"), Text(fmt.Sprint(t.Omitted, " commands have no lane.")))
	}
	return newLine + drawn
}

func (l Lane) html() Markup {
	class := "lane"
	if l.Bad {
		class += " bad"
	}
	y := strconv.Itoa(l.Y)
	bar := Attributes{"class", class, "x", number(l.X), "y", y, "width", number(l.Width), "height", "14", "rx", "2"}
	return newLine + Element("text", Attributes{"x", "4", "y", strconv.Itoa(l.Text)}, Text(l.Label)) +
		newLine + Element("rect", bar, Element("title", nil, Text(l.Title))) +
		each(l.Marks, func(m Mark) Markup {
			at := Attributes{"class", "mark " + m.Tone, "x", number(m.X), "y", y, "width", "2", "height", "14"}
			return newLine + Element("rect", at, Element("title", nil, Text(m.Title)))
		})
}

// number is a coordinate.
func number(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

// CommandsHTML is the table of commands with their programs.
func CommandsHTML(commands []*Command) Markup {
	return table([]string{"Time", "Decision", "Command", "Ended", "Took"}, each(commands, (*Command).html))
}

func (c *Command) html() Markup {
	about := code(c.Argv) +
		below(c.By != "", note(Text("asked for by "+c.By))) +
		below(c.Rule != "", note(Text("rule "), code(c.Rule))) +
		below(c.Message != "", Text(c.Message)) +
		below(c.Refused > 0, Element("span", Class("bad"), Text(fmt.Sprint(c.Refused, " refused"))))
	if len(c.Programs) > 0 {
		about += Element("details", nil,
			Element("summary", nil, Text(fmt.Sprint(len(c.Programs), " programs"))),
			Element("table", nil, each(c.Programs, Program.html)))
	}
	ended := ""
	if c.Bad {
		ended = "bad"
	}
	return row(cell("time", Text(Clock(c.Begin))), cell("", decision(c.Decision)), newLine, cell("", about), newLine,
		cell(ended, Text(cmp.Or(c.Exit, "its end is not in the log"))), cell("time", Text(Span(c.Duration()))))
}

func (p Program) html() Markup {
	why := strings.Join([]string{p.Path, p.Rule, p.Message}, " ")
	return row(cell("time", Text(Clock(p.At))), cell("", decision(p.Decision)), cell("number", Text(strconv.Itoa(p.PID))),
		cell("", code(p.Argv)+below(p.Decision != "allow", note(Text(why)))))
}

// decision is the tag of a decision.
func decision(d string) Markup {
	return Element("span", Class("tag "+Tone(d)), Text(cmp.Or(d, "-")))
}

// RefusalsHTML is the table of the rules that refused something.
func RefusalsHTML(refusals []*Refusal) Markup {
	if len(refusals) == 0 {
		return Element("p", nil, Text("None."))
	}
	return table([]string{"Times", "Rule", "Of what"}, each(refusals, func(r *Refusal) Markup {
		why := code(cmp.Or(r.Rule, "-")) + below(r.Message != "", Text(r.Message)) + below(r.Hint != "", note(Text(r.Hint)))
		return row(cell("number", Text(strconv.Itoa(r.Count))), cell("", why),
			cell("", each(r.Examples, func(s string) Markup { return code(s) + lineBreak })))
	}))
}

// RowsHTML is the table of equal events.
func RowsHTML(rows []*Row) Markup {
	return table([]string{"First", "Decision", "Times", "What", "Rule"}, each(rows, func(r *Row) Markup {
		return row(cell("time", Text(Clock(r.At))), cell("", decision(r.Decision)), cell("number", Text(strconv.Itoa(r.Count))),
			cell("", code(r.What)), cell("", code(r.Rule)+below(r.Message != "", Text(r.Message))))
	}))
}
