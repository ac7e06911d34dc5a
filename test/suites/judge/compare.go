package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// where names one comparison: a suite under a policy, in the session of a user.
type where struct{ suite, policy, user string }

// entry is a line of the table. Its test may hold *, for anything. Its policies and
// users are lists with commas, or * for all. A result may be a list with |, or *.
type entry struct {
	line                              int
	suite, test, policy, user         string
	native, session, reason, original string
}

// difference is a test that ended otherwise in a session.
type difference struct{ test, native, session string }

// readTable reads seven fields in a line, separated by tabs. The reason must be given.
func readTable(data string) ([]entry, error) {
	var table []entry
	for i, line := range strings.Split(data, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 7 || slices.Contains(f, "") {
			return nil, fmt.Errorf("line %d: %d fields; needed are 7: suite, test, policy, user, native, session, reason", i+1, len(f))
		}
		table = append(table, entry{i + 1, f[0], f[1], f[2], f[3], f[4], f[5], f[6], line})
	}
	return table, nil
}

func (e entry) about(w where) bool {
	return e.suite == w.suite && listed(e.policy, w.policy, ",") && listed(e.user, w.user, ",")
}

func (e entry) explains(d difference) bool {
	return matches(e.test, d.test) && listed(e.native, d.native, "|") && listed(e.session, d.session, "|")
}

// varies reports an entry whose test may also end alike.
func (e entry) varies() bool {
	return e.native == "*" || e.session == "*" || strings.Contains(e.native, "|") || strings.Contains(e.session, "|")
}

func listed(list, word, comma string) bool {
	return list == "*" || slices.Contains(strings.Split(list, comma), word)
}

// matches reports whether name is pattern, in which * matches any text.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	if !strings.HasPrefix(name, parts[0]) {
		return false
	}
	name = name[len(parts[0]):]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(name, part)
		if !found {
			return false
		}
		name = after
	}
	return strings.HasSuffix(name, parts[len(parts)-1])
}

// differences are the tests that ended otherwise. Where one side has no result of a
// test, that is a difference of its group alone when the group was not whole there.
func differences(native, session results) []difference {
	names := sorted(native)
	for _, name := range sorted(session) {
		if _, both := native[name]; !both {
			names = append(names, name)
		}
	}
	var found []difference
	for _, name := range names {
		n, inNative := native[name]
		s, inSession := session[name]
		group, _, _ := strings.Cut(name, ":")
		switch {
		case n == s:
		case !inNative && native[group] != complete, !inSession && session[group] != complete:
		default:
			found = append(found, difference{name, orNone(n), orNone(s)})
		}
	}
	return found
}

func orNone(result string) string {
	if result == "" {
		return "none"
	}
	return result
}

// compare prints what the table does not hold and returns how many lines that were.
func compare(out io.Writer, table []entry, w where, native, session results) int {
	problems, explained := 0, 0
	used := map[int]bool{}
	for _, d := range differences(native, session) {
		known := false
		for _, e := range table {
			if e.about(w) && e.explains(d) {
				used[e.line], known = true, true
			}
		}
		if known {
			explained++
			continue
		}
		problems++
		fmt.Fprintf(out, "NEW\t%s\t%s\t%s\t%s\t%s\t%s\n", w.suite, d.test, w.policy, w.user, d.native, d.session)
	}
	for _, e := range table {
		if e.about(w) && !used[e.line] && !e.varies() && ran(e.test, native, session) {
			problems++
			fmt.Fprintf(out, "ALIKE\tline %d (%s/%s): %s\n", e.line, w.policy, w.user, e.original)
		}
	}
	fmt.Fprintf(
		out,
		"%s %s %s: %d tests, %d differ as the table says, %d problems\n",
		w.suite,
		w.policy,
		w.user,
		len(native),
		explained,
		problems,
	)
	return problems
}

// ran reports whether a group that the pattern means was in this run.
func ran(pattern string, native, session results) bool {
	for _, r := range []results{native, session} {
		for name := range r {
			group, _, _ := strings.Cut(name, ":")
			if name == group && (matches(pattern, name) || matches(groupOf(pattern), group)) {
				return true
			}
		}
	}
	return false
}

func groupOf(pattern string) string {
	group, _, _ := strings.Cut(pattern, ":")
	return group
}

func compareFiles(out io.Writer, tableFile string, w where, nativeFile, sessionFile string) (int, error) {
	data, err := os.ReadFile(tableFile)
	if err != nil {
		return 0, err
	}
	table, err := readTable(string(data))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", tableFile, err)
	}
	native, err := readResults(nativeFile)
	if err != nil {
		return 0, err
	}
	session, err := readResults(sessionFile)
	if err != nil {
		return 0, err
	}
	if len(native) == 0 {
		return 0, fmt.Errorf("%s: no results: nothing ran natively", nativeFile)
	}
	return compare(out, table, w, native, session), nil
}

func readResults(file string) (results, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := results{}
	for line := range lines(data) {
		if test, result, ok := strings.Cut(line, "\t"); ok {
			r[test] = result
		}
	}
	return r, nil
}
