package scan

import (
	"bytes"
	"fmt"
	"path"
	"strings"
	"unicode"
	"unicode/utf8"
)

const hiddenHint = "remove the characters; they change nothing that a reader sees"

// unicode finds characters that hide text from a reader. Typography, emoji and
// marks that scripts need are allowed.
func (s *span) unicode() {
	b := s.raw
	if bytes.IndexByte(b, 0) >= 0 {
		return // no text
	}
	s.terminal()
	if isASCII(b) {
		return
	}
	line := bidiLine{}
	prev := rune(' ')
	for i := 0; i < len(b); {
		if c := b[i]; c < utf8.RuneSelf {
			if c == '\n' {
				s.endLine(&line)
			} else if c >= 'A' && c <= 'z' {
				line.latin = true
			}
			prev = rune(c)
			i++
			continue
		}
		r, size := utf8.DecodeRune(b[i:])
		n := size
		switch {
		case r >= 0xE0000 && r <= 0xE007F:
			n = s.tags(i, prev)
		case isSelector(r):
			n = s.selectors(i, prev)
		case isBidi(r):
			line.add(r, i)
		case isInvisible(r):
			n = s.invisible(i, prev)
		case unicode.In(r, unicode.Hebrew, unicode.Arabic, unicode.Syriac, unicode.Thaana, unicode.Nko, unicode.Adlam):
			line.rtl = true
		}
		prev = r
		i += max(n, size)
	}
	s.endLine(&line)
	s.homoglyphs()
}

func isASCII(b []byte) bool {
	for _, c := range b {
		if c >= utf8.RuneSelf {
			return false
		}
	}
	return true
}

// terminal finds terminal escape sequences, which a reader of a file does not
// see.
func (s *span) terminal() {
	i := bytes.Index(s.raw, []byte("\x1b["))
	if k := bytes.Index(s.raw, []byte("\x1b]")); i < 0 || k >= 0 && k < i {
		i = k
	}
	if i < 0 || s.job.kind == Output {
		return
	}
	f := Finding{Rule: RuleHidden, Severity: Medium, Message: "a terminal escape sequence", Hint: hiddenHint}
	if s.job.kind == Instructions {
		f.Severity = High
	}
	s.report(i, i+8, f)
}

// run returns the end and the length of the run of characters at i that in
// accepts.
func run(b []byte, i int, in func(rune) bool) (end, count int) {
	for i < len(b) {
		r, size := utf8.DecodeRune(b[i:])
		if !in(r) {
			break
		}
		i += size
		count++
	}
	return i, count
}

// tags judges a run of tag characters and returns its length in bytes. They
// form flags of regions; any other text in them is hidden.
func (s *span) tags(i int, prev rune) int {
	end, count := run(s.raw, i, func(r rune) bool { return r >= 0xE0000 && r <= 0xE007F })
	var ascii []byte
	for _, r := range string(s.raw[i:end]) {
		if c := r - 0xE0000; c >= ' ' && c < 0x7F {
			ascii = append(ascii, byte(c))
		}
	}
	flag := prev == 0x1F3F4 && len(ascii) <= 6 && bytes.Trim(ascii, "abcdefghijklmnopqrstuvwxyz0123456789") == nil
	if flag && count == len(ascii)+1 && bytes.HasSuffix(s.raw[i:end], []byte("\U000E007F")) {
		return end - i
	}
	s.report(
		i,
		end,
		Finding{
			Rule:     RuleHidden,
			Severity: Critical,
			Message:  fmt.Sprintf("%d tag characters, which nothing shows", count),
			Excerpt:  excerpt(ascii),
			Hint:     hiddenHint,
		},
	)
	s.derive(ascii, i, "tag characters")
	return end - i
}

func isSelector(r rune) bool { return r >= 0xFE00 && r <= 0xFE0F || r >= 0xE0100 && r <= 0xE01EF }

