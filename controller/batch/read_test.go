package batch

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/controller/harness"
)

// read reads a batch file of a directory dir.
func read(t *testing.T, text string) *Spec {
	t.Helper()
	s, ps := Read("dir/fix.yaml", []byte(text))
	if s == nil || ps.HasErrors() {
		t.Fatal(ps)
	}
	return s
}

func TestAListAndAMatrixBecomeRuns(t *testing.T) {
	s := read(t, `
vars: {ALL: x, ISSUE: "0"}
labels: {team: tools}
runs:
  - {name: first, harness: fix.yaml, repo: ../a, vars: {ISSUE: 1}, labels: {kind: fix}}
  - {harness: /abs/h.yaml, repo: b}
matrix:
  harness: [fix.yaml, look/harness.yaml]
  repo: a
  vars: {LANG_NAME: [go, c], DEEP: "true"}
  labels: {kind: look}
  exclude:
    - {harness: look/harness.yaml, vars: {LANG_NAME: c}}
`)
	var got []string
	for _, i := range s.Items {
		got = append(got, fmt.Sprint(i.Name, " ", i.Harness, " ", i.Repo, " ", i.Vars, " ", i.Labels))
	}
	want := []string{
		"first dir/fix.yaml a map[ALL:x ISSUE:1] map[kind:fix team:tools]",
		"h-b /abs/h.yaml dir/b map[ALL:x ISSUE:0] map[team:tools]",
		"fix-a-true-go dir/fix.yaml dir/a map[ALL:x DEEP:true ISSUE:0 LANG_NAME:go] map[kind:look team:tools]",
		"fix-a-true-c dir/fix.yaml dir/a map[ALL:x DEEP:true ISSUE:0 LANG_NAME:c] map[kind:look team:tools]",
		"look-a-true-go dir/look/harness.yaml dir/a map[ALL:x DEEP:true ISSUE:0 LANG_NAME:go] map[kind:look team:tools]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if s.Name != "fix" || s.Out != "out/fix" || s.Caps.Runs != DefaultAtOnce || s.Retries.Attempts != DefaultAttempts {
		t.Errorf("%+v", s)
	}
}

func TestRunsWithoutNamesAreToldApart(t *testing.T) {
	s := read(t, "runs: [{harness: h.yaml, repo: r}, {name: h-2, harness: h.yaml, repo: r}, {harness: h.yaml, repo: r}, {harness: h.yaml, repo: r}]")
	var names []string
	for _, i := range s.Items {
		names = append(names, i.Name)
	}
	if want := []string{"h", "h-2", "h-3", "h-4"}; !slices.Equal(names, want) {
		t.Errorf("%v, want %v", names, want)
	}
	long := strings.Repeat("é/", 300)
	s = read(t, `runs: [{harness: h.yaml, repo: r, vars: {A: "`+long+`"}}, {harness: h.yaml, repo: r, vars: {A: "../.."}}]`)
	for _, i := range s.Items {
		if !nameRE().MatchString(i.Name) {
			t.Errorf("%q is no name of a directory", i.Name)
		}
	}
}

