package agentsh

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	maxDecisions     = 45
	maxDecisionLines = 90
	decisionDir      = "doc/decisions"
)

// decisionSections are the sections of every decision, in their order.
var decisionSections = []string{
	"## Status", "## Context", "## Decision", "## Refused alternatives", "## Consequences", "## Checked by",
}

// decisionFiles returns the file name of each decision by its number.
func decisionFiles(t *testing.T) map[string]string {
	t.Helper()
	names, err := filepath.Glob(path.Join(decisionDir, "[0-9]*.md"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range names {
		base := path.Base(name)
		if files[base[:4]] != "" {
			t.Errorf("%s and %s have the same number", base, files[base[:4]])
		}
		files[base[:4]] = base
	}
	return files
}

func TestDecisionsHaveOneForm(t *testing.T) {
	files := decisionFiles(t)
	if len(files) == 0 || len(files) > maxDecisions {
		t.Errorf("%d decisions, at most %d: merge a superseded one into its successor", len(files), maxDecisions)
	}
	index, err := os.ReadFile(path.Join(decisionDir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for number, file := range files {
		data, err := os.ReadFile(path.Join(decisionDir, file))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		title, ok := strings.CutPrefix(lines[0], "# "+number+": ")
		if !ok {
			t.Errorf("%s: the first line is not \"# %s: title\"", file, number)
		}
		if len(lines) > maxDecisionLines {
			t.Errorf("%s has %d lines, at most %d", file, len(lines), maxDecisionLines)
		}
		checkSections(t, file, lines)
		checkPackages(t, file, string(data))
		if entry := "[" + number + "](" + file + "): " + title; !strings.Contains(string(index), entry+"\n") {
			t.Errorf("%s/README.md does not have the line %q", decisionDir, "- "+entry)
		}
	}
}

func checkSections(t *testing.T, file string, lines []string) {
	t.Helper()
	var sections []string
	for n, line := range lines {
		if strings.HasPrefix(line, "## ") {
			sections = append(sections, line)
		}
		if utf8.RuneCountInString(line) > maxColumns {
			t.Errorf("%s:%d: more than %d columns", file, n+1, maxColumns)
		}
	}
	if strings.Join(sections, "\n") != strings.Join(decisionSections, "\n") {
		t.Errorf("%s has the sections %q, not %q", file, sections, decisionSections)
	}
}

// packageName is the directory of a package in a text.
var packageName = regexp.MustCompile("`((?:policy|internal|supervisor|fuse|controller|cmd|seccomp|packaging|test)(?:/[a-z]+)*)`")

func checkPackages(t *testing.T, file, text string) {
	t.Helper()
	_, status, _ := strings.Cut(text, "## Status\n")
	status, _, _ = strings.Cut(status, "\n## ")
	for _, match := range packageName.FindAllStringSubmatch(status, -1) {
		if _, err := os.Stat(match[1]); err != nil {
			t.Errorf("%s names a package that is not there: %v", file, err)
		}
	}
}

// citedDecisions are the numbers of decisions in a text, citedFile is a link to one.
var (
	citedDecisions = regexp.MustCompile(`\b[Dd]ecisions? 0\d{3}(?:(?:,| and) 0\d{3})*`)
	citedFile      = regexp.MustCompile(`(?:decisions/|\]\()(0\d{3}-[a-z0-9-]*\.md)`)
	decisionNumber = regexp.MustCompile(`0\d{3}`)
)

func TestEveryCitedDecisionExists(t *testing.T) {
	files := decisionFiles(t)
	out, err := exec.Command("grep", "-rInE", "--exclude-dir=.?*", "--exclude-dir=out", "--exclude-dir=bin",
		`[Dd]ecisions?[ /]0[0-9]{3}|]\(0[0-9]{3}-`, ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		place, text, _ := strings.Cut(line, ":")
		for _, cited := range citedDecisions.FindAllString(text, -1) {
			for _, number := range decisionNumber.FindAllString(cited, -1) {
				if files[number] == "" {
					t.Errorf("%s cites decision %s, which is not there: %s", place, number, strings.TrimSpace(text))
				}
			}
		}
		for _, cited := range citedFile.FindAllStringSubmatch(text, -1) {
			if files[cited[1][:4]] != cited[1] {
				t.Errorf("%s cites %s, which is not there", place, cited[1])
			}
		}
	}
}

// testName is the name of a test, benchmark, fuzz target or example in a text.
var testName = regexp.MustCompile(`\b(Test|Fuzz|Benchmark|Example)[A-Z][A-Za-z0-9_]*\b`)

func TestEveryTestThatADocumentCitesExists(t *testing.T) {
	out, err := exec.Command("grep", "-rhoE", "--include=*_test.go", `^func (Test|Fuzz|Benchmark|Example)[A-Za-z0-9_]+`, ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		known[strings.TrimPrefix(strings.TrimSpace(line), "func ")] = true
	}
	err = filepath.WalkDir(".", func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && name != "." && skipDir(name, d.Name()) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(name, ".md") || name == "CHANGELOG.md" {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		for n, line := range strings.Split(string(data), "\n") {
			for _, cited := range testName.FindAllString(line, -1) {
				if !known[cited] {
					t.Errorf("%s:%d cites %s, which is not there", name, n+1, cited)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testCommand is a go test of a script: its pattern and its package.
var testCommand = regexp.MustCompile(`-run '?([A-Z]\w+)'? (\./\S+)|go_bench (\./\S+) '?([^\s']+)`)

func TestEveryTestThatAScriptRunsExists(t *testing.T) {
	scripts, err := filepath.Glob("*/*.sh")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range append(scripts, "Makefile", ".ci/run") {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range testCommand.FindAllStringSubmatch(string(data), -1) {
			found++
			pattern, dir := "^func (Test|Fuzz|Example)?"+m[1], m[2]
			if dir == "" {
				pattern, dir = "^func Benchmark.*("+m[4]+")", m[3]
			}
			if exec.Command("sh", "-c", `cat "$0"/*_test.go | grep -qE "$1"`, dir, pattern).Run() != nil {
				t.Errorf("%s runs %q in %s, which has no such test", name, m[0], dir)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d commands were found: the expression no longer matches", found)
	}
}