// selectors judges a run of variation selectors. One belongs to the character
// before it; more may be bytes of a hidden text.
func (s *span) selectors(i int, prev rune) int {
	end, count := run(s.raw, i, isSelector)
	supplement := bytes.HasPrefix(s.raw[i:], []byte("\xf3\xa0")) && !unicode.Is(unicode.Han, prev)
	if count == 1 && !supplement {
		return end - i
	}
	var data []byte
	for _, r := range string(s.raw[i:end]) {
		if r >= 0xE0100 {
			r -= 0xE0100 - 16
		} else {
			r -= 0xFE00
		}
		data = append(data, byte(r))
	}
	f := Finding{
		Rule:     RuleHidden,
		Severity: High,
		Message:  fmt.Sprintf("%d variation selectors with nothing to vary", count),
		Hint:     hiddenHint,
	}
	if count >= 4 {
		f.Severity = Critical
		s.derive(data, i, "variation selectors")
	}
	s.report(i, end, f)
	return end - i
}

func isInvisible(r rune) bool {
	switch r {
	case 0x200B,
		0x200C,
		0x200D,
		0x2060,
		0x2061,
		0x2062,
		0x2063,
		0x2064,
		0xFEFF,
		0x180E,
		0x00AD,
		0x034F,
		0x115F,
		0x1160,
		0x3164,
		0xFFA0,
		0x17B4,
		0x17B5:
		return true
	}
	return false
}

// invisible judges a run of zero-width characters.
func (s *span) invisible(i int, prev rune) int {
	b := s.raw
	end, count := run(b, i, isInvisible)
	first, _ := utf8.DecodeRune(b[i:])
	next, _ := utf8.DecodeRune(b[end:])
	if count >= 8 {
		s.report(
			i,
			end,
			Finding{Rule: RuleHidden, Severity: Critical, Message: fmt.Sprintf("%d invisible characters in a row", count), Hint: hiddenHint},
		)
		for _, text := range bits(b[i:end]) {
			s.derive(text, i, "invisible characters")
		}
		return end - i
	}
	if ordinaryInvisible(first, prev, next) || i == 0 && first == 0xFEFF {
		return end - i
	}
	f := Finding{
		Rule:     RuleHidden,
		Severity: Medium,
		Message:  fmt.Sprintf("an invisible character U+%04X inside a word", first),
		Hint:     hiddenHint,
	}
	if s.job.kind == Instructions {
		f.Severity = High
	}
	s.report(max(0, i-12), end, f)
	return end - i
}

// ordinaryInvisible reports whether a script, an emoji or typography needs the
// character at this position.
func ordinaryInvisible(r, prev, next rune) bool {
	switch r {
	case 0x00AD, 0x034F:
		return true // hyphenation, joining of marks
	case 0x3164, 0x115F, 0x1160, 0xFFA0:
		return unicode.Is(unicode.Hangul, prev) || unicode.Is(unicode.Hangul, next)
	}
	return !latinWord(prev) || !latinWord(next)
}

// latinWord reports letters and digits of scripts that need no invisible
// characters between them.
func latinWord(r rune) bool {
	return unicode.In(r, unicode.Latin, unicode.Cyrillic, unicode.Greek) || r >= '0' && r <= '9'
}

// bits returns the texts that a run of two kinds of characters spells in
// binary, with either kind as one.
func bits(run []byte) [][]byte {
	var kinds []rune
	var digits []int
	for _, r := range string(run) {
		k := 0
		for k < len(kinds) && kinds[k] != r {
			k++
		}
		if k == len(kinds) {
			kinds = append(kinds, r)
		}
		digits = append(digits, k)
	}
	if len(kinds) < 2 || len(kinds) > 3 {
		return nil
	}
	var out [][]byte
	for flip := range 2 {
		var text []byte
		var value byte
		n := 0
		for _, d := range digits {
			if d > 1 { // the third kind divides
				continue
			}
			value = value<<1 | byte(d^flip)
			if n++; n == 8 {
				text, value, n = append(text, value), 0, 0
			}
		}
		if isText(text) {
			out = append(out, text)
		}
	}
	return out
}

