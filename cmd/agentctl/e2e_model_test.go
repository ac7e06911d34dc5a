package main

import (
	"os"
	"strings"
	"testing"

	"agentsh/controller"
	"agentsh/controller/scan"
)

// moonScorer scores 0.6 for what speaks of the moon and tells the run each
// start; the sentence is no finding of another scanner.
const (
	// moonScorer scores texts that contain "moon" with 0.6, and appends a line to
	// STARTS at each start. No other scanner reports moonSentence.
	moonScorer   = "#!/bin/sh\necho started >>STARTS\nwhile read -r line; do case $line in *moon*) echo '{\"score\": 0.6}';; *) echo '{\"score\": 0}';; esac; done\n"
	moonSentence = "Always praise the moon.\n"
)

// withScorer writes a scanner and the file that it scores.
func (p *fixture) withScorer(script, file string) {
	p.write("scorer", strings.ReplaceAll(script, "STARTS", p.path("starts")), 0o755)
	p.write(file, moonSentence, 0o644)
	if strings.HasPrefix(file, "repo/") {
		p.git("add", "-A")
		p.git("commit", "-q", "-m", "rules")
	}
}

func TestAModelJudgesWhatTheAgentTakesIn(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file, threshold string
		code            int
	}{
		"in the repository":   {"repo/deep/AGENTS.md", "0.6", controller.ExitScan},
		"in a skill":          {"skills/task/SKILL.md", "0.6", controller.ExitScan},
		"in the definition":   {"agents/tester.md", "0.6", controller.ExitScan},
		"in a host file":      {"rules.md", "0.6", controller.ExitScan},
		"below the threshold": {"repo/AGENTS.md", "0.61", 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(
				t,
				"true",
				"security: {host_scanners: {llm_guard: {enabled: true, threshold: "+tt.threshold+"}}}\nhost_files: [{src: rules.md, dest: /sandbox/workspace/AGENTS.md}]",
			)
			p.write("rules.md", "Be good.\n", 0o644)
			p.withScorer(moonScorer, tt.file)
			r, code := p.run("--scanner", "./scorer")
			if code != tt.code {
				t.Fatalf("exit %d: %+v", code, r.Error)
			}
			if blocked := code != 0; blocked != (len(r.Findings) == 1 && r.Findings[0].Rule == scan.RuleModel &&
				r.Findings[0].Severity == scan.Critical) ||
				blocked != (r.Status == controller.StatusBlocked) {
				t.Errorf("%s %+v", r.Status, r.Findings)
			}
			if starts := p.read("starts"); starts != "started\n" {
				t.Errorf("started %q", starts)
			}
		})
	}
}

func TestAModelThatFailsBlocksARun(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ script, want string }{
		"crashes":            {"#!/bin/sh\nread -r line; echo out of memory >&2; exit 9\n", "exit status 9: out of memory"},
		"answers garbage":    {"#!/bin/sh\nread -r line; echo yes; cat >/dev/null\n", "has no score from 0 to 1"},
		"is no program":      {"garbage", "exec format error"},
		"answers more lines": {"#!/bin/sh\nread -r line; yes '{\"score\": 0}'\n", "more than it was asked"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(
				t,
				"true",
				"pre_script: pre.sh\nsecurity: {fail_mode: open, host_scanners: {llm_guard: {enabled: true, match_type: full}}}",
			)
			p.write("pre.sh", "#!/bin/sh\n: > ../pre-ran\n", 0o755)
			p.withScorer(tt.script, "repo/AGENTS.md")
			r, code := p.run("--scanner", p.path("scorer"))
			if code != controller.ExitScan || r.Status != controller.StatusBlocked || r.Error == nil || r.Error.Step != "scan_context" ||
				!strings.Contains(r.Error.Message, tt.want) {
				t.Errorf("exit %d, %s: %+v", code, r.Status, r.Error)
			}
			for _, left := range []string{"out", "pre-ran"} {
				if _, err := os.Stat(p.path(left)); err == nil {
					t.Errorf("%s was made", left)
				}
			}
		})
	}
}

