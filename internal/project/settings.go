package project

import (
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Setting is a variable by which tools find their registries. A session does not have the
// variables and the settings files of its user.
type Setting struct {
	Name    string // of the variable
	file    string // of the home, that has it too; empty: none
	pattern string // of the value in that file
}

// Set is a setting as it is for the user.
type Set struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"` // the variable, or the file of the home
}

// maxSetting bounds the value of a setting, in bytes.
const maxSetting = 1024

// Settings returns what the user has set for a stack, with the registries in it. In passed
// is what no policy can have: a value with a password, or an address that makes no rule. A
// setting that names the usual hosts of the stack is left out. So is one of a file of the
// home, where the project has a file of that name, as tools prefer that.
func (s *Stack) Settings(root *os.Root) (sets []Set, found []Registry, passed []Set) {
	for _, v := range s.settings {
		set, ok := v.read(root)
		if !ok {
			continue
		}
		registries, good := addresses(set)
		switch {
		case !good:
			passed = append(passed, set)
		case len(registries) > 0 && !slices.ContainsFunc(registries, func(r Registry) bool { return !slices.Contains(s.Hosts, r.Host) }):
		default:
			sets, found = append(sets, set), append(found, registries...)
		}
	}
	return sets, found, passed
}

// read returns the value for the user.
func (v Setting) read(root *os.Root) (Set, bool) {
	if value := os.Getenv(v.Name); value != "" {
		return Set{v.Name, value, v.Name}, true
	}
	home := Home()
	if v.file == "" || home == "" {
		return Set{}, false
	}
	if _, err := root.Lstat(path.Base(v.file)); err == nil {
		return Set{}, false
	}
	dir, err := os.OpenRoot(home)
	if err != nil {
		return Set{}, false
	}
	defer func() { _ = dir.Close() }() // it is only read in
	data, err := readBelow(dir, v.file)
	if err != nil {
		return Set{}, false
	}
	m := regexp.MustCompile(v.pattern).FindSubmatch(data)
	if m == nil {
		return Set{}, false
	}
	return Set{v.Name, string(m[1]), filepath.Join("~", v.file)}, true
}

// addresses returns the registries in a value. It is not good for a policy if it has a
// password, or an address that makes no rule.
func addresses(set Set) (out []Registry, good bool) {
	if len(set.Value) > maxSetting || strings.ContainsFunc(set.Value, unicode.IsControl) {
		return nil, false
	}
	for _, word := range strings.FieldsFunc(set.Value, func(c rune) bool { return c == ',' || c == '|' || c == ' ' }) {
		if !strings.Contains(word, "//") {
			continue // a word such as direct, or a pattern of names
		}
		u, err := url.Parse(word)
		r, ok := registry(word, set.From)
		if err != nil || u.User != nil || !ok {
			return nil, false
		}
		out = append(out, r)
	}
	return out, true
}
