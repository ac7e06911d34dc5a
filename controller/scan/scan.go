// Package scan finds text that may mislead an agent or must not leave a sandbox:
// hidden characters, injected instructions, addresses of internal
// services, secrets, canaries, and settings that start programs.
//
// A [Scanner] reads streams of any size in bounded memory. It decodes encoded
// text (base64, hexadecimal, percent and character references, rot13) and
// hidden text (comments, tag characters) and scans the result. A finding there
// is more severe than in plain text. A scan only advises; the supervisor
// enforces.
package scan

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"agentsh/internal/text"
)

// Severity is the importance of a finding.
type Severity uint8

// The severities. Only a critical finding stops a run.
const (
	Low Severity = iota
	Medium
	High
	Critical
)

var severityNames = []string{"low", "medium", "high", "critical"}

// String returns the severity as printed.
func (s Severity) String() string { return severityNames[min(int(s), len(severityNames)-1)] }

// MarshalText makes a severity its word in JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads the word of a severity.
func (s *Severity) UnmarshalText(word []byte) error {
	i := slices.Index(severityNames, string(word))
	if i < 0 {
		return fmt.Errorf("%q is not a severity", word)
	}
	*s = Severity(i)
	return nil
}

// Finding is one result of a scan.
type Finding struct {
	File string `json:"file"`
	// Line is one line of a scan in another process: a finding, or at the end the
	// number of scanned files.
	Line     int      `json:"line"`   // from 1
	Column   int      `json:"column"` // in characters, from 1
	Rule     string   `json:"rule"`   // stable name, for filters and SARIF
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Excerpt  string   `json:"excerpt,omitempty"` // what does not print as itself is written out; never a whole secret
	Hint     string   `json:"hint,omitempty"`    // what to do
	Trace    string   `json:"trace,omitempty"`   // of the run that found it
}

// String returns the finding on one line, without its hint.
func (f Finding) String() string {
	line := fmt.Sprintf("%s:%d:%d %s %s %s", text.Visible(f.File), f.Line, f.Column, f.Rule, f.Severity, f.Message)
	if f.Excerpt != "" {
		line += ": " + f.Excerpt
	}
	return line
}

// The rules, as findings name them.
const (
	RuleHidden     = "hidden-characters" // characters that a reader does not see
	RuleBidi       = "bidi-control"      // characters that change the order of what a reader sees
	RuleHomoglyph  = "homoglyph"         // letters that look like those of another script
	RuleInjection  = "prompt-injection"  // instructions that would replace those of the operator
	RuleConceal    = "conceal"           // instructions to keep something from the user
	RuleExfiltrate = "exfiltrate"        // instructions to send secrets away
	RuleRole       = "role-change"       // the agent is told to be something else
	RuleMarker     = "role-marker"       // text that poses as a message of the system
	RuleURL        = "internal-url"      // address of an internal service
	RuleSecret     = "secret"            // credential
	RuleCanary     = "canary"            // a planted value that nobody has a reason to use
	RuleSettings   = "starts-program"    // a setting that makes a tool start a program
	RuleCommand    = "command"           // a shell command that looks like an attack
	RuleModel      = "model"             // what a model-based scanner reports
	RuleRepository = "repository"        // a repository of git that would run code or lead outside
	RuleObject     = "object"            // a commit that git's own checks refuse
	RuleLimit      = "limit"             // more findings than are listed
)

// Line is one line of a scan that another process makes: a finding, or at the
// end how many files were scanned.
type Line struct {
	Finding *Finding `json:"finding,omitempty"`
	Files   int      `json:"files,omitempty"`
	Done    bool     `json:"done,omitempty"`
}

// Kind is the purpose of a text. The same words are graver where an agent reads
// its instructions.
type Kind uint8

// The kinds of text.
const (
	Ordinary     Kind = iota // source code, documentation
	Instructions             // what an agent obeys: AGENTS.md, SKILL.md, ...
	Settings                 // configuration of tools
	Output                   // what leaves a sandbox
)

// Options select the scanners. The zero value selects canaries only.
type Options struct {
	Unicode    bool
	Injection  bool
	URLs       bool
	Secrets    bool
	Settings   bool
	Unreadable bool         // what may not be read is left out of trees instead of an error
	Canaries   []string     // planted values; shorter than 8 bytes are ignored
	Values     []string     // secrets of the run, found as they are; shorter than 8 bytes are ignored
	Prints     Fingerprints // secrets that only [Scanner.Redact] looks for
	Model      Model        // nil: none
	Threshold  float64      // score of the model from which a finding counts
	Sentences  bool         // the model scores sentence by sentence, else blocks
}

// All returns the options with every scanner that needs no other settings.
func All() Options {
	return Options{Unicode: true, Injection: true, URLs: true, Secrets: true, Settings: true}
}

// Scanner scans texts. Create one with [New]. It is safe for concurrent use if
// its model is.
type Scanner struct {
	options      Options
	planted      []planted
	fingerprints Fingerprints
}

// New returns a scanner.
func New(o Options) *Scanner {
	s := &Scanner{options: o, fingerprints: o.Prints}
	s.plant(o.Canaries, RuleCanary)
	s.plant(o.Values, RuleSecret)
	return s
}

// maxFindings limits the findings of one text.
const maxFindings = 200

// Text scans one stream and returns its findings by position. name stands in
// the findings. An error comes from reading, the model or ctx; findings so far
// are returned with it.
func (s *Scanner) Text(ctx context.Context, name string, kind Kind, r io.Reader) ([]Finding, error) {
	j := &job{scanner: s, ctx: ctx, name: name, kind: kind, seen: map[Finding]bool{}, line: 1, column: 1}
	err := j.read(r)
	j.escalate()
	slices.SortStableFunc(j.found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if err != nil {
		err = fmt.Errorf("scan %s: %w", name, err)
	}
	return j.found, err
}

// Worst returns the highest severity, and whether there is a finding.
func Worst(fs []Finding) (Severity, bool) {
	worst := Low
	for _, f := range fs {
		worst = max(worst, f.Severity)
	}
	return worst, len(fs) > 0
}
