package policy

import (
	"sort"
	"strconv"
	"strings"
)

// Severity is how bad a problem is.
type Severity uint8

// The severities. Only errors stop a policy from loading.
const (
	SeverityError Severity = iota
	SeverityWarning
)

// String is "error" or "warning".
func (s Severity) String() string {
	if s == SeverityWarning {
		return "warning"
	}
	return "error"
}

// Problem is one thing wrong with a policy file.
type Problem struct {
	Pos      Position `json:"pos"`
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Hint     string   `json:"hint,omitempty"` // what to write instead, may be empty
	Code     string   `json:"code,omitempty"` // of a warning: its kind, as "shadowed"
}

// String is "file:line:column: message (hint)".
func (p Problem) String() string {
	text := p.Pos.String() + ": " + p.Message
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	return text
}

// Problems are all the problems of one load, in file order.
type Problems []Problem

// Error lists the problems, one a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Sorted orders problems by file in order of appearance, line and column.
func (ps Problems) Sorted() Problems {
	order := map[string]int{}
	for _, p := range ps {
		if _, seen := order[p.Pos.File]; !seen {
			order[p.Pos.File] = len(order)
		}
	}
	sort.SliceStable(ps, func(i, j int) bool {
		a, b := ps[i].Pos, ps[j].Pos
		if a.File != b.File {
			return order[a.File] < order[b.File]
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	return ps
}

// Position is a place in a policy file. Lines and columns count from 1.
type Position struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

// String is "file:line:column", or "default" for the zero position.
func (p Position) String() string {
	if p == (Position{}) {
		return "default"
	}
	return p.File + ":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column)
}
