package policy

import (
	"strings"

	"agentsh/policy/glob"
)

// ArgPattern is one element of args. It lists alternatives, or it is ** and
// matches any number of arguments.
//
// Operands and options are matched separately, because programs accept them in
// any order. Operand elements match in order. Option elements match anywhere
// before "--".
//
// An allow rule must match every argument, and options with their values
// (--output=*). A deny rule ignores arguments after its last element. It
// matches an option with any value and in any abbreviation.
type ArgPattern struct {
	Any    bool
	Option bool
	Globs  []*glob.Glob
	Except []OtherValues
	Text   string
}

// OtherValues is the alternative NAME=!VALUES of a deny rule. It matches an
// option of that name whose value matches none of VALUES. In a program with
// subcommands it matches only options before the subcommand: git -c, not git
// commit -c.
type OtherValues struct{ Name, Values *glob.Glob }

func (w *ArgPattern) matches(word string) bool {
	for _, g := range w.Globs {
		if g.Match(word) {
			return true
		}
	}
	return false
}

// matchesOption reports whether an option is one of the alternatives. With
// exact, its value must match too.
func (w *ArgPattern) matchesOption(o *argWord, g *grammar, exact bool) bool {
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
	for _, e := range w.Except {
		named := e.Name.Match(o.name) || e.Name.Match(o.long) || abbreviated(e.Name, o.name, g)
		if named && o.hasValue && !o.inner && !e.Values.Match(o.value) {
			return true
		}
	}
	for _, pattern := range w.Globs {
		if abbreviated(pattern, o.name, g) {
			return true
		}
	}
	return false
}

// withValue reports whether "name=value" is one of the alternatives.
func (w *ArgPattern) withValue(name, value string) bool {
	if name == "" {
		return false
	}
	for _, g := range w.Globs {
		if strings.Contains(g.String(), "=") || strings.Contains(g.String(), "*") {
			if g.Match(name + "=" + value) {
				return true
			}
		}
	}
	return false
}

// abbreviated reports whether name can abbreviate an option that the pattern
// matches, as getopt_long(3) allows.
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

// MatchArgs reports whether an argument list matches. args excludes the
// program's name. With all, every argument must match. program is a path or a
// name and selects the option grammar.
func MatchArgs(pattern []ArgPattern, program string, args []string, all bool) bool {
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

// matchOptions searches the options for every option element.
func matchOptions(pattern []ArgPattern, options []argWord, g *grammar, all bool) bool {
	open := false
	for i := range pattern {
		w := &pattern[i]
		open = open || w.Any
		if w.Option && !anyOption(w, options, g, all) {
			return false
		}
	}
	if !all || open {
		return true
	}
	for i := range options {
		covered := false
		for j := range pattern {
			covered = covered || pattern[j].Option && pattern[j].matchesOption(&options[i], g, true)
		}
		if !covered {
			return false
		}
	}
	return true
}

func anyOption(w *ArgPattern, options []argWord, g *grammar, exact bool) bool {
	for i := range options {
		if w.matchesOption(&options[i], g, exact) {
			return true
		}
	}
	return false
}

// operand is one argument that is not an option.
type operand struct {
	text string
	// value is set if the operand follows an unknown option and may be its
	// value.
	value bool
}

// MaxArgs is the maximum number of elements in args.
const MaxArgs = 60

// matchOperands matches operands in order. ** matches any number of them. All
// alternatives are followed at once: bit i of at is set if the first i elements
// have matched. A deny rule may skip an operand that can be the value of an
// option.
func matchOperands(pattern []ArgPattern, operands []operand, all bool) bool {
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
			if w.Any || operands[i].value && !all {
				next |= 1 << j
			}
			if !w.Any && !w.Option && w.matches(operands[i].text) {
				next |= 1 << (j + 1)
			}
		}
		at = skipOptions(pattern, next)
	}
	return at&end != 0
}

// skipOptions adds the positions after elements that need no operand.
func skipOptions(pattern []ArgPattern, at uint64) uint64 {
	for j := range pattern {
		if at&(1<<j) != 0 && (pattern[j].Option || pattern[j].Any) {
			at |= 1 << (j + 1)
		}
	}
	return at
}
