package policy

import (
	"errors"
	"strings"

	"agentsh/policy/glob"
)

// wordPattern is one element of args: alternatives of globs, or ** for any
// words.
type wordPattern struct {
	any    bool
	option bool // begins with a dash: matched against options, anywhere
	globs  []*glob.Glob
}

// wordPattern reads one element of args.
func (r *reader) wordPattern(l located) (wordPattern, error) {
	if l.text == "**" {
		return wordPattern{any: true}, nil
	}
	var w wordPattern
	for i, part := range splitBar(l.text) {
		option := len(part) > 1 && part[0] == '-' && part != "--"
		if i > 0 && option != w.option {
			return w, errors.New("options and operands do not mix in one word")
		}
		w.option = option
		text, err := expand(part, r.vars, glob.Quote)
		if err != nil {
			return w, err
		}
		g, err := glob.Compile(glob.Text, text)
		if err != nil {
			return w, err
		}
		w.globs = append(w.globs, g)
	}
	return w, nil
}

// splitBar splits at bars outside brackets and escapes.
func splitBar(text string) []string {
	var parts []string
	depth, start := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case '|':
			if depth <= 0 {
				parts = append(parts, text[start:i])
				start = i + 1
			}
		}
	}
	return append(parts, text[start:])
}

func (w *wordPattern) matches(word string) bool {
	for _, g := range w.globs {
		if g.Match(word) {
			return true
		}
	}
	return false
}

// matchWords reports whether the arguments (without the program's name) match.
// all asks that every word is covered, as rules that permit must.
func matchWords(pattern []wordPattern, args []string, all bool) bool {
	var operands []string
	var options []string
	ended := false
	for _, a := range args {
		switch {
		case !ended && a == "--":
			ended = true
		case !ended && len(a) > 1 && a[0] == '-':
			options = append(options, a)
		default:
			operands = append(operands, a)
		}
	}
	return matchOptions(pattern, options, all) && matchOperands(pattern, operands, all)
}

func matchOptions(pattern []wordPattern, options []string, all bool) bool {
	covered, open := 0, false
	for i := range pattern {
		w := &pattern[i]
		open = open || w.any
		if !w.option {
			continue
		}
		found := false
		for _, o := range options {
			name, _, _ := strings.Cut(o, "=")
			if w.matches(o) || !all && w.matches(name) {
				found = true
			}
		}
		if !found {
			return false
		}
	}
	if !all || open {
		return true
	}
	for _, o := range options {
		for i := range pattern {
			if pattern[i].option && pattern[i].matches(o) {
				covered++
				break
			}
		}
	}
	return covered == len(options)
}

// matchOperands matches operands in order; ** takes any number of them.
func matchOperands(pattern []wordPattern, operands []string, all bool) bool {
	at, back, from := 0, -1, 0
	next := 0
	for {
		for next < len(pattern) && pattern[next].option {
			next++
		}
		switch {
		case next == len(pattern) && (at == len(operands) || !all):
			return true
		case next < len(pattern) && pattern[next].any:
			back, from = next, at
			next++
			continue
		case next < len(pattern) && at < len(operands) && pattern[next].matches(operands[at]):
			next, at = next+1, at+1
			continue
		}
		if back < 0 || from >= len(operands) {
			return false
		}
		from++
		next, at = back+1, from
	}
}
