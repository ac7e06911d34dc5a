package policy

import (
	"sort"
	"strconv"
	"strings"
)

// Severity is the severity of a problem.
type Severity uint8

// The severities. A policy with an error does not load.
const (
	SeverityError Severity = iota
	SeverityWarning
)

// String returns "error" or "warning".
func (s Severity) String() string {
	if s == SeverityWarning {
		return "warning"
	}
	return "error"
}

// MarshalText returns the word for JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Problem is one error or warning about a policy file.
type Problem struct {
	Pos      Position `json:"pos"`
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Hint     string   `json:"hint,omitempty"` // suggested correction, may be empty
	Code     string   `json:"code,omitempty"` // kind of a warning, for example "shadowed"
}

// String returns "file:line:column: message (hint)".
func (p Problem) String() string {
	text := p.Pos.String() + ": " + p.Message
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	return text
}

// Problems are all problems of one load, in file order. It implements error.
type Problems []Problem

// Error returns one line for each problem.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Sorted returns the problems ordered by file, line and column. Files keep the
// order in which they first appear.
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

// Position is a position in a policy file. Lines and columns start at 1.
type Position struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

// String returns "file:line:column", or "default" for the zero value.
func (p Position) String() string {
	if p == (Position{}) {
		return "default"
	}
	return p.File + ":" + strconv.Itoa(p.Line) + ":" + strconv.Itoa(p.Column)
}
