package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// results are the tests of one run and how they ended: ok, failed, skipped, or a
// word of the suite. A group has a line of its own under its name alone: complete,
// timeout, missing (it never began) or "ended early".
type results map[string]string

const complete = "complete"

// output is what one group left.
type output struct {
	stdout, stderr []byte
	tests          []byte
	status         string
}

// parseDir reads the output of each group in dir.
func parseDir(suite, dir string, groups []string) (results, error) {
	parse, known := map[string]func(string, output, results) bool{
		"go": parseGo, "cpython": parseCPython, "git": parseTAP, "stress_ng": parseStress,
		"postgres": parseSteps, "redis": parseSteps, "nginx": parseSteps, "chromium": parseSteps,
		"bash": parseSteps, "jobs": parseSteps,
	}[suite]
	if !known {
		return nil, fmt.Errorf("no suite %s", suite)
	}
	all := results{}
	for _, group := range groups {
		out, err := readOutput(dir, group)
		if err != nil {
			return nil, err
		}
		all[group] = ending(out, parse(group, out, all))
	}
	return all, nil
}

func readOutput(dir, group string) (output, error) {
	var out output
	base := filepath.Join(dir, strings.ReplaceAll(group, "/", "_"))
	var status []byte
	for suffix, to := range map[string]*[]byte{".out": &out.stdout, ".err": &out.stderr, ".tests": &out.tests, ".status": &status} {
		data, err := os.ReadFile(base + suffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return out, fmt.Errorf("read output of %s: %w", group, err)
		}
		*to = data
	}
	out.status = strings.TrimSpace(string(status))
	return out, nil
}

// ending says how a group ended; timeout(1) exits with 124, or 137 when it had to kill.
func ending(out output, whole bool) string {
	switch {
	case out.status == "":
		return "missing"
	case out.status == "124" || out.status == "137":
		return "timeout"
	case whole:
		return complete
	}
	return "ended early"
}

var goResult = regexp.MustCompile(`^\x16?--- (PASS|FAIL|SKIP): (\S+) \(`)

// parseGo reads the output of a test binary with -test.v=test2json, where the results
// of tests and of their parts begin a line.
func parseGo(group string, out output, all results) bool {
	whole := false
	for line := range lines(out.stdout) {
		if m := goResult.FindStringSubmatch(line); m != nil {
			all[group+":"+m[2]] = map[string]string{"PASS": "ok", "FAIL": "failed", "SKIP": "skipped"}[m[1]]
		}
		if text := strings.TrimPrefix(line, "\x16"); text == "PASS" || text == "FAIL" {
			whole = true
		}
		if strings.HasPrefix(line, "panic: test timed out") {
			return false
		}
	}
	return whole
}

// parseCPython reads the lines of cpython.py. The last one shows that it is complete.
func parseCPython(group string, out output, all results) bool {
	whole := false
	for line := range lines(out.tests) {
		if name, result, ok := strings.Cut(line, "\t"); ok {
			all[group+":"+shortName(name, group)] = result
		}
		whole = line == "end"
	}
	return whole
}

// shortName leaves the class and the method.
func shortName(name, group string) string {
	for _, prefix := range []string{"test.", group + "."} {
		name = strings.TrimPrefix(name, prefix)
	}
	return name
}

var tapResult = regexp.MustCompile(`^(ok|not ok) (\d+)(.*)$`)

// parseTAP reads the output of a script of git: a plan "1..N" at its end shows that it is complete.
func parseTAP(group string, out output, all results) bool {
	whole := false
	for line := range lines(out.stdout) {
		if strings.HasPrefix(line, "1..") {
			whole = true
		}
		m := tapResult.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		result := "ok"
		switch {
		case strings.Contains(m[3], "# skip"):
			result = "skipped"
		case strings.Contains(strings.ToLower(m[3]), "# todo known breakage"): // directives of TAP have no case
			result = "known breakage"
		case m[1] != "ok":
			result = "failed"
		}
		all[group+":"+m[2]] = result
	}
	return whole
}

// parseStress reads the exit status of stress-ng(1).
func parseStress(group string, out output, all results) bool {
	words := map[string]string{
		"0": "ok",
		"2": "failed",
		"3": "no resources",
		"4": "skipped",
		"5": "ended by signal",
		"6": "ended early",
		"7": "ok",
	}
	word, known := words[out.status]
	if !known {
		word = "exit " + out.status
	}
	if word == "ok" && bytes.Contains(append(out.stdout, out.stderr...), []byte("skipped: 1")) {
		word = "skipped"
	}
	all[group+":run"] = word
	return true
}

// parseSteps reads the lines of inside.sh.
func parseSteps(group string, out output, all results) bool {
	whole := false
	for line := range lines(out.stdout) {
		if words := strings.Fields(line); len(words) == 3 && words[0] == "step" {
			all[group+":"+words[1]] = words[2]
			whole = true
		}
	}
	return whole
}

func lines(data []byte) func(func(string) bool) {
	return func(yield func(string) bool) {
		scanner := bufio.NewScanner(bytes.NewReader(data))
		scanner.Buffer(nil, 16<<20)
		for scanner.Scan() {
			if !yield(scanner.Text()) {
				return
			}
		}
	}
}

func writeResults(w io.Writer, r results) error {
	for _, name := range sorted(r) {
		if _, err := fmt.Fprintf(w, "%s\t%s\n", name, r[name]); err != nil {
			return err
		}
	}
	return nil
}

func sorted(r results) []string {
	names := make([]string, 0, len(r))
	for name := range r {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
