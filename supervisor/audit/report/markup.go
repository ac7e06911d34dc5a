package report

import (
	"html"
	"strings"
)

// Markup is HTML in which every element is closed and every text is escaped.
// [Element] and [Text] make it. text/template would make it too, but it calls
// methods by their names: the linker then keeps every method of every type, and
// agentsh grows by 2 MB.
type Markup string

// Attributes are names and values by turns. An attribute without a value is left
// out.
type Attributes []string

// Class is the attribute of that name.
func Class(name string) Attributes { return Attributes{"class", name} }

// Text is s where only text is meant.
func Text(s string) Markup { return Markup(html.EscapeString(s)) }

// Element is one element with its content. The names come from the program,
// never from an event.
func Element(name string, attributes Attributes, content ...Markup) Markup {
	var b strings.Builder
	b.WriteString("<" + name)
	for i := 0; i+1 < len(attributes); i += 2 {
		if value := attributes[i+1]; value != "" {
			b.WriteString(" " + attributes[i] + `="` + html.EscapeString(value) + `"`)
		}
	}
	b.WriteString(">")
	for _, c := range content {
		b.WriteString(string(c))
	}
	b.WriteString("</" + name + ">")
	return Markup(b.String())
}

const (
	lineBreak Markup = "<br>"
	newLine   Markup = "\n" // between elements, for people who read the source
)

// code is a text that a command chose.
func code(s string) Markup { return Element("code", nil, Text(s)) }

// note is a text of less weight.
func note(content ...Markup) Markup { return Element("span", Class("note"), content...) }

// below is content on a line of its own, or nothing.
func below(shown bool, content ...Markup) Markup {
	if !shown {
		return ""
	}
	return lineBreak + join(content...)
}

// cell is a cell of a table.
func cell(class string, content ...Markup) Markup { return Element("td", Class(class), content...) }

// row is a row of a table.
func row(cells ...Markup) Markup { return newLine + Element("tr", nil, cells...) }

// table is a table with its headings.
func table(headings []string, rows ...Markup) Markup {
	var head []Markup
	for _, h := range headings {
		head = append(head, Element("th", nil, Text(h)))
	}
	return Element("table", nil, append([]Markup{row(head...)}, rows...)...)
}

// each is the markup of all values.
func each[T any](values []T, show func(T) Markup) Markup {
	var b strings.Builder
	for _, v := range values {
		b.WriteString(string(show(v)))
	}
	return Markup(b.String())
}

func join(parts ...Markup) Markup { return each(parts, func(m Markup) Markup { return m }) }