func TestMistakesOfABatchHaveTheirPlaces(t *testing.T) {
	const one = "runs: [{harness: h.yaml, repo: r}]\n"
	for text, want := range map[string]string{
		"":                                             "fix.yaml:1:1: error: the file is empty",
		"name: x":                                      "fix.yaml:1:1: error: the batch has no runs",
		"runs: []":                                     "fix.yaml:1:7: error: the list of runs is empty",
		"runs: {a: b}":                                 "fix.yaml:1:7: error: must be a list",
		"runs: [{repo: r}]":                            "fix.yaml:1:8: error: a run has no harness",
		"run: []\n" + one:                              `fix.yaml:1:1: error: a batch has no key "run"`,
		one + "caps: {runs: 0}":                        "fix.yaml:2:14: error: 0 is out of range, 1 to 1000",
		one + "caps: {backends: {dokcer: 1}}":          `fix.yaml:2:19: error: caps.backends has no key "dokcer"`,
		one + "caps: {models: {'a b': 1}}":             `fix.yaml:2:17: error: "a b" is no name of models`,
		one + "deadline: 5":                            `fix.yaml:2:11: error: "5" is not a length of time above zero`,
		one + "retries: {delay: -1s}":                  `fix.yaml:2:18: error: "-1s" is not a length of time above zero`,
		one + "budget: {usd: .nan}":                    "fix.yaml:2:15: error: .nan is out of range",
		one + "budget: {tokens: 1.5}":                  "fix.yaml:2:18: error: must be a whole number",
		one + "labels: {run: x}":                       "fix.yaml:2:10: error: every run has the label run",
		one + "vars: {BASH_ENV: x}":                    "fix.yaml:2:8: error: the variable BASH_ENV is reserved",
		one + "vars: {1X: x}":                          `fix.yaml:2:8: error: "1X" is no name of a variable`,
		one + "version: 2":                             "fix.yaml:2:10: error: 2 is out of range, 1 to 1",
		one + "---\n" + one:                            "error: a second document",
		"agent: a.md\nrole: r\n":                       "fix.yaml:1:1: error: this is a harness, not a batch",
		"matrix: {harness: [], repo: r}":               "fix.yaml:1:19: error: the list is empty",
		"matrix: {harness: h, repo: r, exclude: [{}]}": "fix.yaml:1:41: error: the exclusion names nothing",
		"matrix: {harness: h, repo: r, exclude: [{repo: q}]}":                                "fix.yaml:1:41: error: the matrix has no such run",
		"matrix: {harness: h, repo: r, exclude: [{repo: r}]}":                                "fix.yaml:1:9: error: exclude leaves no run",
		"matrix: {harness: h, repo: r, vars: {A: [" + strings.Repeat("x, ", 10_001) + "x]}}": "error: the matrix has more than 10000 runs",
		"runs: [{name: a, harness: h, repo: r}, {name: a, harness: h, repo: r}]":             "fix.yaml:1:40: error: two runs have the name a, the first in line 1",
		"runs: [{name: ../a, harness: h, repo: r}]":                                          `fix.yaml:1:15: error: "../a" is no name of a run`,
		"runs: [{name: ..., harness: h, repo: r}]":                                           `fix.yaml:1:15: error: "..." is no name of a run`,
	} {
		s, ps := Read("fix.yaml", []byte(text))
		if s != nil || !strings.Contains(ps.Error(), want) {
			t.Errorf("%.80q:\n%v\nwant %s", text, ps, want)
		}
	}
}

// A file of 4 MB can ask for more runs, and more texts in them, than a machine has memory for. It is refused before
// they are made.
func TestFilesThatGrowAreRefusedEarly(t *testing.T) {
	list := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, format, i)
		}
		return b.String()
	}
	const texts, matrix = "the paths, variables and labels of all runs have more than 16 MB", "matrix: {harness: h, repo: ["
	for text, want := range map[string]string{
		"matrix: {harness: [" + list(50_000, "h%d, ") + "], repo: [" + list(50_000, "r%d, ") + "]}": "the matrix has more than 10000 runs",
		"matrix: {harness: [" + list(10_001, "h%d, ") + "], repo: r}":                               "the matrix has more than 10000 runs",
		"runs: [" + list(10_001, "{harness: h, repo: r%d}, ") + "]":                                 "the batch has 10001 runs, at most 10000",
		"vars: {" + list(20_000, "V%d: x, ") + "}\n" + matrix + list(5000, "r%d, ") + "]}":          texts,
		"labels: {" + list(20_000, "V%d: x, ") + "}\n" + matrix + list(5000, "r%d, ") + "]}":        texts,
		"vars: {V: " + strings.Repeat("x", 60_000) + "}\n" + matrix + list(5000, "r%d, ") + "]}":    texts,
		matrix + list(200, "r%d, ") + "], labels: {" + list(5000, "V%d: x, ") + "}}":                texts,
		matrix + list(5000, "r%d, ") + "], exclude: [" + list(5000, "{repo: r%d}, ") + "]}":         "5000 exclusions, at most 1000",
	} {
		began := cpuTime(t)
		s, ps := Read("fix.yaml", []byte(text))
		if s != nil || !strings.Contains(ps.Error(), want) {
			t.Errorf("%.60q: %.300v\nwant %s", text, ps, want)
		}
		if took := cpuTime(t) - began; took > 10*time.Second {
			t.Errorf("%.60q took %s", text, took)
		}
	}
}

