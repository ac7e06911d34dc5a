package glob

import (
	"strings"
	"unicode/utf8"
)

// stepBudget bounds the steps of the fast matcher. After it the matcher with
// bounded time continues.
const stepBudget = 4096

// matchTokens reports whether the tokens match all of s. It stores one
// backtracking position for the last * and one for the last **. An earlier star
// needs none: the later star can match what the earlier one leaves.
func matchTokens(tokens []token, s string, sep byte) bool {
	if len(tokens) == 1 && tokens[0].op == opDeep {
		return true
	}
	var at, any, deep mark
	any.token, deep.token = -1, -1
	for steps := 0; ; steps++ {
		if steps > stepBudget {
			return matchSlow(tokens, s, sep)
		}
		if at.token == len(tokens) && at.pos == len(s) {
			return true
		}
		if at.token < len(tokens) {
			switch t := &tokens[at.token]; t.op {
			case opAny:
				any = at
				at.token++
				continue
			case opDeep:
				deep = at
				any.token = -1
				at.token++
				continue
			default:
				if n := t.take(s[at.pos:], sep); n > 0 {
					at.token++
					at.pos += n
					continue
				}
			}
		}
		switch {
		case any.token >= 0 && any.pos < len(s) && (sep == 0 || s[any.pos] != sep):
			any.pos += width(s[any.pos:])
			at = mark{any.token + 1, any.pos}
		case deep.token >= 0 && deep.pos < len(s):
			deep.pos += width(s[deep.pos:])
			any.token = -1
			at = mark{deep.token + 1, deep.pos}
		default:
			return false
		}
	}
}

// mark is a position in the pattern and in the text.
type mark struct{ token, pos int }

// take returns the number of bytes at the start of s that a token other than a
// star matches. It is 0 if the token does not match.
func (t *token) take(s string, sep byte) int {
	if t.op == opLiteral {
		if strings.HasPrefix(s, t.text) {
			return len(t.text)
		}
		return 0
	}
	if s == "" || (sep != 0 && s[0] == sep) {
		return 0
	}
	c, n := utf8.DecodeRuneInString(s)
	if t.op == opSet && !t.set.contains(c) {
		return 0
	}
	return n
}

// width returns the number of bytes of the first character of s. A star ends between characters: a ?
// that began within one would match a part of it.
func width(s string) int {
	if s[0] < utf8.RuneSelf {
		return 1
	}
	_, n := utf8.DecodeRuneInString(s)
	return n
}

// matchSlow follows all possible matches at once. For each token it has the set
// of positions in s that can be reached before it.
func matchSlow(tokens []token, s string, sep byte) bool {
	reach, next := make([]bool, len(s)+1), make([]bool, len(s)+1)
	reach[0] = true
	for i := range tokens {
		clear(next)
		advance(&tokens[i], s, sep, reach, next)
		reach, next = next, reach
	}
	return reach[len(s)]
}

// advance marks in next the positions that one token reaches from those in
// reach. All of them are between characters.
func advance(t *token, s string, sep byte, reach, next []bool) {
	running := false
	for pos, after := 0, 0; pos <= len(s); pos = after {
		after = pos + 1
		if pos < len(s) {
			after = pos + width(s[pos:])
		}
		running = running || reach[pos]
		switch t.op {
		case opDeep:
			next[pos] = running
		case opAny:
			next[pos] = running
			if pos < len(s) && sep != 0 && s[pos] == sep {
				running = false
			}
		default:
			if reach[pos] {
				if n := t.take(s[pos:], sep); n > 0 {
					next[pos+n] = true
				}
			}
		}
	}
}
