package policycmd

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"slices"
	"strings"

	"agentsh/internal/text"
	"agentsh/policy/policytest"
)

// line is one test as every output format shows it.
type line struct {
	suite   string
	name    string
	at      string
	problem string // empty: it passed
}

// lines are the tests of all policies in order: the cases, what
// really happened, coverage and mutants.
func lines(all []*tested, o testOptions) []line {
	var out []line
	for _, t := range all {
		for _, r := range t.reports {
			for i := range r.Results {
				c := r.Results[i]
				out = append(out, line{r.Suite.File, c.Case.Name, c.Case.Pos.String(), c.Problem})
			}
		}
		for _, l := range t.live {
			out = append(out, line{l.file, l.name + " (live)", l.at, l.problem})
		}
		out = append(out, qualityLines(t, o)...)
	}
	return out
}

func qualityLines(t *tested, o testOptions) []line {
	name := t.policy.Sources()[0].Name
	var out []line
	if c := t.coverage; c != nil && o.minimum > 0 {
		l := line{suite: name, name: fmt.Sprintf("tests reach %d %% of the rules", o.minimum), at: name}
		if c.Percent() < o.minimum {
			l.problem = fmt.Sprintf("%d %% of %d rules reached, at least %d %% wanted", c.Percent(), c.Rules, o.minimum)
		}
		out = append(out, l)
	}
	const noticing = "tests notice every change of a rule"
	if t.notMutated != nil {
		out = append(out, line{name, noticing, name, t.notMutated.Error()})
	}
	if m := t.mutation; m != nil {
		l := line{suite: name, name: noticing, at: name}
		if n := len(m.Survivors); n > 0 {
			l.problem = fmt.Sprintf("%d of %d mutants survive, first: %s", n, m.Mutants, survivor(m.Survivors[0]))
		}
		out = append(out, l)
	}
	return out
}

// survivor describes a mutant and the request that shows it.
func survivor(m policytest.Mutant) string {
	return fmt.Sprintf("%s: no test notices; a test of this request would: %s", m, policytest.Describe(m.Witness))
}

func printTests(out io.Writer, all []*tested, o testOptions) error {
	switch o.output {
	case "tap":
		return printTAP(out, lines(all, o))
	case "junit":
		return printJUnit(out, lines(all, o))
	case "json":
		return printJSON(out, all, o)
	}
	return printText(out, all, o)
}

// printText prints failures, measurements and one closing line.
func printText(out io.Writer, all []*tested, o testOptions) error {
	failed := 0
	list := lines(all, o)
	for _, l := range list {
		if l.problem != "" {
			failed++
			fmt.Fprintf(out, "FAIL %s: %s: %s\n", l.at, l.name, l.problem)
		}
	}
	for _, t := range all {
		name := t.policy.Sources()[0].Name
		if c := t.coverage; c != nil {
			fmt.Fprintf(out, "%s: coverage %d %%, %d of %d rules\n", name, c.Percent(), c.Rules-len(c.Missed), c.Rules)
			for _, r := range c.Missed {
				fmt.Fprintf(out, "%s: rule %s is reached by no test\n", r.Pos, r.Name)
			}
		}
		if m := t.mutation; m != nil {
			fmt.Fprintf(out, "%s: %s, %d noticed, %d that change no decision, %s\n",
				name, text.Count(m.Mutants, "mutant"), m.Mutants-m.Equivalent-len(m.Survivors), m.Equivalent, text.Count(len(m.Survivors), "survivor"))
			for _, s := range m.Survivors {
				fmt.Fprintln(out, survivor(s))
			}
		}
	}
	_, err := fmt.Fprintf(out, "%s, %d failed\n", text.Count(len(list), "test"), failed)
	return err
}

// printTAP prints the Test Anything Protocol, version 13.
func printTAP(out io.Writer, list []line) error {
	fmt.Fprintf(out, "TAP version 13\n1..%d\n", len(list))
	for i, l := range list {
		word := "ok"
		if l.problem != "" {
			word = "not ok"
		}
		fmt.Fprintf(out, "%s %d - %s\n", word, i+1, oneLine(l.name))
		if l.problem != "" {
			fmt.Fprintf(out, "  ---\n  at: %q\n  message: %q\n  ...\n", l.at, l.problem)
		}
	}
	return nil
}

// oneLine prevents a name from ending the line or starting a TAP directive.
func oneLine(s string) string {
	out := []rune(s)
	for i, c := range out {
		if c < ' ' || c == '#' {
			out[i] = ' '
		}
	}
	return string(out)
}

// printJUnit prints the XML that CI systems read.
func printJUnit(out io.Writer, list []line) error {
	b := bytes.NewBufferString(xml.Header + "<testsuites>\n")
	for len(list) > 0 {
		end := slices.IndexFunc(list, func(l line) bool { return l.suite != list[0].suite })
		if end < 0 {
			end = len(list)
		}
		junitSuite(b, list[:end])
		list = list[end:]
	}
	b.WriteString("</testsuites>\n")
	_, err := b.WriteTo(out)
	return err
}

// junitSuite writes the tests of one suite. Encoding by reflection would double what the
// program has of encoding/xml.
func junitSuite(b *bytes.Buffer, suite []line) {
	failures := 0
	for _, l := range suite {
		if l.problem != "" {
			failures++
		}
	}
	name := escaped(suite[0].suite)
	fmt.Fprintf(b, "  <testsuite name=\"%s\" tests=\"%d\" failures=\"%d\">\n", name, len(suite), failures)
	for _, l := range suite {
		fmt.Fprintf(b, "    <testcase name=\"%s\" classname=\"%s\">", escaped(l.name), name)
		if l.problem != "" {
			fmt.Fprintf(b, "\n      <failure message=\"%s\">%s</failure>\n    ", escaped(l.problem), escaped(l.at+": "+l.problem))
		}
		b.WriteString("</testcase>\n")
	}
	b.WriteString("  </testsuite>\n")
}

func escaped(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a builder takes everything
	return b.String()
}

type jsonReport struct {
	Tests    []jsonTest   `json:"tests"`
	Policies []jsonPolicy `json:"policies"`
}

type jsonTest struct {
	Suite   string `json:"suite"`
	Name    string `json:"name"`
	At      string `json:"at"`
	Pass    bool   `json:"pass"`
	Problem string `json:"problem,omitempty"`
}

type jsonPolicy struct {
	File       string   `json:"file"`
	Coverage   *int     `json:"coverage_percent,omitempty"`
	Missed     []string `json:"missed,omitempty"`
	Mutants    int      `json:"mutants,omitempty"`
	Equivalent int      `json:"equivalent,omitempty"`
	Survivors  []string `json:"survivors,omitempty"`
}

func printJSON(out io.Writer, all []*tested, o testOptions) error {
	report := jsonReport{Tests: []jsonTest{}}
	for _, l := range lines(all, o) {
		report.Tests = append(report.Tests, jsonTest{l.suite, l.name, l.at, l.problem == "", l.problem})
	}
	for _, t := range all {
		p := jsonPolicy{File: t.policy.Sources()[0].Name}
		if c := t.coverage; c != nil {
			percent := c.Percent()
			p.Coverage = &percent
			for _, r := range c.Missed {
				p.Missed = append(p.Missed, r.Pos.String()+" "+r.Name)
			}
		}
		if m := t.mutation; m != nil {
			p.Mutants, p.Equivalent = m.Mutants, m.Equivalent
			for _, s := range m.Survivors {
				p.Survivors = append(p.Survivors, survivor(s))
			}
		}
		report.Policies = append(report.Policies, p)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(report)
}
