package hook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"agentsh/controller/scan"
	"agentsh/internal/text"
)

// judge applies hooks to one call.
type judge struct {
	settings Settings
	call     call
	program  program
	command  bool // the tool runs commands
	canaries *scan.Scanner
}

func newJudge(s Settings, p program, c call) *judge {
	j := &judge{settings: s, call: c, program: p, command: p.runs(c.Tool)}
	if s.Canary != "" {
		j.canaries = scan.New(scan.Options{Canaries: []string{s.Canary}})
	}
	return j
}

// refuse returns the refusal of a call, worded for the agent. rule is the rule of
// the scan that found something; empty: the hook has one reason only.
func (j *judge) refuse(hook, rule, format string, args ...any) error {
	reason := fmt.Sprintf(format, args...)
	entry := Entry{Hook: hook, Rule: rule, Tool: j.call.Tool, Reason: reason}
	if j.settings.Trace != "" {
		reason += " (run " + j.settings.Trace + ")"
	}
	j.record(entry)
	return Refused{Hook: hook, Rule: rule, Reason: reason}
}

// allowlist refuses tools that the list does not name.
func (j *judge) allowlist() error {
	if slices.ContainsFunc(j.settings.Allow, func(entry string) bool {
		beginning, any := strings.CutSuffix(entry, "*")
		return entry == j.call.Tool || any && strings.HasPrefix(j.call.Tool, beginning)
	}) {
		return nil
	}
	return j.refuse(ToolAllowlist, "", "the tool %s is not one of this run: use %s", j.call.Tool, strings.Join(j.settings.Allow, ", "))
}

// commandKeys are the argument names under which tools take a command.
var commandKeys = map[string]bool{
	"command":  true,
	"cmd":      true,
	"chars":    true,
	"script":   true,
	"code":     true,
	"args":     true,
	"argv":     true,
	"shell":    true,
	"commands": true,
}

// line is a command of a call.
type line struct {
	text  string
	shell bool // a shell reads it from its beginning; otherwise all of it may be run
}

// find judges a line.
func (l line) find(s *scan.Scanner) []scan.Finding {
	if l.shell {
		return s.Command(l.text)
	}
	return s.Code(l.text)
}

// requests judges the requests of a line.
func (l line) requests() []scan.Finding {
	if l.shell {
		return scan.Requests(l.text)
	}
	return scan.RequestsOfCode(l.text)
}

// lines returns the commands of the call. A list of words gives all words
// joined and each word, because a shell often gets its script as one word.
func (j *judge) lines() []line {
	if !j.command {
		return nil
	}
	var words []string
	texts(j.call.Input, "", func(key, s string) {
		if commandKeys[key] {
			words = append(words, s)
		}
	})
	shell := shellTools[j.call.Tool]
	if len(words) == 1 {
		return []line{{words[0], shell}}
	}
	if shell && len(words) == 3 && shells[words[0]] && (words[1] == "-c" || words[1] == "-lc") {
		return []line{{words[2], true}}
	}
	var out []line
	for _, word := range words {
		out = append(out, line{text: word})
	}
	if len(words) > 1 {
		out = append(out, line{text: strings.Join(words, " ")})
	}
	return out
}

// shells are the shells that a list of words may name.
var shells = map[string]bool{
	"sh": true, "bash": true, "zsh": true, "/bin/sh": true, "/bin/bash": true, "/bin/zsh": true, "/usr/bin/sh": true, "/usr/bin/bash": true,
	"/usr/bin/zsh": true,
}

// commands refuses shell commands that look like an attack.
func (j *judge) commands() error {
	s := scan.New(scan.Options{Unicode: true})
	for _, line := range j.lines() {
		for _, f := range line.find(s) {
			if f.Severity >= j.settings.FailOn {
				return j.refuse(Tirith, f.Rule, "%s (%s): %s", f.Message, f.Severity, f.Excerpt)
			}
		}
	}
	return nil
}

// requests refuses requests to internal services.
func (j *judge) requests() error {
	var found []scan.Finding
	for _, line := range j.lines() {
		found = append(found, line.requests()...)
	}
	fetches := j.program.fetches(j.call.Tool)
	texts(j.call.Input, "", func(key, s string) {
		switch {
		case key == "url" || key == "uri" || key == "urls":
			if !strings.Contains(s, ":") {
				s = "http://" + s
			}
			found = append(found, scan.URL(s)...)
		case fetches && key != "":
			found = append(found, scan.RequestsOfCode(s)...)
		}
	})
	if len(found) > 0 {
		return j.refuse(SSRF, found[0].Rule, "%s: %s", found[0].Message, found[0].Excerpt)
	}
	return nil
}

// canary refuses calls that pass on a canary of the agent's context.
func (j *judge) canary() error {
	all, values := bytes.NewBufferString(j.call.Tool), &bytes.Buffer{}
	texts(j.call.Input, "", func(key, s string) {
		all.WriteString("\n" + s)
		if key != "" {
			values.WriteString(s) // a value in two fields has no name between
		}
	})
	for _, text := range []*bytes.Buffer{all, values} {
		found, err := j.canaries.Text(context.Background(), "input", scan.Output, text)
		if err != nil {
			return err
		}
		if len(found) > 0 {
			return j.refuse(
				CanaryBefore,
				found[0].Rule,
				"the input of %s gives away what stands in the agent's own instructions (%s)",
				j.call.Tool,
				found[0].Message,
			)
		}
	}
	return nil
}

// rewrite returns the tool's answer after all hooks have rewritten it, with what
// the agent is told about it.
func (j *judge) rewrite(selected []hook) ([]byte, error) {
	counts := make([]int, len(selected))
	out, changed := replaced(j.call.Response, func(s string) string {
		b := []byte(s)
		for i, h := range selected {
			if h.after == nil {
				continue
			}
			var n int
			b, n = h.after(j, b)
			counts[i] += n
		}
		return string(b)
	})
	var did, notes []string
	for i, h := range selected {
		if counts[i] > 0 {
			did = append(did, fmt.Sprintf("%s (%d)", h.did, counts[i]))
			j.record(Entry{Hook: h.name, Tool: j.call.Tool, Reason: h.did, Count: counts[i]})
		}
		if h.name == Refusals {
			notes = append(notes, untold(j.settings.Untold, j.settings.Told, false)...)
		}
	}
	if len(did) > 0 {
		notes = append([]string{"agentsh: " + text.Visible(strings.Join(did, "; "))}, notes...)
	}
	if !changed && len(notes) == 0 {
		return nil, nil
	}
	return marshal(j.program.answer(outcome{event: j.call.Event, changed: changed, output: out, notes: strings.Join(notes, "\n")}))
}

func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("write the answer: %w", err)
	}
	return b.Bytes(), nil
}

func (j *judge) normalize(b []byte) ([]byte, int) {
	return scan.New(scan.Options{Unicode: true}).Normalize(b)
}

func (j *judge) hideCanary(b []byte) ([]byte, int) {
	out, n := j.canaries.Redact(b)
	if n > 0 {
		return out, n
	}
	if found, err := j.canaries.Text(context.Background(), "answer", scan.Output, bytes.NewReader(b)); err != nil || len(found) > 0 {
		return []byte("[redacted " + scan.RuleCanary + "]"), 1
	}
	return b, 0
}

func (j *judge) redact(b []byte) ([]byte, int) {
	return scan.New(scan.Options{Secrets: true, Prints: j.settings.Secrets}).Redact(b)
}

func (j *judge) suppress(b []byte) ([]byte, int) {
	return scan.New(scan.Options{Unicode: true, Injection: true}).Suppress(b)
}
