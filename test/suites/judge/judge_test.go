package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func lineOf(fields ...string) string { return strings.Join(fields, "\t") + "\n" }

func TestCompareReportsEntriesMissingFromTheTable(t *testing.T) {
	native := results{"os": complete, "os:A": "ok", "os:B": "ok", "os:C": "skipped"}
	for name, c := range map[string]struct {
		table    string
		session  results
		problems int
		says     string
	}{
		"alike, and no entry": {"", results{"os": complete, "os:A": "ok", "os:B": "ok", "os:C": "skipped"}, 0, "0 problems"},
		"a new difference": {"", results{"os": complete, "os:A": "failed", "os:B": "ok", "os:C": "skipped"}, 1,
			"NEW\tgo\tos:A\tdefault\troot\tok\tfailed"},
		"a difference of the table": {
			lineOf("go", "os:A", "default", "*", "ok", "failed", "why"),
			results{"os": complete, "os:A": "failed", "os:B": "ok", "os:C": "skipped"}, 0, "1 differ as the table says",
		},
		"an entry that ended in another way": {
			lineOf("go", "os:A", "default", "*", "ok", "failed", "why"),
			results{"os": complete, "os:A": "skipped", "os:B": "ok", "os:C": "skipped"}, 2, "ALIKE\tline 1",
		},
		"an entry that no longer differs": {
			lineOf("go", "os:*", "*", "root,user", "ok", "failed", "why"),
			results{"os": complete, "os:A": "ok", "os:B": "ok", "os:C": "skipped"}, 1, "ALIKE\tline 1",
		},
		"an entry that may end alike": {
			lineOf("go", "os:A", "default", "root", "ok", "ok|failed", "the time it takes"),
			results{"os": complete, "os:A": "ok", "os:B": "ok", "os:C": "skipped"}, 0, "0 problems",
		},
		"an entry of another policy": {
			lineOf("go", "os:A", "agent-sandbox", "*", "ok", "failed", "why"),
			results{"os": complete, "os:A": "failed", "os:B": "ok", "os:C": "skipped"}, 1, "NEW",
		},
		"an entry of a group that did not run": {
			lineOf("go", "net:A", "default", "*", "ok", "failed", "why"),
			results{"os": complete, "os:A": "ok", "os:B": "ok", "os:C": "skipped"}, 0, "0 problems",
		},
		"a test that did not run":      {"", results{"os": complete, "os:A": "ok", "os:C": "skipped"}, 1, "os:B\tdefault\troot\tok\tnone"},
		"a group that was not whole":   {"", results{"os": "timeout", "os:A": "ok"}, 1, "NEW\tgo\tos\tdefault\troot\tcomplete\ttimeout"},
		"a session that never started": {"", results{"os": "missing"}, 1, "complete\tmissing"},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := readTable(c.table)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if got := compare(&out, table, where{"go", "default", "root"}, native, c.session); got != c.problems {
				t.Errorf("%d problems, want %d", got, c.problems)
			}
			if !strings.Contains(out.String(), c.says) {
				t.Errorf("got %q, which lacks %q", out.String(), c.says)
			}
		})
	}
}

func TestATableWithoutReasonIsRejected(t *testing.T) {
	for _, line := range []string{"go\tos:A\tdefault\troot\tok\tfailed\t\n", "go\tos:A\tdefault\troot\tok\tfailed\n"} {
		if _, err := readTable(line); err == nil || !strings.Contains(err.Error(), "line 1") {
			t.Errorf("%q: %v", line, err)
		}
	}
}

func TestTheTableCanBeRead(t *testing.T) {
	data, err := os.ReadFile("../differences.tsv")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := readTable(string(data)); err != nil {
		t.Fatal(err)
	}
}

func TestAStarStandsForAnyText(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"os:A", "os:A", true}, {"os:A", "os:AB", false}, {"os:*", "os:AB", true}, {"*", "", true},
		{"t*:1*", "t0001:12", true}, {"t*:1*", "t0001:2", false}, {"*.A", "os:x.A", true}, {"a*a", "a", false},
	} {
		if got := matches(c.pattern, c.name); got != c.want {
			t.Errorf("matches(%q, %q) = %v", c.pattern, c.name, got)
		}
	}
}

func TestOutputIsParsed(t *testing.T) {
	for name, c := range map[string]struct {
		suite string
		files map[string]string
		want  map[string]string
	}{
		"a package of Go": {"go", map[string]string{
			"g.out":    "\x16=== RUN   TestA\n\x16--- PASS: TestA (0.00s)\n\x16=== RUN   TestB\n\x16--- FAIL: TestB/part (0.00s)\n\x16--- FAIL: TestB (0.00s)\n\x16--- SKIP: TestC (0.00s)\n\x16FAIL\n",
			"g.status": "1\n",
		}, map[string]string{"g": complete, "g:TestA": "ok", "g:TestB": "failed", "g:TestB/part": "failed", "g:TestC": "skipped"}},
		"a package that ended early": {"go", map[string]string{
			"g.out": "\x16--- PASS: TestA (0.00s)\npanic: test timed out after 1s\n", "g.status": "2",
		}, map[string]string{"g": "ended early", "g:TestA": "ok"}},
		"a group that was ended": {"go", map[string]string{"g.out": "\x16--- PASS: TestA (0.00s)\n", "g.status": "124"},
			map[string]string{"g": "timeout", "g:TestA": "ok"}},
		"a group that never began": {"go", nil, map[string]string{"g": "missing"}},
		"a file of CPython": {"cpython", map[string]string{
			"g.status": "0",
			"g.tests":  "test.g.A.test_x\tok\ntest.g.A.test_y\tfailed\ntest.g.A.test_z\tskipped\nend\n",
		}, map[string]string{"g": complete, "g:A.test_x": "ok", "g:A.test_y": "failed", "g:A.test_z": "skipped"}},
		"a file that ended early": {"cpython", map[string]string{"g.status": "139", "g.tests": "test.g.A.test_x\tok\n"},
			map[string]string{"g": "ended early", "g:A.test_x": "ok"}},
		"a script of git": {"git", map[string]string{
			"g.status": "1",
			"g.out":    "ok 1 - a\nnot ok 2 - b\nok 3 # skip c (missing X)\nnot ok 4 - d # TODO known breakage\n1..4\n",
		}, map[string]string{"g": complete, "g:1": "ok", "g:2": "failed", "g:3": "skipped", "g:4": "known breakage"}},
		"a script that could not start": {"git", map[string]string{"g.status": "1", "g.out": "error: cannot run git\n"},
			map[string]string{"g": "ended early"}},
		"a stressor": {"stress_ng", map[string]string{"g.status": "2"}, map[string]string{"g": complete, "g:run": "failed"}},
		"steps": {"nginx", map[string]string{"g.status": "0", "g.out": "step get ok\nstep quit failed\n"},
			map[string]string{"g": complete, "g:get": "ok", "g:quit": "failed"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := parseDir(c.suite, dir, []string{"g"})
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
			for test, want := range c.want {
				if got[test] != want {
					t.Errorf("%s: %q, want %q", test, got[test], want)
				}
			}
		})
	}
}
