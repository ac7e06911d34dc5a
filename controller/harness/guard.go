package harness

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
)

// notGiven ends the reason of a guard that names what the event lacks.
const notGiven = " is not given"

// guard is the condition of an overlay, in a small subset of the Common
// Expression Language. Names are runtime.forge and event.*. Operators are ==,
// !=, in, &&, ||, !, has() and parentheses; values are texts and truth values.
type guard struct {
	at   Origin
	expr expr   // nil: it cannot be parsed
	why  string // why it cannot be parsed

	readsForge bool // it names runtime.forge
}

// guardInput are the values that a guard can read.
type guardInput struct {
	forge string
	event map[string]any
}

// expr is one node of a guard. It yields a text, a truth value, a list of
// texts or an error.
type expr func(guardInput) (any, error)

// parseGuard parses a guard. A syntax error is returned by matches.
func parseGuard(t *tree) guard {
	p := &guardParser{toks: guardTokens(t.text)}
	e, err := p.either(0)
	if err == nil && p.peek() != "" {
		err = fmt.Errorf("%s is not expected", quoted(p.peek()))
	}
	reads := contains(p.toks, "runtime.forge")
	if err != nil {
		return guard{at: t.at, readsForge: reads, why: fmt.Sprintf("the guard is more than is supported here: %v", err)}
	}
	return guard{at: t.at, expr: e, readsForge: reads}
}

// matches evaluates the guard. The second result is the reason if it cannot be
// evaluated.
func (g guard) matches(in guardInput) (bool, string) {
	if g.expr == nil {
		return false, g.why
	}
	v, err := g.expr(in)
	if err != nil {
		return false, fmt.Sprintf("the guard cannot be decided: %v", err)
	}
	holds, ok := v.(bool)
	if !ok {
		return false, "the guard is not a condition"
	}
	return holds, ""
}

// guardTokens splits a guard into words, quoted texts and operators.
func guardTokens(s string) []string {
	var toks []string
	for i := 0; i < len(s); {
		c := s[i]
		n := 1
		switch {
		case c == ' ' || c == '\t' || c == '\n' || c == '\r':
			i++
			continue
		case c == '"' || c == '\'':
			for n < len(s)-i && s[i+n] != c {
				n++
			}
			n = min(n+1, len(s)-i)
		case isWord(rune(c)):
			for i+n < len(s) && (isWord(rune(s[i+n])) || s[i+n] == '.') {
				n++
			}
		case strings.HasPrefix(s[i:], "==") || strings.HasPrefix(s[i:], "!=") || strings.HasPrefix(s[i:], "&&") || strings.HasPrefix(s[i:], "||"):
			n = 2
		}
		toks = append(toks, s[i:i+n])
		i += n
	}
	return toks
}

func isWord(r rune) bool {
	return r == '_' || r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r))
}

// guardParser is a recursive descent parser of the tokens.
type guardParser struct {
	toks []string
	next int
}

func (p *guardParser) peek() string {
	if p.next < len(p.toks) {
		return p.toks[p.next]
	}
	return ""
}

func (p *guardParser) accept(tok string) bool {
	if p.peek() == tok {
		p.next++
		return true
	}
	return false
}

// either parses a chain of ||, both parses one of &&. As in the language, an
// operand that decides the result hides an error of the other.
func (p *guardParser) either(depth int) (expr, error) {
	return p.logic(depth, "||", true, p.both)
}

func (p *guardParser) both(depth int) (expr, error) {
	return p.logic(depth, "&&", false, p.relation)
}

func (p *guardParser) logic(depth int, op string, decides bool, operand func(int) (expr, error)) (expr, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	left, err := operand(depth + 1)
	if err != nil {
		return nil, err
	}
	for p.accept(op) {
		right, err := operand(depth + 1)
		if err != nil {
			return nil, err
		}
		left = logical(left, right, decides)
	}
	return left, nil
}

func logical(left, right expr, decides bool) expr {
	return func(in guardInput) (any, error) {
		a, errA := truth(left, in)
		if errA == nil && a == decides {
			return decides, nil
		}
		b, errB := truth(right, in)
		switch {
		case errB == nil && b == decides:
			return decides, nil
		case errA != nil:
			return nil, errA
		case errB != nil:
			return nil, errB
		}
		return !decides, nil
	}
}

