// Package glob matches paths, names, arguments and host names against
// patterns. It does no I/O. The time of a match is at most proportional to the length
// of the pattern times the length of the text.
//
// The pattern language, in every [Kind]:
//
//   - any run of characters inside one part (a path segment, a host label)
//     **       any run of characters, separators included
//     ?        one character, not the separator
//     [a-z]    one character of the set; [!a-z] one that is not in it
//     {a,b}    either alternative; alternatives nest
//     \x       the character x itself
//
// In a path, dir/** matches dir itself and everything below it, and a/**/b also
// matches a/b. In a host, *.example.com matches every name below example.com at any
// depth, but not example.com itself. Names and arguments have no separator: *
// matches anything there.
package glob

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxPattern is the longest pattern, in bytes.
const MaxPattern = 4096

// MaxAlternatives bounds what the braces of one pattern multiply out to.
const MaxAlternatives = 256

// Kind is the kind of text that a pattern matches.
type Kind uint8

// The kinds of text.
const (
	Text Kind = iota // names and argument words: no separator
	Path             // clean absolute paths: the separator is a slash
	Host             // host names in lower case: the separator is a dot
	URL              // paths of a URL: as Path, but not checked to be clean
)

// separator returns the byte that * does not match, or 0 if there is none.
func (k Kind) separator() byte {
	switch k {
	case Path, URL:
		return '/'
	case Host:
		return '.'
	default:
		return 0
	}
}

// Glob is a compiled pattern, safe for concurrent use.
type Glob struct {
	source string
	kind   Kind
	alts   []alt
}

// alt is one alternative of a pattern with its braces expanded. It is a
// literal, or a list of tokens with a literal before and after it.
type alt struct {
	prefix string
	middle []token
	suffix string
	tree   bool // prefix alone, or prefix followed by a slash and anything
	sep    byte
}

// Compile parses a pattern. The error describes the mistake without the
// pattern. A path pattern that cannot match a clean absolute path is an error.
func Compile(kind Kind, pattern string) (*Glob, error) {
	if len(pattern) > MaxPattern {
		return nil, fmt.Errorf("pattern is %d bytes long, the most is %d", len(pattern), MaxPattern)
	}
	if !utf8.ValidString(pattern) {
		return nil, errors.New("pattern is not UTF-8")
	}
	texts, err := multiplyOut(pattern)
	if err != nil {
		return nil, err
	}
	g := &Glob{source: pattern, kind: kind, alts: make([]alt, 0, len(texts))}
	if kind == Path || kind == URL {
		if texts, err = withoutDirectories(texts); err != nil {
			return nil, err
		}
	}
	for _, text := range texts {
		alts, err := compileAlternative(kind, text)
		if err != nil {
			return nil, err
		}
		g.alts = append(g.alts, alts...)
	}
	return g, nil
}

