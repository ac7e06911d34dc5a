package output

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"agentsh/controller/harness"
)

// Output formats of problems.
const (
	FormatText   = "text"
	FormatJSON   = "json"
	formatGitHub = "github"
	formatSARIF  = "sarif"
)

// ProblemFormats are the values of --output of commands that print problems.
var ProblemFormats = []string{FormatText, FormatJSON, formatGitHub, formatSARIF}

// PrintProblems writes problems in a format. Under GitHub Actions the text
// format is followed by annotations.
func PrintProblems(w io.Writer, ps harness.Problems, format string) error {
	switch format {
	case FormatText:
		return textProblems(w, ps)
	case FormatJSON:
		return jsonProblems(w, ps)
	case formatGitHub:
		return githubProblems(w, ps)
	case formatSARIF:
		return sarifProblems(w, ps)
	}
	return fmt.Errorf("unknown output format %q: one of %s", format, strings.Join(ProblemFormats, ", "))
}

func textProblems(w io.Writer, ps harness.Problems) error {
	paint := painter(w)
	for _, p := range ps {
		fmt.Fprintf(w, "%s: %s: %s\n", p.At, paint(p.Severity), p.Message)
		if p.Hint != "" {
			fmt.Fprintf(w, "  hint: %s\n", p.Hint)
		}
	}
	if os.Getenv("GITHUB_ACTIONS") == "true" {
		return githubProblems(w, ps)
	}
	return nil
}

// painter returns a function that colours severities on a terminal, unless
// NO_COLOR is set.
func painter(w io.Writer) func(harness.Severity) string {
	if !Colours(w) {
		return harness.Severity.String
	}
	return func(s harness.Severity) string {
		code := map[harness.Severity]string{harness.Error: "31", harness.Warning: "33", harness.Note: "36"}[s]
		return "\x1b[" + code + "m" + s.String() + "\x1b[0m"
	}
}

// Colours reports whether w is a terminal and colours are not turned off. See
// https://no-color.org.
func Colours(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// ProblemJSON is one problem of the JSON output.
type ProblemJSON struct {
	File     string `json:"file"`
	Line     int    `json:"line"`
	Column   int    `json:"column"`
	Layer    string `json:"layer,omitempty"`
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	Message  string `json:"message"`
	Hint     string `json:"hint,omitempty"`
}

func jsonProblems(w io.Writer, ps harness.Problems) error {
	out := struct {
		Problems []ProblemJSON `json:"problems"`
		Errors   int           `json:"errors"`
		Warnings int           `json:"warnings"`
	}{Problems: []ProblemJSON{}}
	for _, p := range ps {
		switch p.Severity {
		case harness.Error:
			out.Errors++
		case harness.Warning:
			out.Warnings++
		}
		out.Problems = append(
			out.Problems,
			ProblemJSON{p.At.File, p.At.Line, p.At.Column, p.At.Layer, p.Severity.String(), p.Rule, p.Message, p.Hint},
		)
	}
	return WriteJSON(w, out)
}

// WriteJSON writes a value as indented JSON.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(PrintableJSON{W: w})
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// JSONList writes a list as [WriteJSON] does, one element after the other.
type JSONList struct {
	W     io.Writer
	begun bool
}

// Add writes the next element.
func (l *JSONList) Add(v any) error {
	before := ",\n  "
	if !l.begun {
		l.begun, before = true, "[\n  "
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("  ", "  ")
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := io.WriteString(l.W, before+escapeJSON(strings.TrimSuffix(b.String(), "\n")))
	return err
}

// End ends the list. It is not called after a failure: half a list is no JSON.
func (l *JSONList) End() error {
	end := "\n]\n"
	if !l.begun {
		end = "[]\n"
	}
	_, err := io.WriteString(l.W, end)
	return err
}

// PrintableJSON escapes the characters that JSON allows in a string, but that
// control a terminal.
type PrintableJSON struct{ W io.Writer }

func (p PrintableJSON) Write(b []byte) (int, error) {
	if _, err := io.WriteString(p.W, escapeJSON(string(b))); err != nil {
		return 0, err
	}
	return len(b), nil
}

// escapeJSON escapes unprintable characters beyond ASCII, and DEL. In JSON they
// stand in strings only.
func escapeJSON(s string) string {
	if !strings.ContainsFunc(s, unprintableJSON) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		switch {
		case !unprintableJSON(r):
			b.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

func unprintableJSON(r rune) bool { return r >= 0x7f && !unicode.IsPrint(r) }

// githubProblems writes workflow commands. Texts are escaped, so that a file
// cannot add commands.
func githubProblems(w io.Writer, ps harness.Problems) error {
	data := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	for _, p := range ps {
		kind := map[harness.Severity]string{harness.Error: "error", harness.Warning: "warning", harness.Note: "notice"}[p.Severity]
		text := p.Message
		if p.Hint != "" {
			text += " (" + p.Hint + ")"
		}
		_, err := fmt.Fprintf(
			w,
			"::%s file=%s,line=%d,col=%d,title=%s::%s\n",
			kind,
			property.Replace(p.At.File),
			p.At.Line,
			p.At.Column,
			property.Replace("agentctl "+p.Rule),
			data.Replace(text),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// Parts of a SARIF 2.1.0 log.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool     `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name  string      `json:"name"`
		Rules []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID string `json:"id"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		RuleIndex int             `json:"ruleIndex"`
		Level     string          `json:"level"`
		Message   sarifMessage    `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifMessage struct {
		Text string `json:"text"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn"`
	}
)

func sarifProblems(w io.Writer, ps harness.Problems) error {
	run := sarifRun{
		Tool:       sarifTool{sarifDriver{Name: "agentctl", Rules: []sarifRule{}}},
		ColumnKind: "unicodeCodePoints",
		Results:    []sarifResult{},
	}
	index := map[string]int{}
	for _, p := range ps {
		if _, ok := index[p.Rule]; !ok {
			index[p.Rule] = len(run.Tool.Driver.Rules)
			run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{p.Rule})
		}
		text := p.Message
		if p.Hint != "" {
			text += ". " + p.Hint
		}
		run.Results = append(run.Results, sarifResult{
			RuleID: p.Rule, RuleIndex: index[p.Rule], Level: p.Severity.String(), Message: sarifMessage{text},
			Locations: []sarifLocation{{sarifPhysical{sarifArtifact{fileURI(p.At.File)}, sarifRegion{p.At.Line, p.At.Column}}}},
		})
	}
	return WriteJSON(w, sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}})
}

// fileURI is a file name as a relative or absolute URI reference.
func fileURI(name string) string {
	const keep = "-._~/!$&'()*+,;=@"
	var out strings.Builder
	if filepath.IsAbs(name) {
		out.WriteString("file://")
	}
	for _, b := range []byte(filepath.ToSlash(filepath.Clean(name))) {
		if b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || strings.IndexByte(keep, b) >= 0 {
			out.WriteByte(b)
		} else {
			fmt.Fprintf(&out, "%%%02X", b)
		}
	}
	return out.String()
}