func truth(e expr, in guardInput) (bool, error) {
	v, err := e(in)
	if err != nil {
		return false, err
	}
	b, ok := v.(bool)
	if !ok {
		return false, fmt.Errorf("%v is not a truth value", v)
	}
	return b, nil
}

// relation parses an operand, or a comparison of two.
func (p *guardParser) relation(depth int) (expr, error) {
	left, err := p.operand(depth)
	if err != nil {
		return nil, err
	}
	op := p.peek()
	if op != "==" && op != "!=" && op != "in" {
		return left, nil
	}
	p.next++
	right, err := p.operand(depth)
	if err != nil {
		return nil, err
	}
	return func(in guardInput) (any, error) {
		a, err := left(in)
		if err != nil {
			return nil, err
		}
		b, err := right(in)
		if err != nil {
			return nil, err
		}
		return compare(op, a, b)
	}, nil
}

func compare(op string, a, b any) (bool, error) {
	if op == "in" {
		list, ok := b.([]any)
		if !ok {
			return false, fmt.Errorf("%v is not a list", b)
		}
		for _, x := range list {
			if same, err := compare("==", a, x); err == nil && same {
				return true, nil
			}
		}
		return false, nil
	}
	switch a.(type) {
	case string, bool:
	default:
		return false, fmt.Errorf("only texts and truth values are compared")
	}
	switch b.(type) {
	case string, bool:
	default:
		return false, fmt.Errorf("only texts and truth values are compared")
	}
	return (a == b) == (op == "=="), nil
}

func (p *guardParser) operand(depth int) (expr, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d levels", maxDepth)
	}
	tok := p.peek()
	p.next++
	switch {
	case tok == "!":
		e, err := p.operand(depth + 1)
		if err != nil {
			return nil, err
		}
		return func(in guardInput) (any, error) { b, err := truth(e, in); return !b, err }, nil
	case tok == "(":
		e, err := p.either(depth + 1)
		if err == nil && !p.accept(")") {
			err = fmt.Errorf("a parenthesis is not closed")
		}
		return e, err
	case tok == "[":
		return p.list(depth)
	case tok == "true" || tok == "false":
		return func(guardInput) (any, error) { return tok == "true", nil }, nil
	case tok == "has" && p.accept("("):
		name := p.peek()
		p.next++
		if _, err := lookup(name, guardInput{}, true); err != nil || !p.accept(")") {
			return nil, fmt.Errorf("has() takes one name")
		}
		return func(in guardInput) (any, error) { return has(name, in), nil }, nil
	case len(tok) >= 2 && (tok[0] == '"' || tok[0] == '\'') && tok[len(tok)-1] == tok[0] && !strings.Contains(tok, `\`):
		return func(guardInput) (any, error) { return tok[1 : len(tok)-1], nil }, nil
	}
	if _, err := lookup(tok, guardInput{}, true); err != nil {
		return nil, err
	}
	return func(in guardInput) (any, error) { return lookup(tok, in, false) }, nil
}

func (p *guardParser) list(depth int) (expr, error) {
	var entries []expr
	for !p.accept("]") {
		e, err := p.operand(depth + 1)
		if err != nil {
			return nil, err
		}
		entries = append(entries, e)
		if !p.accept(",") && p.peek() != "]" {
			return nil, fmt.Errorf("a list is not closed")
		}
	}
	return func(in guardInput) (any, error) {
		out := make([]any, len(entries))
		for i, e := range entries {
			v, err := e(in)
			if err != nil {
				return nil, err
			}
			out[i] = v
		}
		return out, nil
	}, nil
}

// lookup is the value of a name. With check it only checks that the name can
// have a value.
func lookup(name string, in guardInput, check bool) (any, error) {
	first, rest, _ := strings.Cut(name, ".")
	switch {
	case name == "runtime.forge":
		return in.forge, nil
	case rest != "" && first == "event" && !strings.Contains("."+rest+".", ".."):
	case name == "":
		return nil, fmt.Errorf("it ends early")
	default:
		return nil, fmt.Errorf("%s is not a name that is known", quoted(name))
	}
	if check {
		return nil, nil
	}
	var v any = in.event
	for _, key := range strings.Split(rest, ".") {
		m, _ := v.(map[string]any)
		next, ok := m[key]
		if !ok {
			return nil, errors.New(name + notGiven)
		}
		v = next
	}
	return v, nil
}

// has reports whether a name has a value. has(runtime.forge) is always true.
func has(name string, in guardInput) bool {
	_, err := lookup(name, in, false)
	return err == nil
}
