package policy

import (
	"slices"
	"strings"
)

// grammar describes the options of a program. It separates bundled letters,
// distinguishes values from operands, and relates letters to long options.
type grammar struct {
	flags    string            // letters that take no value
	valued   string            // letters that take one
	attached string            // letters whose value, if any, is attached
	long     []string          // long options that take no value, or only an attached one
	values   []string          // long options that take a value
	same     map[byte]string   // the long spelling of a letter
	sub      map[string]string // grammar name after the first operand, "*" for any other
	strict   bool              // options end at the first operand
	words    bool              // one dash begins a whole word: no bundles
}

// grammarOf returns the grammar of a program, given its path or name. It is nil
// for an unknown program.
func grammarOf(program string) *grammar { return grammars()[base(program)] }

// argWord is one parsed argument.
type argWord struct {
	option   bool
	name     string // operand, or the option as written, without its value
	letter   string // "-f" when the option came out of a bundle, else empty
	long     string // the long spelling of a letter, if there is one
	value    string
	hasValue bool
	unknown  bool // an option that is not in the table
	inner    bool // it stands behind a subcommand
}

// argReader parses an argument list.
type argReader struct {
	grammar *grammar // nil: unknown program
	args    []string
	bundle  string // remaining letters of a bundle
	ended   bool   // past -- or past the first operand of a strict grammar
	dashes  bool   // past --
	started bool   // past the first operand
	inner   bool   // past a subcommand
}

// next returns the next argument, and false at the end.
func (a *argReader) next() (argWord, bool) {
	if a.bundle != "" {
		return a.fromBundle(), true
	}
	if len(a.args) == 0 {
		return argWord{}, false
	}
	word := a.args[0]
	a.args = a.args[1:]
	switch {
	case a.ended || len(word) < 2 || word[0] != '-':
		a.operand(word)
		return argWord{name: word}, true
	case word == "--":
		a.ended, a.dashes = true, true
		return a.next()
	case strings.HasPrefix(word, "--"):
		return a.long(word), true
	case a.grammar == nil || a.grammar.words:
		return plainOption(word), true
	}
	a.bundle = word[1:]
	return a.fromBundle(), true
}

// operand handles an operand. The first one may be a subcommand with its own
// options.
func (a *argReader) operand(word string) {
	if a.started || a.grammar == nil {
		a.started = true
		return
	}
	a.started = true
	if a.grammar.sub != nil {
		a.inner = true
		name, ok := a.grammar.sub[word]
		if !ok {
			name = a.grammar.sub["*"]
		}
		a.grammar = grammars()[name]
		return
	}
	a.ended = a.ended || a.grammar.strict
}

func plainOption(word string) argWord {
	name, value, has := strings.Cut(word, "=")
	return argWord{option: true, name: name, value: value, hasValue: has, unknown: true}
}

// long parses a long option and, if its grammar says so, its value.
func (a *argReader) long(word string) argWord {
	w := plainOption(word)
	w.inner = a.inner
	w.unknown = a.grammar == nil || !knows(a.grammar, w.name)
	if !w.hasValue && a.grammar != nil && takesValue(a.grammar, w.name) && len(a.args) > 0 {
		w.value, w.hasValue = a.args[0], true
		a.args = a.args[1:]
	}
	return w
}

// takesValue reports whether a long option has a value. A unique abbreviation
// counts.
func takesValue(g *grammar, name string) bool {
	if contains(g.values, name) {
		return true
	}
	if contains(g.long, name) {
		return false
	}
	valued, plain := 0, 0
	for _, l := range g.values {
		if strings.HasPrefix(l, name) {
			valued++
		}
	}
	for _, l := range g.long {
		if strings.HasPrefix(l, name) {
			plain++
		}
	}
	return valued > 0 && plain == 0
}

// knows reports whether a long option is in the table. An abbreviation counts.
func knows(g *grammar, name string) bool {
	begins := func(l string) bool { return strings.HasPrefix(l, name) }
	return slices.ContainsFunc(g.long, begins) || slices.ContainsFunc(g.values, begins)
}

var letters [128]string

func init() {
	for i := range letters {
		letters[i] = "-" + string(rune(i))
	}
}

// letterless reports whether a letter is not in the table.
func (g *grammar) letterless(c byte) bool {
	return strings.IndexByte(g.flags, c) < 0 && strings.IndexByte(g.valued, c) < 0 && strings.IndexByte(g.attached, c) < 0
}

// fromBundle returns the next letter of a bundle as an option.
func (a *argReader) fromBundle() argWord {
	c := a.bundle[0]
	rest := a.bundle[1:]
	a.bundle = ""
	if c >= 128 {
		return argWord{option: true, name: "-" + string(c) + rest}
	}
	w := argWord{option: true, name: letters[c], letter: letters[c], long: a.grammar.same[c], inner: a.inner}
	switch {
	case a.grammar.letterless(c):
		w.unknown = true
		a.bundle = rest
	case strings.IndexByte(a.grammar.attached, c) >= 0:
		w.value, w.hasValue = rest, rest != ""
	case strings.IndexByte(a.grammar.valued, c) < 0:
		a.bundle = rest
	case rest != "":
		w.value, w.hasValue = rest, true
	case len(a.args) > 0:
		w.value, w.hasValue = a.args[0], true
		a.args = a.args[1:]
	}
	return w
}