// cpuTime is the processor time of this process.
func cpuTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestHarnessesAndRepositoriesAreCheckedOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "r"), 0o755); err != nil {
		t.Fatal(err)
	}
	s, ps := Read(filepath.Join(dir, "b.yaml"), []byte(`caps: {backends: {docker: 2, local: 1}, models: {openai: 1, anthropic: 2}}
runs: [{harness: a.yaml, repo: r}, {harness: b.yaml, repo: nowhere}, {harness: a.yaml, repo: nowhere}]`))
	if s == nil {
		t.Fatal(ps)
	}
	asked := map[string]int{}
	ps = s.Check(func(file string) (Described, harness.Problems) {
		asked[filepath.Base(file)]++
		return Described{Backend: "local", Provider: "anthropic"}, nil
	})
	if !reflect.DeepEqual(asked, map[string]int{"a.yaml": 1, "b.yaml": 1}) {
		t.Errorf("asked %v", asked)
	}
	text := ps.Error()
	if len(ps) != 3 || !strings.Contains(text, "b.yaml:2:60: error: repo: ") ||
		!strings.Contains(text, "b.yaml:1:19: warning: caps.backends: no run has docker") ||
		!strings.Contains(text, "b.yaml:1:50: warning: caps.models: no run has openai") {
		t.Error(text)
	}
	if i := s.Items[2]; i.Backend != "local" || i.Provider != "anthropic" {
		t.Errorf("%+v", i)
	}
}

// The schema has a key for each that the reader knows, and no other.
func TestTheSchemaHasTheKeysOfTheReader(t *testing.T) {
	data, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	var s struct {
		Properties map[string]struct {
			Description string
		}
	}
	if err := json.Unmarshal(data, &s); err != nil {
		t.Fatal(err)
	}
	for _, k := range fileKeys {
		if s.Properties[k.name].Description != k.doc || !strings.HasSuffix(k.doc, ".") {
			t.Errorf("%s: %+v", k.name, s.Properties[k.name])
		}
	}
	if len(s.Properties) != len(fileKeys) {
		t.Errorf("%d properties of %d keys", len(s.Properties), len(fileKeys))
	}
}

func FuzzABatchFileIsReadOrRefused(f *testing.F) {
	f.Add("runs: [{harness: h.yaml, repo: r}]")
	f.Add("matrix: {harness: [a, b], repo: r, vars: {A: [1, 2]}, exclude: [{vars: {A: 1}}]}\nbudget: {usd: 1e3}\n")
	f.Add("runs: &a [{harness: h, repo: r, vars: {<<: *a}}]")
	f.Fuzz(func(t *testing.T, text string) {
		s, ps := Read("b.yaml", []byte(text))
		if (s == nil) != ps.HasErrors() {
			t.Fatalf("%v, %v", s, ps)
		}
		if s == nil {
			return
		}
		seen := map[string]bool{}
		for _, i := range s.Items {
			if !nameRE().MatchString(i.Name) || seen[i.Name] || i.Harness == "" || i.Repo == "" {
				t.Fatalf("%+v", i)
			}
			seen[i.Name] = true
		}
	})
}
