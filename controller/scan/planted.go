package scan

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"html"
	"net/url"
	"slices"
	"sync"
	"unicode"
	"unicode/utf8"
)

// planted is a value to find in several spellings.
type planted struct {
	rule      string
	spellings [][]byte
	squashed  [][]byte // what is left of spellings by squash; empty: too short
	encoded   [][]byte // base64 and base32 of it, letters and digits only
	hex       []byte   // small letters
}

const (
	minPlanted   = 8  // bytes of a value that is looked for, at least
	minScattered = 12 // letters and digits of one that is also found in pieces
)

// plant adds values to find.
func (s *Scanner) plant(values []string, rule string) {
	for _, v := range values {
		if len(v) < minPlanted {
			continue
		}
		p := planted{rule: rule, spellings: [][]byte{[]byte(v), reversed(v), []byte(hex.EncodeToString([]byte(v)))}}
		turned := bytes.Map(turn13, []byte(v))
		if q := url.QueryEscape(v); q != v {
			p.spellings = append(p.spellings, []byte(q))
		}
		encoded := append(offsets(v, 3, 6, base64.StdEncoding.EncodeToString), offsets(v, 5, 5, base32.StdEncoding.EncodeToString)...)
		p.spellings = append(p.spellings, encoded...)
		for _, spelling := range [][]byte{[]byte(v), reversed(v), turned, reversed(string(turned))} {
			if t, _ := squash(spelling, len(spelling)); len(t) >= minScattered {
				p.squashed = append(p.squashed, t)
			}
		}
		if len(p.squashed) > 0 {
			p.hex = []byte(hex.EncodeToString([]byte(v)))
			for _, e := range encoded {
				if t := keepAlnum(e); len(t) >= minScattered {
					p.encoded = append(p.encoded, t)
				}
			}
		}
		s.planted = append(s.planted, p)
	}
}

func reversed(v string) []byte {
	out := []byte(v)
	slices.Reverse(out)
	return out
}

// offsets returns the spellings of v in an encoding with the given bits for
// each character, for each alignment in groups of bytes. Only characters that
// do not depend on neighbouring bytes are returned.
func offsets(v string, groups, bits int, encode func([]byte) string) [][]byte {
	var out [][]byte
	for skip := range groups {
		text := encode(append(make([]byte, skip), v...))
		out = append(out, []byte(text[(skip*8+bits-1)/bits:(skip+len(v))*8/bits]))
	}
	return out
}

// turn13 is rot13.
func turn13(r rune) rune {
	switch {
	case r >= 'a' && r <= 'z':
		return 'a' + (r-'a'+13)%26
	case r >= 'A' && r <= 'Z':
		return 'A' + (r-'A'+13)%26
	}
	return r
}

// findPlanted finds canaries and secrets of the run.
func (s *Scanner) findPlanted(in *span) {
	if len(s.planted) == 0 {
		return
	}
	var pieces scattered
	for _, p := range s.planted {
		from, to, how := p.find(in.raw)
		if how == "" && len(p.squashed) > 0 {
			from, to, how = pieces.find(p, in.raw)
		}
		if how == "" {
			continue
		}
		f := Finding{
			Rule:     p.rule,
			Severity: Critical,
			Excerpt:  "(not shown)",
			Hint:     "somebody read what the agent has no reason to pass on: look at the audit log",
		}
		f.Message = "a canary"
		if p.rule == RuleSecret {
			f.Message, f.Hint = "a secret of this run", "change the secret, and keep it out of what the agent sees"
		}
		if how != plainly {
			f.Message += ", " + how
		}
		in.report(from, to, f)
	}
}

const plainly = "as it is"

// find returns the position of the value in one piece and its spelling. how is
// empty if it is not there.
func (p *planted) find(b []byte) (from, to int, how string) {
	for i, spelling := range p.spellings {
		if at := bytes.Index(b, spelling); at >= 0 {
			how = "encoded"
			if i == 0 {
				how = plainly
			}
			return at, at + len(spelling), how
		}
	}
	return 0, 0, ""
}

// scattered holds the transformed texts in which a split value is whole again.
// Each is made once.
type scattered struct {
	made            bool
	folded          []byte // squashed
	plain           []byte // squashed, what single characters were escaped; empty: none was
	letters, digits []byte
	// numbers returns the texts that lists of character codes spell.
	numbers [][]byte
}

// find returns the position of a split value: with other characters between, in
// look-alike letters, or as numbers.
func (r *scattered) find(p planted, b []byte) (from, to int, how string) {
	if !r.made {
		r.made = true
		r.folded, _ = squash(b, len(b))
		r.letters, r.digits = keepAlnum(b), hexDigits(b)
		if t := unescaped(b); len(t) < len(b) {
			r.plain, _ = squash(t, len(t))
		}
		r.numbers = append(numbers(b, 10), numbers(b, 8)...)
	}
	for _, want := range p.squashed {
		if at := bytes.Index(r.folded, want); at >= 0 {
			_, from := squash(b, at)
			_, to := squash(b, at+len(want))
			return from, max(from, to), "in pieces"
		}
		if bytes.Contains(r.plain, want) {
			return 0, len(b), "encoded"
		}
	}
	for _, want := range p.encoded {
		if bytes.Contains(r.letters, want) {
			return 0, len(b), "encoded and in pieces"
		}
	}
	if bytes.Contains(r.digits, p.hex) {
		return 0, len(b), "encoded and in pieces"
	}
	for _, text := range r.numbers {
		if bytes.Contains(text, p.spellings[0]) {
			return 0, len(b), "as numbers"
		}
	}
	return 0, 0, ""
}

// squash keeps letters and digits in one spelling: lower case, without accents,
// Latin for look-alikes. It stops at limit bytes and returns the offset in b.
func squash(b []byte, limit int) (out []byte, end int) {
	out = make([]byte, 0, min(limit, len(b)))
	var f folded // of one character
	alike := asciiAlike()
	i := 0
	for i < len(b) && len(out) < limit {
		if c := b[i]; c < utf8.RuneSelf {
			if low := asciiFold[c]; low > ' ' {
				out = append(out, low)
			}
			i++
			continue
		}
		r, size := utf8.DecodeRune(b[i:])
		i += size
		if r < 1<<16 && alike[r>>6]&(1<<(r&63)) == 0 {
			continue
		}
		if d, ok := digitValue(r); ok {
			out = append(out, d)
			continue
		}
		f.text, f.at = append(f.text[:0], ' '), f.at[:0]
		if f.rune(r, 0); len(f.text) > 1 && f.text[1] < utf8.RuneSelf {
			out = append(out, f.text[1:]...)
		}
	}
	return out, i
}

// asciiAlike has a bit for each character of the basic plane that squash may
// write as ASCII.
var asciiAlike = sync.OnceValue(func() *[1 << 10]uint64 {
	var bits [1 << 10]uint64
	set := func(r rune) {
		if r < 1<<16 {
			bits[r>>6] |= 1 << (r & 63)
		}
	}
	for r := range plain() {
		set(r)
	}
	for _, t := range unicode.Nd.R16 {
		for r := rune(t.Lo); r <= rune(t.Hi); r++ {
			set(r)
		}
	}
	for _, area := range [][2]rune{{0xFF01, 0xFF5E}, {0x24B6, 0x24E9}} {
		for r := area[0]; r <= area[1]; r++ {
			set(r)
		}
	}
	return &bits
})

// digitValue returns the ASCII digit for a decimal digit of any script.
func digitValue(r rune) (byte, bool) {
	if !unicode.IsDigit(r) {
		return 0, false
	}
	for _, t := range unicode.Nd.R16 {
		if r >= rune(t.Lo) && r <= rune(t.Hi) {
			return byte('0' + (r-rune(t.Lo))%10), true
		}
	}
	for _, t := range unicode.Nd.R32 {
		if r >= rune(t.Lo) && r <= rune(t.Hi) {
			return byte('0' + (r-rune(t.Lo))%10), true
		}
	}
	return 0, false
}

// alnumTable is true for ASCII letters and digits.
var alnumTable = func() (table [256]bool) {
	for _, c := range []byte(alnum) {
		table[c] = true
	}
	return table
}()

// keepAlnum drops all but ASCII letters and digits.
func keepAlnum(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for _, c := range b {
		if alnumTable[c] {
			out = append(out, c)
		}
	}
	return out
}

// unescaped returns a text with percent encoding, escapes and character
// references decoded.
func unescaped(b []byte) []byte {
	if bytes.IndexByte(b, '\\') >= 0 {
		b = []byte(unescape(b))
	}
	if bytes.Contains(b, []byte("&#")) {
		b = []byte(html.UnescapeString(string(b)))
	}
	if bytes.IndexByte(b, '%') < 0 {
		return b
	}
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		var c [1]byte
		if b[i] == '%' && i+2 < len(b) {
			if _, err := hex.Decode(c[:], b[i+1:i+3]); err == nil {
				out = append(out, c[0])
				i += 2
				continue
			}
		}
		out = append(out, b[i])
	}
	return out
}

// hexDigits returns the hexadecimal digits of a text in lower case, without the
// prefixes 0x, \x and \u00.
func hexDigits(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for i := 0; i < len(b); i++ {
		c := b[i] | 0x20
		next := byte(0)
		if i+1 < len(b) {
			next = b[i+1] | 0x20
		}
		switch {
		case b[i] == '0' && next == 'x':
			i++
		case c == 'u' && next == '0' && i+2 < len(b) && b[i+2] == '0':
			i += 2
		case b[i] >= '0' && b[i] <= '9':
			out = append(out, b[i])
		case c >= 'a' && c <= 'f' && isLetter(b[i]):
			out = append(out, c)
		}
	}
	return out
}

// numbers are the texts that lists of character codes spell.
func numbers(b []byte, base int) [][]byte {
	var out [][]byte
	var text []byte
	end := func() {
		if len(text) >= minPlanted {
			out = append(out, text)
		}
		text = nil
	}
	apart := 0 // characters since the last number
	for i := 0; i < len(b); i++ {
		if b[i] < '0' || b[i] > '9' {
			if apart++; apart > 4 {
				end()
			}
			continue
		}
		apart = 0
		n := 0
		for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
			if n = n*base + int(b[i]-'0'); n > unicode.MaxRune || int(b[i]-'0') >= base {
				n = 1 << 30
			}
		}
		i--
		if n < ' ' || n > '~' {
			end()
			continue
		}
		text = append(text, byte(n))
	}
	end()
	return out
}
