package syntax

import (
	"errors"
	"strings"

	"agentsh/policy"
	"agentsh/policy/glob"
)

// wordPattern parses one element of args.
func (r *reader) wordPattern(l located) (policy.ArgPattern, error) {
	if l.text == "**" {
		return policy.ArgPattern{Any: true, Text: l.text}, nil
	}
	w := policy.ArgPattern{Text: l.text}
	for i, part := range splitBar(l.text) {
		option := len(part) > 1 && part[0] == '-'
		switch {
		case part == "--":
			return w, errors.New("-- only ends the options: leave it out")
		case i > 0 && option != w.Option:
			return w, errors.New("options and operands do not mix in one word")
		}
		w.Option = option
		if name, values, ok := strings.Cut(part, "=!"); ok && option {
			e, err := r.valuesExcept(name, values)
			if err != nil {
				return w, err
			}
			w.Except = append(w.Except, e)
			continue
		}
		g, err := r.textGlob(part)
		if err != nil {
			return w, err
		}
		w.Globs = append(w.Globs, g)
	}
	return w, nil
}

func (r *reader) valuesExcept(name, values string) (policy.OtherValues, error) {
	n, err := r.textGlob(name)
	if err != nil {
		return policy.OtherValues{}, err
	}
	v, err := r.textGlob(values)
	return policy.OtherValues{Name: n, Values: v}, err
}

func (r *reader) textGlob(source string) (*glob.Glob, error) {
	text, err := expand(source, r.vars, glob.Quote)
	if err != nil {
		return nil, err
	}
	return glob.Compile(glob.Text, text)
}

// splitBar splits at bars that are outside brackets and not escaped.
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
