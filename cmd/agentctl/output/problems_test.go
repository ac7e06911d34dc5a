package output

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"agentsh/controller/harness"
)

func TestATerminalGetsColoursUnlessTurnedOff(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	t.Setenv("TERM", "xterm")
	t.Setenv("NO_COLOR", "")
	if got := painter(terminal)(harness.Error); got != "\x1b[31merror\x1b[0m" {
		t.Errorf("a terminal: %q", got)
	}
	if got := painter(file)(harness.Error); got != "error" {
		t.Errorf("a file: %q", got)
	}
	if got := painter(&bytes.Buffer{})(harness.Warning); got != "warning" {
		t.Errorf("no file: %q", got)
	}
	t.Setenv("NO_COLOR", "1")
	if got := painter(terminal)(harness.Error); got != "error" {
		t.Errorf("NO_COLOR: %q", got)
	}
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "dumb")
	if got := painter(terminal)(harness.Error); got != "error" {
		t.Errorf("a dumb terminal: %q", got)
	}
}

// odd are problems whose texts contain syntax of the output formats.
var odd = harness.Problems{
	{
		At:       harness.Origin{File: "a b/ü,:%\n::error::x.yaml", Line: 3, Column: 4},
		Severity: harness.Error,
		Rule:     "type",
		Message:  "100%\r\n::set-output name=x::y <&>",
		Hint:     "h,:",
	},
	{
		At:       harness.Origin{File: "/abs/x.yaml", Line: 1, Column: 1, Layer: "forge.github"},
		Severity: harness.Warning,
		Rule:     "value",
		Message:  "m",
	},
	{At: harness.Origin{File: "x.yaml", Line: 2, Column: 1}, Severity: harness.Note, Rule: "type", Message: "n"},
}

// See SARIF 2.1.0, 3.4 (artifactLocation), 3.10.10 (level) and 3.27 (result).
func TestSARIFIsValid(t *testing.T) {
	var out bytes.Buffer
	if err := PrintProblems(&out, odd, formatSARIF); err != nil {
		t.Fatal(err)
	}
	var log sarifLog
	dec := json.NewDecoder(&out)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&log); err != nil {
		t.Fatal(err)
	}
	if log.Version != "2.1.0" || len(log.Runs) != 1 || log.Runs[0].Tool.Driver.Name != "agentctl" || len(log.Runs[0].Tool.Driver.Rules) != 2 {
		t.Fatalf("%+v", log)
	}
	levels := map[string]bool{"error": true, "warning": true, "note": true}
	for i, r := range log.Runs[0].Results {
		if log.Runs[0].Tool.Driver.Rules[r.RuleIndex].ID != r.RuleID || !levels[r.Level] || r.Message.Text == "" || len(r.Locations) != 1 {
			t.Errorf("%+v", r)
		}
		where := r.Locations[0].Physical
		u, err := url.Parse(where.Artifact.URI)
		if err != nil || u.Path != filepath.Clean(odd[i].At.File) || (u.Scheme == "file") != filepath.IsAbs(odd[i].At.File) {
			t.Errorf("%s: %v", where.Artifact.URI, err)
		}
		if where.Region.StartLine < 1 || where.Region.StartColumn < 1 {
			t.Errorf("%+v", where.Region)
		}
	}
	// Without problems, the log must still be complete.
	out.Reset()
	if err := PrintProblems(&out, nil, formatSARIF); err != nil || !strings.Contains(out.String(), `"results": []`) {
		t.Errorf("%v %s", err, out.String())
	}
}

func TestAnnotationsAreOneLineEach(t *testing.T) {
	var out bytes.Buffer
	if err := PrintProblems(&out, odd, formatGitHub); err != nil {
		t.Fatal(err)
	}
	want := `::error file=a b/ü%2C%3A%25%0A%3A%3Aerror%3A%3Ax.yaml,line=3,col=4,title=agentctl type::100%25%0D%0A::set-output name=x::y <&> (h,:)
::warning file=/abs/x.yaml,line=1,col=1,title=agentctl value::m
::notice file=x.yaml,line=2,col=1,title=agentctl type::n
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out.String(), want)
	}
}

func TestJSONHasEveryProblem(t *testing.T) {
	var out bytes.Buffer
	if err := PrintProblems(&out, odd, FormatJSON); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Problems         []ProblemJSON
		Errors, Warnings int
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got.Problems) != 3 || got.Errors != 1 || got.Warnings != 1 {
		t.Fatalf("%v %+v", err, got)
	}
	if p := got.Problems[1]; p.Layer != "forge.github" || p.Severity != "warning" || p.File != "/abs/x.yaml" || p.Line != 1 {
		t.Errorf("%+v", p)
	}
}
