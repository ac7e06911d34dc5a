package glob

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

type op uint8

const (
	opLiteral op = iota // text
	opOne               // ?
	opSet               // [...]
	opAny               // *
	opDeep              // **
)

type token struct {
	op   op
	text string // opLiteral
	set  *set   // opSet
}

// set is a bracket expression.
type set struct {
	negated bool
	ranges  []runeRange
}

type runeRange struct{ low, high rune }

func (s *set) contains(c rune) bool {
	for _, r := range s.ranges {
		if r.low <= c && c <= r.high {
			return !s.negated
		}
	}
	return s.negated
}

// parse reads a pattern without braces.
func parse(text string) ([]token, error) {
	var tokens []token
	var literal strings.Builder
	flush := func() {
		if literal.Len() > 0 {
			tokens = append(tokens, token{op: opLiteral, text: literal.String()})
			literal.Reset()
		}
	}
	for i := 0; i < len(text); {
		switch text[i] {
		case '*':
			flush()
			n := 1
			for i+n < len(text) && text[i+n] == '*' {
				n++
			}
			tokens = append(tokens, star(n))
			i += n
		case '?':
			flush()
			tokens = append(tokens, token{op: opOne})
			i++
		case '[':
			flush()
			s, n, err := parseSet(text[i:])
			if err != nil {
				return nil, err
			}
			tokens = append(tokens, token{op: opSet, set: s})
			i += n
		case '\\':
			if i+1 == len(text) {
				return nil, errors.New("a backslash at the end escapes nothing")
			}
			literal.WriteByte(text[i+1])
			i += 2
		default:
			literal.WriteByte(text[i])
			i++
		}
	}
	flush()
	return tokens, nil
}

// star is the token of n stars in a row.
func star(n int) token {
	if n == 1 {
		return token{op: opAny}
	}
	return token{op: opDeep}
}

// parseSet reads a bracket expression and returns its length in bytes.
func parseSet(text string) (*set, int, error) {
	s := &set{}
	i := 1
	if i < len(text) && (text[i] == '!' || text[i] == '^') {
		s.negated = true
		i++
	}
	for first := true; ; first = false {
		if i >= len(text) {
			return nil, 0, errors.New("[ without its ]")
		}
		if text[i] == ']' && !first {
			return s, i + 1, nil
		}
		low, n, err := setRune(text[i:])
		if err != nil {
			return nil, 0, err
		}
		i += n
		high := low
		if i+1 < len(text) && text[i] == '-' && text[i+1] != ']' {
			if high, n, err = setRune(text[i+1:]); err != nil {
				return nil, 0, err
			}
			i += 1 + n
		}
		if high < low {
			return nil, 0, fmt.Errorf("the range %c-%c in [] is backwards", low, high)
		}
		s.ranges = append(s.ranges, runeRange{low, high})
	}
}

// setRune reads one, possibly escaped, character of a bracket expression.
func setRune(text string) (rune, int, error) {
	skip := 0
	if text[0] == '\\' {
		if len(text) == 1 {
			return 0, 0, errors.New("[ without its ]")
		}
		skip = 1
	}
	c, n := utf8.DecodeRuneInString(text[skip:])
	if c == utf8.RuneError && n == 1 {
		return 0, 0, errors.New("[] holds a byte that is not UTF-8")
	}
	return c, skip + n, nil
}

// joinLiterals merges neighbouring literals and drops stars that add nothing.
func joinLiterals(tokens []token) []token {
	out := make([]token, 0, len(tokens))
	for _, t := range tokens {
		last := len(out) - 1
		switch {
		case last >= 0 && t.op == opLiteral && out[last].op == opLiteral:
			out[last].text += t.text
		case last >= 0 && t.op == opAny && out[last].op == opDeep:
		case last >= 0 && t.op == opDeep && out[last].op == opDeep:
		default:
			out = append(out, t)
		}
	}
	return out
}

// withoutDirectories adds the patterns in which a /**/ matches no directory.
func withoutDirectories(texts []string) ([]string, error) {
	var out []string
	for _, text := range texts {
		all, err := eachDepth(text)
		if err != nil {
			return nil, err
		}
		if out = append(out, all...); len(out) > MaxAlternatives {
			return nil, errTooMany
		}
	}
	return out, nil
}

func eachDepth(text string) ([]string, error) {
	head, tail, found := strings.Cut(text, "/**/")
	if !found {
		return []string{text}, nil
	}
	rests, err := eachDepth("/" + tail)
	if err != nil {
		return nil, err
	}
	if 2*len(rests) > MaxAlternatives {
		return nil, errTooMany
	}
	var out []string
	for _, rest := range rests {
		out = append(out, head+"/**"+rest, head+rest)
	}
	return out, nil
}

var errTooMany = fmt.Errorf("braces and /**/ multiply out to more than %d patterns", MaxAlternatives)

// multiplyOut expands the braces of a pattern. Bracket expressions and escapes
// stay unchanged.
func multiplyOut(pattern string) ([]string, error) {
	open := findBrace(pattern)
	if open < 0 {
		return []string{pattern}, nil
	}
	parts, end, err := splitBraces(pattern, open)
	if err != nil {
		return nil, err
	}
	tails, err := multiplyOut(pattern[end:])
	if err != nil {
		return nil, err
	}
	var out []string
	for _, part := range parts {
		heads, err := multiplyOut(part)
		if err != nil {
			return nil, err
		}
		if len(out)+len(heads)*len(tails) > MaxAlternatives {
			return nil, errTooMany
		}
		for _, head := range heads {
			for _, tail := range tails {
				out = append(out, pattern[:open]+head+tail)
			}
		}
	}
	return out, nil
}

// findBrace returns the first brace that opens alternatives, or -1.
func findBrace(pattern string) int {
	for i := 0; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '[':
			i += skipSet(pattern[i:])
		case '{':
			return i
		}
	}
	return -1
}

// skipSet returns the index of the last byte of the bracket expression at the
// start of text; 0 when it never ends, which parse reports.
func skipSet(text string) int {
	if _, n, err := parseSet(text); err == nil {
		return n - 1
	}
	return 0
}

// splitBraces returns the alternatives of the brace at open and the index
// after its end.
func splitBraces(pattern string, open int) ([]string, int, error) {
	var parts []string
	depth, start := 0, open+1
	for i := open; i < len(pattern); i++ {
		switch pattern[i] {
		case '\\':
			i++
		case '[':
			i += skipSet(pattern[i:])
		case '{':
			if depth++; depth > 8 {
				return nil, 0, errors.New("braces nest more than 8 deep")
			}
		case ',':
			if depth == 1 {
				parts = append(parts, pattern[start:i])
				start = i + 1
			}
		case '}':
			if depth--; depth == 0 {
				return append(parts, pattern[start:i]), i + 1, nil
			}
		}
	}
	return nil, 0, errors.New("{ without its }")
}
