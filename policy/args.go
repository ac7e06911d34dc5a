package policy

import (
	"errors"
	"strings"

	"agentsh/policy/glob"
)

// wordPattern is one element of args: alternatives, or ** for any words.
//
// Operands and options are matched apart, since programs take them in any
// order: operand elements in order, option elements anywhere before a --. A
// rule that permits must cover every word, options with their values
// (--output=*), while a rule that refuses ignores words after its last element
// and matches an option with any value and in any abbreviation. Each side
// reads the pattern in the stricter way.
type wordPattern struct {
	any    bool
	option bool
	globs  []*glob.Glob
	except []valuesExcept
	source string
}

// valuesExcept is the alternative NAME=!VALUES of a rule that refuses: an option
// of that name with a value that is none of the values. Where a program has
// subcommands it is an option of the program itself: git -c, not git commit -c.
type valuesExcept struct{ name, values *glob.Glob }

// wordPattern reads one element of args.
func (r *reader) wordPattern(l located) (wordPattern, error) {
	if l.text == "**" {
		return wordPattern{any: true, source: l.text}, nil
	}
	w := wordPattern{source: l.text}
	for i, part := range splitBar(l.text) {
		option := len(part) > 1 && part[0] == '-'
		switch {
		case part == "--":
			return w, errors.New("-- only ends the options: leave it out")
		case i > 0 && option != w.option:
			return w, errors.New("options and operands do not mix in one word")
		}
		w.option = option
		if name, values, ok := strings.Cut(part, "=!"); ok && option {
			e, err := r.valuesExcept(name, values)
			if err != nil {
				return w, err
			}
			w.except = append(w.except, e)
			continue
		}
		g, err := r.textGlob(part)
		if err != nil {
			return w, err
		}
		w.globs = append(w.globs, g)
	}
	return w, nil
}

func (r *reader) valuesExcept(name, values string) (valuesExcept, error) {
	n, err := r.textGlob(name)
	if err != nil {
		return valuesExcept{}, err
	}
	v, err := r.textGlob(values)
	return valuesExcept{n, v}, err
}

func (r *reader) textGlob(source string) (*glob.Glob, error) {
	text, err := expand(source, r.vars, glob.Quote)
	if err != nil {
		return nil, err
	}
	return glob.Compile(glob.Text, text)
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

// matchesOption reports whether an option is one of the alternatives. exact
// asks that its value is covered too.
func (w *wordPattern) matchesOption(o *argWord, g *grammar, exact bool) bool {
	if o.hasValue && (w.withValue(o.name, o.value) || w.withValue(o.long, o.value)) {
		return true
	}
	if o.hasValue && exact {
		return false
	}
	if w.matches(o.name) || o.long != "" && w.matches(o.long) {
		return true
	}
	if exact {
		return false
	}
	for _, e := range w.except {
		named := e.name.Match(o.name) || e.name.Match(o.long) || abbreviated(e.name, o.name, g)
		if named && o.hasValue && !o.inner && !e.values.Match(o.value) {
			return true
		}
	}
	for _, pattern := range w.globs {
		if abbreviated(pattern, o.name, g) {
			return true
		}
	}
	return false
}

// withValue reports whether "name=value" is one of the alternatives.
func (w *wordPattern) withValue(name, value string) bool {
	if name == "" {
		return false
	}
	for _, g := range w.globs {
		if strings.Contains(g.String(), "=") || strings.Contains(g.String(), "*") {
			if g.Match(name + "=" + value) {
				return true
			}
		}
	}
	return false
}

// abbreviated reports whether name may be short for a text of the pattern, as
// getopt_long(3) allows.
func abbreviated(pattern *glob.Glob, name string, g *grammar) bool {
	if len(name) < 3 || !strings.HasPrefix(name, "--") {
		return false
	}
	if g != nil && (contains(g.long, name) || contains(g.values, name)) {
		return false
	}
	literals, ok := pattern.Literals()
	for i := 0; ok && i < len(literals); i++ {
		if strings.HasPrefix(literals[i], name) {
			return true
		}
	}
	return false
}

// matchWords reports whether the arguments, without the program's name, match.
// all asks that every word is covered.
func matchWords(pattern []wordPattern, program string, args []string, all bool) bool {
	var operandSpace [32]operand
	var optionSpace [16]argWord
	operands, options := operandSpace[:0], optionSpace[:0]
	in := argReader{grammar: grammarOf(program), args: args}
	value := false
	for {
		w, ok := in.next()
		if !ok {
			break
		}
		if w.option {
			options = append(options, w)
			value = w.unknown && !w.hasValue
		} else {
			operands = append(operands, operand{w.name, value && !in.dashes})
			value = false
		}
	}
	return matchOptions(pattern, options, in.grammar, all) && matchOperands(pattern, operands, all)
}

// matchOptions looks for every option element among the options.
func matchOptions(pattern []wordPattern, options []argWord, g *grammar, all bool) bool {
	open := false
	for i := range pattern {
		w := &pattern[i]
		open = open || w.any
		if w.option && !anyOption(w, options, g, all) {
			return false
		}
	}
	if !all || open {
		return true
	}
	for i := range options {
		covered := false
		for j := range pattern {
			covered = covered || pattern[j].option && pattern[j].matchesOption(&options[i], g, true)
		}
		if !covered {
			return false
		}
	}
	return true
}

func anyOption(w *wordPattern, options []argWord, g *grammar, exact bool) bool {
	for i := range options {
		if w.matchesOption(&options[i], g, exact) {
			return true
		}
	}
	return false
}

// operand is one word that is not an option.
type operand struct {
	text string
	// value: it follows an option nobody knows here, whose value it may be.
	value bool
}

// maxWords is how many elements args may have.
const maxWords = 60

// matchOperands matches operands in order; ** takes any number of them. It
// follows every way at once: a bit of at says that the elements before it have
// been matched. What may be the value of an option can be left out when a rule
// refuses.
func matchOperands(pattern []wordPattern, operands []operand, all bool) bool {
	end := uint64(1) << len(pattern)
	at := skipOptions(pattern, 1)
	for i := range operands {
		if at&end != 0 && !all {
			return true
		}
		next := uint64(0)
		for j := range pattern {
			if at&(1<<j) == 0 {
				continue
			}
			w := &pattern[j]
			if w.any || operands[i].value && !all {
				next |= 1 << j
			}
			if !w.any && !w.option && w.matches(operands[i].text) {
				next |= 1 << (j + 1)
			}
		}
		at = skipOptions(pattern, next)
	}
	return at&end != 0
}

// skipOptions adds the places after elements that need no operand.
func skipOptions(pattern []wordPattern, at uint64) uint64 {
	for j := range pattern {
		if at&(1<<j) != 0 && (pattern[j].option || pattern[j].any) {
			at |= 1 << (j + 1)
		}
	}
	return at
}
