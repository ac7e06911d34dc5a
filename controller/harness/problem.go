package harness

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode"
)

// Severity is the severity of a problem.
type Severity uint8

// The severities. Only an error stops a run.
const (
	Note Severity = iota
	Warning
	Error
)

// String is the name of the severity.
func (s Severity) String() string {
	switch s {
	case Error:
		return "error"
	case Warning:
		return "warning"
	}
	return "note"
}

// MarshalText encodes a severity as its name.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText decodes the name of a severity.
func (s *Severity) UnmarshalText(text []byte) error {
	for _, v := range []Severity{Note, Warning, Error} {
		if v.String() == string(text) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("%q is not a severity", text)
}

// Origin is the position of a value. Lines and columns count from 1. The zero
// Origin belongs to a value that no layer sets.
type Origin struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Layer  string `json:"layer,omitempty"` // "forge.github", "overlays[0]"; empty: the file itself
}

// String is "file:line:column".
func (o Origin) String() string { return fmt.Sprintf("%s:%d:%d", oneLine(o.File), o.Line, o.Column) }

// IsZero reports whether no layer sets the value.
func (o Origin) IsZero() bool { return o.Line == 0 }

// Problem is one problem of a file.
type Problem struct {
	At       Origin   `json:"at"`
	Severity Severity `json:"severity"`
	Rule     string   `json:"rule"` // stable name, for filters and SARIF
	Message  string   `json:"message"`
	Hint     string   `json:"hint,omitempty"`
}

// String is the problem on one line, without its hint.
func (p Problem) String() string {
	return fmt.Sprintf("%s: %s: %s", p.At, p.Severity, p.Message)
}

// Problems are all problems of a file and its bases, sorted by position.
type Problems []Problem

// Error lists the problems, one a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// HasErrors reports whether one of the problems stops a run.
func (ps Problems) HasErrors() bool {
	for _, p := range ps {
		if p.Severity == Error {
			return true
		}
	}
	return false
}

// Errors are the problems that stop a run.
func (ps Problems) Errors() Problems {
	var out Problems
	for _, p := range ps {
		if p.Severity == Error {
			out = append(out, p)
		}
	}
	return out
}

// Strict is ps with the deprecations as errors.
func (ps Problems) Strict() Problems {
	out := append(Problems(nil), ps...)
	for i := range out {
		if out[i].Rule == RuleDeprecated {
			out[i].Severity = Error
		}
	}
	return out
}

// Sorted is ps by file, line and column, each problem once.
func (ps Problems) Sorted() Problems {
	out := append(Problems(nil), ps...)
	sort.SliceStable(out, func(i, j int) bool {
		a, b := out[i].At, out[j].At
		switch {
		case a.File != b.File:
			return a.File < b.File
		case a.Line != b.Line:
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	seen := map[Problem]bool{}
	kept := out[:0]
	for _, p := range out {
		key := p
		key.At.Layer = ""
		if !seen[key] {
			seen[key] = true
			kept = append(kept, p)
		}
	}
	return kept
}

// maxProblems is the highest number of problems that are reported of one
// harness.
const maxProblems = 200

// merged returns the first [maxProblems] problems of ps, sorted.
func (ps Problems) merged() Problems {
	ps = ps.Sorted()
	if len(ps) <= maxProblems {
		return ps
	}
	rest := ps[maxProblems:]
	more := Problem{At: rest[0].At, Severity: Warning, Rule: RuleFile, Message: fmt.Sprintf("more than %d problems", maxProblems)}
	if rest.HasErrors() {
		more.Severity = Error
	}
	return append(ps[:maxProblems:maxProblems], more)
}

// errorf adds an error. When there are far more errors than are reported,
// further ones are dropped.
func (ps *Problems) errorf(at Origin, rule, format string, args ...any) {
	if n := len(*ps); n > 10*maxProblems && (*ps)[n-1].Severity == Error {
		return
	}
	*ps = append(*ps, Problem{At: at, Severity: Error, Rule: rule, Message: oneLine(fmt.Sprintf(format, args...))})
}

func (ps *Problems) warnf(at Origin, rule, format string, args ...any) {
	*ps = append(*ps, Problem{At: at, Severity: Warning, Rule: rule, Message: oneLine(fmt.Sprintf(format, args...))})
}

// hint adds a hint to the problem added last.
func (ps Problems) hint(format string, args ...any) {
	ps[len(ps)-1].Hint = oneLine(fmt.Sprintf(format, args...))
}

// oneLine puts a text on one line without control characters. A file must not
// be able to add lines to the output, or to control a terminal.
func oneLine(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) < 0 {
		return s
	}
	var out strings.Builder
	for _, r := range s {
		if unicode.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		q := strconv.QuoteRune(r)
		out.WriteString(q[1 : len(q)-1])
	}
	return out.String()
}

// Names of the rules.
const (
	RuleFile       = "file"           // cannot be read, too large, not UTF-8
	RuleSyntax     = "yaml-syntax"    // not YAML, or unsupported YAML
	RuleUnknownKey = "unknown-key"    // a key that is not in the schema
	RuleDuplicate  = "duplicate-key"  // a key written twice
	RuleType       = "type"           // a value of the wrong type
	RuleValue      = "value"          // a value outside its range or pattern
	RuleRequired   = "required"       // a required field is missing after merging
	RuleBase       = "base"           // the chain of bases
	RuleForge      = "forge"          // forge and overlay blocks
	RulePath       = "path"           // a path that leaves the root or does not exist
	RuleSize       = "size"           // more than the kernel passes to a process
	RuleReserved   = "reserved-name"  // a name reserved for the supervisor
	RuleName       = "variable-name"  // not a name of a variable
	RuleUnset      = "unset-variable" // ${NAME} that the host does not set
	RuleExpansion  = "expansion"      // a dollar that is not a reference
	RuleDeprecated = "deprecated"     // still works, but has a successor
	RuleShadowed   = "shadowed"       // a value that another one overrides
	RuleNoEffect   = "no-effect"      // a setting without an effect
	RuleUnsupport  = "not-supported"  // a known key that no step reads
	RuleProvider   = "provider"       // provider definitions and references
	RuleSecret     = "secret-tier"    // where a secret is delivered
	RuleRun        = "run"            // what a run refuses besides
	RuleOnlyRun    = "only-run"       // what only a run can find out
)