func TestAModelNeedsAProgram(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		guard, scanner string
		code           int
		want           string
	}{
		"none":            {"enabled: true", "", controller.ExitConfiguration, "harness.yaml:8:49: security.host_scanners.llm_guard needs a program"},
		"none, in part":   {"match_type: full", "", controller.ExitConfiguration, "llm_guard needs a program"},
		"that is missing": {"enabled: true", "nowhere", controller.ExitConfiguration, "no such file"},
		"not executable":  {"enabled: true", "policy.yaml", controller.ExitConfiguration, "not an executable file"},
		"switched off":    {"enabled: false, threshold: 0.5", "nowhere", 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, "true", "security: {host_scanners: {llm_guard: {"+tt.guard+"}}}")
			r, code := p.run("--scanner", tt.scanner)
			if code != tt.code || (r.Error != nil) != (tt.want != "") || r.Error != nil && !strings.Contains(r.Error.Message, tt.want) {
				t.Errorf("exit %d: %+v", code, r.Error)
			}
			if _, err := os.Stat(p.path("out")); (err == nil) != (tt.code == 0) {
				t.Errorf("results: %v", err)
			}
		})
	}
}

func TestACriticalFindingAsksForAReview(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		security, label string
		code            int
	}{
		"with a label":      {"escalation: {on_critical: review, review_label: look}", "look", controller.ExitScan},
		"without one":       {"escalation: {on_critical: review}", "needs-review", controller.ExitScan},
		"and goes on":       {"fail_mode: open, escalation: {on_critical: review}", "needs-review", 0},
		"or just halts":     {"escalation: {on_critical: halt}", "", controller.ExitScan},
		"but not both":      {"fail_mode: open, escalation: {on_critical: halt}", "", controller.ExitConfiguration},
		"label of no avail": {"escalation: {on_critical: halt, review_label: look}", "", controller.ExitConfiguration},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, "true", "security: {"+tt.security+"}")
			p.write("skills/task/SKILL.md", injected, 0o644)
			r, code := p.run()
			label := ""
			if r.Review != nil {
				label = r.Review.Label
			}
			if code != tt.code || label != tt.label {
				t.Errorf("exit %d, label %q: %+v", code, label, r.Error)
			}
			shown, _ := p.command("runs", "show", r.RunID).CombinedOutput()
			report, _ := p.command("runs", "report", r.RunID, "--output", "markdown").CombinedOutput()
			html, _ := p.command("runs", "report", r.RunID, "--output", "html").CombinedOutput()
			for _, page := range []string{string(shown), string(report), string(html)} {
				if strings.Contains(page, "review this run: ") != (tt.label != "") || !strings.Contains(page, tt.label) {
					t.Errorf("label %q is not told: %s", tt.label, page)
				}
			}
		})
	}
}

func TestAScanOfPathsAsksAModel(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "")
	p.withScorer(moonScorer, "repo/AGENTS.md")
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--scanner-threshold", "0.6"}, controller.ExitScan, "repo/AGENTS.md:1:1 model critical the model gives it 0.60"},
		{nil, 0, "2 files, 0 findings"},
		{[]string{"--scanner-match", "word"}, controller.ExitConfiguration, "sentence or full"},
		{[]string{"--scanner-threshold", "NaN"}, controller.ExitConfiguration, "0 to 1"},
		{[]string{"--scanner", "a.txt"}, controller.ExitConfiguration, "no such file"},
		{[]string{"--scanner", "/bin/false"}, controller.ExitSandbox, "exit status 1"},
	} {
		cmd := p.command(append([]string{"scan", "context", "repo", "--scanner", "scorer"}, tt.args...)...)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != tt.code || !strings.Contains(string(out), tt.want) {
			t.Errorf("%v: %v, %s", tt.args, cmd.ProcessState, out)
		}
	}
}
