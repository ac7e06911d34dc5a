package runtime

import (
	"bytes"
	"strings"
	"unicode"
	"unicode/utf8"

	"agentsh/internal/lazy"
)

// MaxLine is the longest line, in bytes, that [Lines] emits. A longer one is
// emitted in pieces.
const MaxLine = 16 << 10

// Lines splits its input into lines and cleans them. Not safe for concurrent
// use.
type Lines struct {
	emit func(string)
	buf  []byte
}

// NewLines returns a writer that calls emit with each cleaned line, without its
// line end.
func NewLines(emit func(line string)) *Lines { return &Lines{emit: emit} }

// Write never fails.
func (l *Lines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line, rest, found := bytes.Cut(p, []byte{'\n'})
		l.add(line)
		if found {
			l.line(len(l.buf))
		}
		p = rest
	}
	return n, nil
}

// add appends a part of a line and emits full pieces.
func (l *Lines) add(part []byte) {
	for len(l.buf)+len(part) > MaxLine {
		take := MaxLine - len(l.buf)
		l.buf = append(l.buf, part[:take]...)
		part = part[take:]
		l.line(whole(l.buf))
	}
	l.buf = append(l.buf, part...)
}

// line emits the first n bytes of the buffer.
func (l *Lines) line(n int) {
	l.emit(Clean(string(l.buf[:n])))
	l.buf = append(l.buf[:0], l.buf[n:]...)
}

// Flush emits an unfinished last line.
func (l *Lines) Flush() {
	if len(l.buf) > 0 {
		l.line(len(l.buf))
	}
}

// whole is the length of b without an incomplete character at its end.
func whole(b []byte) int {
	for back := 1; back < utf8.UTFMax && back < len(b); back++ {
		if tail := b[len(b)-back:]; utf8.RuneStart(tail[0]) {
			if !utf8.FullRune(tail) {
				return len(b) - back
			}
			break
		}
	}
	return len(b)
}

// escapes matches the terminal control sequences of ECMA-48: CSI, the strings
// (OSC, DCS, SOS, PM, APC) with their terminator, and the short ones.
var escapes = lazy.Regexp("\x1b\\[[0-?]*[ -/]*[@-~]|\x1b[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|\x1b[ -/]*[0-~]")

// Clean makes one line of an agent's output safe to print. It removes terminal
// escapes, control characters and direction characters, and replaces bytes that
// are not UTF-8. It breaks the prefix of every text that a CI system would
// interpret as a command.
func Clean(line string) string {
	line = strings.TrimSuffix(line, "\r")
	if strings.Contains(line, "\x1b") {
		line = escapes().ReplaceAllString(line, "")
	}
	line = strings.Map(visible, strings.ToValidUTF8(line, "\uFFFD"))
	return disarm(line)
}

func visible(r rune) rune {
	switch {
	case r == '\t':
		return r
	case r == '\r':
		return ' '
	case unicode.IsControl(r), r == '\u2028', r == '\u2029', r == '\ufeff',
		r >= '\u200b' && r <= '\u200f', r >= '\u202a' && r <= '\u202e', r >= '\u2066' && r <= '\u2069',
		r >= 0xe0000 && r <= 0xe007f:
		return -1
	}
	return r
}

// disarm breaks the prefixes of workflow commands: "::name::" and its older
// form "##[name]" of GitHub, which may be anywhere in a line, and "##vso[" of
// Azure.
func disarm(line string) string {
	text := strings.TrimLeftFunc(line, unicode.IsSpace)
	if strings.HasPrefix(text, "::") {
		line = line[:len(line)-len(text)] + ":" + strings.TrimLeft(text, ":")
	}
	line = strings.ReplaceAll(line, "##[", "# [")
	return strings.ReplaceAll(line, "##vso[", "# vso[")
}

// CleanText cleans each line of a text.
func CleanText(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = Clean(line)
	}
	return strings.Join(lines, "\n")
}