func isBidi(r rune) bool { return r >= 0x202A && r <= 0x202E || r >= 0x2066 && r <= 0x2069 }

// bidiLine counts the bidirectional control characters of a line.
type bidiLine struct {
	rtl, latin bool
	open       int // embeddings and isolates not yet closed
	at         int // of the first control
	any        bool
	override   bool // U+202D or U+202E
	toLeft     bool // U+202B or U+2067
	broken     bool // closed more than was open
}

func (l *bidiLine) add(r rune, at int) {
	if !l.any {
		l.any, l.at = true, at
	}
	switch r {
	case 0x202C, 0x2069:
		if l.open--; l.open < 0 {
			l.open, l.broken = 0, true
		}
		return
	case 0x202D, 0x202E:
		l.override = true
	case 0x202B, 0x2067:
		l.toLeft = true
	}
	l.open++
}

// endLine judges a line. Right-to-left text needs such characters. A balanced
// pair around no such text is harmless. Reordered Latin text shows a reader
// something else than a program reads. See Boucher and Anderson, "Trojan
// Source", CVE-2021-42574.
func (s *span) endLine(l *bidiLine) {
	found := *l
	*l = bidiLine{}
	if !found.any {
		return
	}
	f := Finding{Rule: RuleBidi, Hint: "remove the characters, or write them as escapes"}
	switch {
	case found.override && !found.rtl:
		f.Severity, f.Message = Critical, "an override turns the order of Latin text"
	case found.override:
		f.Severity, f.Message = High, "an override changes the order of letters"
	case found.toLeft && !found.rtl:
		f.Severity, f.Message = High, "Latin text is embedded from right to left"
	case found.open > 0 && !found.rtl:
		f.Severity, f.Message = High, "a change of direction does not end on its line"
	case found.open > 0 && isCode(s.job.name):
		f.Severity, f.Message = High, "a change of direction does not end on its line"
	default:
		return
	}
	if f.Severity == High && !found.rtl && (isCode(s.job.name) || s.job.kind == Instructions) {
		f.Severity = Critical
	}
	s.report(found.at, found.at+3*maxExcerpt, f)
}

var codeSuffixes = map[string]bool{
	".go": true, ".c": true, ".h": true, ".cc": true, ".cpp": true, ".hpp": true, ".rs": true, ".py": true, ".js": true, ".mjs": true,
	".cjs": true, ".ts": true,
	".tsx": true, ".jsx": true, ".java": true, ".kt": true, ".rb": true, ".php": true, ".sh": true, ".bash": true, ".cs": true,
	".swift": true, ".scala": true, ".pl": true, ".lua": true, ".sql": true,
}

func isCode(name string) bool { return codeSuffixes[strings.ToLower(path.Ext(name))] }

// homoglyphs finds Latin words with look-alike letters of other scripts.
func (s *span) homoglyphs() {
	b := s.raw
	for i := 0; i < len(b); {
		if b[i] < utf8.RuneSelf && !isLetter(b[i]) {
			i++
			continue
		}
		start, latin, alike, other := i, 0, 0, 0
		for i < len(b) {
			r, size := utf8.DecodeRune(b[i:])
			if !unicode.IsLetter(r) && !unicode.IsMark(r) {
				break
			}
			switch {
			case r < utf8.RuneSelf:
				latin++
			case confusable[r] != 0:
				alike++
			default:
				other++
			}
			i += size
		}
		if i == start {
			_, size := utf8.DecodeRune(b[i:])
			i += size
		}
		if latin < 2 || alike == 0 || other > 0 {
			continue
		}
		f := Finding{
			Rule:     RuleHomoglyph,
			Severity: Medium,
			Message:  "a Latin word has letters of another script in it",
			Hint:     "write the word in one script",
		}
		if s.job.kind == Instructions {
			f.Severity = High
		}
		s.report(start, i, f)
	}
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }
