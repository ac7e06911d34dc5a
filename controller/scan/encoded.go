package scan

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"html"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentsh/internal/text"
)

// inComment is how a text is hidden. Names of other ways stand where they are
// decoded.
const inComment = "an HTML comment"

// Least lengths, in bytes, of what is tried to decode: shorter text says
// nothing that matters.
const (
	minBase64  = 24
	minHex     = 40
	minEscapes = 6 // escaped characters in a row
)

// decode finds encoded text and scans the decoded text.
func (s *span) decode() {
	if s.depth >= maxDepth || bytes.IndexByte(s.raw, 0) >= 0 {
		return
	}
	s.runs()
	if s.how != inComment {
		s.comments()
	}
	s.escapes("%", 3, "percent encoding", func(b []byte) string {
		t, err := url.PathUnescape(string(b))
		if err != nil {
			return ""
		}
		return t
	})
	s.escapes("&#", 0, "character references", func(b []byte) string { return html.UnescapeString(string(b)) })
	s.escapes(`\u`, 6, "escapes", unescape)
	s.escapes(`\x`, 4, "escapes", unescape)
	s.rotated()
	s.spaced()
}

// encodedClass is 1 for characters of base64 and base64url, 3 for those that
// are also hexadecimal digits, 4 for what may break a long run into lines.
var encodedClass = func() (table [256]byte) {
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/-_=" {
		table[c] = 1
	}
	for _, c := range "0123456789abcdefABCDEF" {
		table[c] = 3
	}
	table['\n'], table['\r'] = 4, 4
	return table
}()

// runs finds base64 and hex.
func (s *span) runs() {
	b := s.raw
	for i := 0; i < len(b); {
		class := encodedClass[b[i]]
		if class == 0 || class == 4 {
			i++
			continue
		}
		start, all, lineAt := i, byte(3), i
		for i < len(b) && encodedClass[b[i]] != 0 {
			if c := encodedClass[b[i]]; c != 4 {
				all &= c
			} else if i-lineAt < 40 && b[i] == '\n' {
				break // only long lines go on
			} else if b[i] == '\n' {
				lineAt = i + 1
			}
			i++
		}
		run := bytes.TrimRight(b[start:i], "\r\n")
		if all == 3 && len(run) >= minHex {
			if data, err := hex.DecodeString(string(joined(run))); err == nil && isText(data) {
				s.derive(data, start, "hex")
				continue
			}
		}
		if len(run) >= minBase64 {
			s.base64(run, start)
		}
	}
}

func joined(run []byte) []byte {
	if bytes.IndexByte(run, '\n') < 0 {
		return run
	}
	return bytes.ReplaceAll(bytes.ReplaceAll(run, []byte("\n"), nil), []byte("\r"), nil)
}

// base64 decodes a run. It tries four starting points, because the beginning
// may lie in the previous block or belong to a path or a word. An equals sign
// ends a name or the text before.
func (s *span) base64(run []byte, at int) {
	probe := 64
	if line := bytes.IndexByte(run, '\n'); line >= minBase64Part {
		probe = min(probe, line) // what follows may be other text
	}
	run = joined(run)
	if bytes.ContainsAny(run, "-_") {
		run = []byte(strings.NewReplacer("-", "+", "_", "/").Replace(string(run)))
	}
	for part := range bytes.SplitSeq(run, []byte("=")) {
		if len(part) >= minBase64Part {
			s.base64Part(part, at, probe)
		}
	}
}

// minBase64Part is the length of the shortest run without padding.
const minBase64Part = minBase64 - 3

func (s *span) base64Part(run []byte, at, probe int) {
	for skip := range min(4, len(run)) {
		part := run[skip:]
		part = part[:len(part)-len(part)%4+map[int]int{0: 0, 1: 0, 2: 2, 3: 3}[len(part)%4]]
		first := part[:min(len(part), (probe-skip)/4*4)]
		if len(part) <= probe-skip {
			first = part
		}
		data := make([]byte, base64.RawStdEncoding.DecodedLen(len(first)))
		n, err := base64.RawStdEncoding.Decode(data, first)
		if err != nil || !isText(trimRune(data[:n])) {
			continue
		}
		if data, err = base64.RawStdEncoding.DecodeString(string(part)); err == nil && len(data) >= 12 {
			s.derive(bytes.ToValidUTF8(data, nil), at, "base64")
			return
		}
	}
}

// trimRune drops an incomplete character at the end.
func trimRune(b []byte) []byte {
	for i := 1; i <= 3 && i <= len(b); i++ {
		if tail := b[len(b)-i:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// isText reports whether bytes are UTF-8 with few control characters.
func isText(b []byte) bool {
	if len(b) < 3 || !utf8.Valid(b) {
		return false
	}
	odd := 0
	for _, r := range string(b) {
		if r < ' ' && r != '\n' && r != '\r' && r != '\t' || !unicode.IsGraphic(r) && r >= ' ' && !unicode.Is(unicode.Cf, r) {
			odd++
		}
	}
	return odd*20 <= len(b)
}

// comments scans the content of HTML comments.
func (s *span) comments() {
	for at := 0; ; {
		i := bytes.Index(s.raw[at:], []byte("<!--"))
		if i < 0 {
			return
		}
		start := at + i + len("<!--")
		n := bytes.Index(s.raw[start:], []byte("-->"))
		if n < 0 {
			n = min(len(s.raw)-start, overlap)
		}
		inner := span{job: s.job, raw: s.raw[start : start+n], how: inComment, at: start, block: s.raw, depth: s.depth + 1}
		if s.block != nil {
			inner.at, inner.block = s.at, s.block
		}
		if s.job.scanner.options.Injection {
			inner.injection()
		}
		at = start + n
	}
}

// escapes finds runs of escaped characters and scans the decoded text. Each
// begins with mark and is width bytes long; 0 means up to a semicolon.
func (s *span) escapes(mark string, width int, how string, decode func([]byte) string) {
	b := s.raw
	for at := 0; ; {
		i := bytes.Index(b[at:], []byte(mark))
		if i < 0 {
			return
		}
		start, count := at+i, 0
		end := start
		for end < len(b) {
			n := width
			if !bytes.HasPrefix(b[end:], []byte(mark)) {
				// What is not escaped may stand between.
				gap := bytes.Index(b[end:min(len(b), end+8)], []byte(mark))
				if gap <= 0 || bytes.IndexByte(b[end:end+gap], '\n') >= 0 {
					break
				}
				end += gap
				continue
			}
			if width == 0 {
				if n = bytes.IndexByte(b[end:min(len(b), end+12)], ';') + 1; n == 0 {
					break
				}
			}
			end += n
			count++
		}
		end = min(max(end, start+len(mark)), len(b))
		if count >= minEscapes {
			if t := decode(b[start:min(len(b), end+8)]); t != "" && isText([]byte(t)) {
				s.derive([]byte(t), start, how)
			}
		}
		at = end
	}
}

// unescape decodes the escapes of four digits after \u and of two after \x. It
// leaves everything else.
func unescape(b []byte) string {
	var out []byte
	for i := 0; i < len(b); {
		width := 0
		if b[i] == '\\' && i+1 < len(b) {
			width = map[byte]int{'u': 4, 'x': 2}[b[i+1]]
		}
		if width == 0 || i+2+width > len(b) {
			out = append(out, b[i])
			i++
			continue
		}
		var r rune
		for _, c := range b[i+2 : i+2+width] {
			r = r<<4 | rune(strings.IndexByte("0123456789abcdef", c|0x20)&0xf)
		}
		out = utf8.AppendRune(out, r)
		i += 2 + width
	}
	return string(out)
}

// rotatedWords are words of injections in rot13.
var rotatedWords = []string{"vtaber", "Vtaber", "VTABER", "vafgehpgvba", "VAFGEHPGVBA", "qvfertneq", "Qvfertneq", "cerivbhf", "CERIVBHF"}

// rotated scans rot13.
func (s *span) rotated() {
	hits, first := 0, -1
	for _, w := range rotatedWords {
		if i := bytes.Index(s.raw, []byte(w)); i >= 0 {
			hits++
			if first < 0 || i < first {
				first = i
			}
		}
	}
	if hits < 2 || s.how == "rot13" {
		return
	}
	s.derive(bytes.Map(turn13, s.raw[first:]), first, "rot13")
}

// spaced scans text with a space between letters: i g n o r e.
func (s *span) spaced() {
	b := s.raw
	for i := 0; i+11 < len(b); i++ {
		gap := b[i+1]
		if gap != ' ' && gap != '-' && gap != '.' && gap != '_' && gap != '*' || !isLetter(b[i]) || i > 0 && isLetter(b[i-1]) {
			continue
		}
		start, end, letters := i, i, 0
		var out []byte
		for end < len(b) && isLetter(b[end]) {
			out = append(out, b[end])
			letters++
			end++
			spaces := 0
			for end < len(b) && b[end] == gap {
				spaces++
				end++
			}
			if spaces == 0 {
				break
			}
			if spaces > 1 {
				out = append(out, ' ')
			}
		}
		if letters >= 12 {
			s.derive(out, start, "letters that stand apart")
		}
		i = max(i, end-1)
	}
}

func excerpt(b []byte) string { return text.Short(string(b), maxExcerpt) }