// compileAlternative compiles a pattern without braces.
func compileAlternative(kind Kind, text string) ([]alt, error) {
	if kind == Path {
		if err := checkPath(text); err != nil {
			return nil, err
		}
	}
	if kind == Path || kind == URL {
		if stem, ok := strings.CutSuffix(text, "/**"); ok && !strings.HasSuffix(stem, `\`) {
			return compileTree(stem)
		}
	}
	if kind == Host {
		if rest, ok := strings.CutPrefix(text, "*."); ok {
			text = "?**." + rest
		}
	}
	tokens, err := parse(text)
	if err != nil {
		return nil, err
	}
	return []alt{newAlt(tokens, kind.separator())}, nil
}

// checkPath refuses a pattern that matches no clean absolute path. text has no
// braces.
func checkPath(text string) error {
	switch {
	case text == "":
		return errors.New("an empty pattern matches no path")
	case text[0] != '/' && !strings.HasPrefix(text, "**"):
		return errors.New("it matches no path: paths begin with a slash, so the pattern begins with / or **/")
	case strings.Contains(text, "//"):
		return errors.New("it matches no path: a double slash is never part of one")
	case text != "/" && strings.HasSuffix(text, "/"):
		return errors.New("it matches no path: write dir for the directory or dir/** for all of it, without a slash at the end")
	}
	for part := range strings.SplitSeq(text, "/") {
		if part == "." || part == ".." {
			return errors.New("it matches no path: . and .. are resolved before matching")
		}
	}
	return nil
}

// compileTree compiles stem/**. It matches stem and everything below it.
func compileTree(stem string) ([]alt, error) {
	tokens, err := parse(stem)
	if err != nil {
		return nil, err
	}
	at := newAlt(tokens, '/')
	if len(at.middle) == 0 && at.suffix == "" {
		at.tree = true
		return []alt{at}, nil
	}
	below := newAlt(append(tokens, token{op: opLiteral, text: "/"}, token{op: opDeep}), '/')
	return []alt{at, below}, nil
}

// newAlt separates the literals at both ends of a token list.
func newAlt(tokens []token, sep byte) alt {
	a := alt{sep: sep}
	tokens = joinLiterals(tokens)
	if len(tokens) > 0 && tokens[0].op == opLiteral {
		a.prefix, tokens = tokens[0].text, tokens[1:]
	}
	if n := len(tokens); n > 0 && tokens[n-1].op == opLiteral {
		a.suffix, tokens = tokens[n-1].text, tokens[:n-1]
	}
	a.middle = tokens
	return a
}

// Match reports whether the pattern matches all of s.
func (g *Glob) Match(s string) bool {
	for i := range g.alts {
		if g.alts[i].match(s) {
			return true
		}
	}
	return false
}

// String returns the pattern as it was written.
func (g *Glob) String() string { return g.source }

// Literal returns the only text that the pattern matches, if there is only one.
func (g *Glob) Literal() (string, bool) {
	if len(g.alts) != 1 || !g.alts[0].literal() {
		return "", false
	}
	return g.alts[0].prefix, true
}

// Literals returns every text that the pattern matches, if the pattern has no
// wildcards. It may have braces.
func (g *Glob) Literals() ([]string, bool) {
	texts := make([]string, 0, len(g.alts))
	for i := range g.alts {
		if !g.alts[i].literal() {
			return nil, false
		}
		texts = append(texts, g.alts[i].prefix)
	}
	return texts, true
}

func (a *alt) literal() bool { return len(a.middle) == 0 && a.suffix == "" && !a.tree }

func (a *alt) match(s string) bool {
	if !strings.HasPrefix(s, a.prefix) {
		return false
	}
	rest := s[len(a.prefix):]
	if a.tree {
		return rest == "" || rest[0] == '/'
	}
	if len(a.middle) == 0 {
		return rest == a.suffix
	}
	if !strings.HasSuffix(rest, a.suffix) {
		return false
	}
	return matchTokens(a.middle, rest[:len(rest)-len(a.suffix)], a.sep)
}

// Quote escapes s: a pattern made of the result matches s only.
func Quote(s string) string {
	if !strings.ContainsAny(s, special) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if strings.IndexByte(special, s[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

const special = `*?[]{},\`

// Contains reports whether g certainly matches everything that other matches.
// False can be wrong, true cannot.
func (g *Glob) Contains(other *Glob) bool {
	for i := range other.alts {
		if !g.contains(&other.alts[i]) {
			return false
		}
	}
	return true
}

func (g *Glob) contains(b *alt) bool {
	for i := range g.alts {
		if g.alts[i].contains(b) {
			return true
		}
	}
	return false
}

// contains reports whether a certainly matches all that b matches.
func (a *alt) contains(b *alt) bool {
	if b.literal() {
		return a.match(b.prefix)
	}
	if a.prefix == b.prefix && a.suffix == b.suffix && a.tree == b.tree && sameTokens(a.middle, b.middle) {
		return true
	}
	if a.tree {
		return b.tree && a.match(b.prefix) || strings.HasPrefix(b.prefix, a.prefix+"/")
	}
	wide := len(a.middle) == 1 && (a.middle[0].op == opDeep || a.middle[0].op == opAny && a.sep == 0)
	if !wide || !strings.HasPrefix(b.prefix, a.prefix) {
		return false
	}
	if b.tree {
		return a.suffix == "" && len(a.prefix) <= len(b.prefix)
	}
	// What b matches begins with its prefix and ends with its suffix, which
	// do not overlap, so a's suffix must lie in b's.
	return strings.HasSuffix(b.suffix, a.suffix)
}

func sameTokens(a, b []token) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].op != b[i].op || a[i].text != b[i].text || a[i].op == opSet {
			return false
		}
	}
	return true
}
