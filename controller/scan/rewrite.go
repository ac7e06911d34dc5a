package scan

import (
	"bytes"
	"context"
	"unicode/utf8"
)

// mark is a finding with its bytes in the outermost text.
type mark struct {
	from, to int
	f        Finding
}

// marks scans a text as one block.
func (s *Scanner) marks(kind Kind, b []byte) []mark {
	var out []mark
	j := &job{scanner: s, ctx: context.Background(), name: "text", kind: kind, seen: map[Finding]bool{}, line: 1, column: 1}
	j.note = func(from, to int, f Finding) { out = append(out, mark{from, to, f}) }
	sp := span{job: j, raw: b}
	sp.plainText()
	sp.decode()
	return out
}

// cut is a part of a text to replace.
type cut struct{ from, to int }

// rewrite replaces parts of a text and returns their number. Adjacent parts
// count as one.
func rewrite(b []byte, cuts []cut, note string) ([]byte, int) {
	hidden := make([]bool, len(b)+1)
	for _, c := range cuts {
		for i := max(c.from, 0); i < min(c.to, len(b)); i++ {
			hidden[i] = true
		}
	}
	out, n := make([]byte, 0, len(b)), 0
	for i, c := range b {
		switch {
		case !hidden[i]:
			out = append(out, c)
		case i == 0 || !hidden[i-1]:
			out = append(out, note...)
			n++
		}
	}
	return out, n
}

// Suppress removes lines that read like instructions to an agent, and returns
// the number of removed parts. It judges as in files that agents obey, because
// nobody knows who wrote a tool's output.
func (s *Scanner) Suppress(b []byte) ([]byte, int) {
	var cuts []cut
	found := s.marks(Instructions, b)
	for i, m := range found {
		if m.f.Severity < High && m.f.Rule != RuleMarker || !instructs[m.f.Rule] {
			continue
		}
		if m.f.Severity == Critical || m.f.Rule == RuleInjection || m.f.Rule == RuleMarker || accompanied(found, i) {
			cuts = append(cuts, lines(b, m))
		}
	}
	return rewrite(b, cuts, withheld)
}

const withheld = "[withheld by agentsh: reads like instructions to an agent]"

var instructs = map[string]bool{RuleInjection: true, RuleConceal: true, RuleExfiltrate: true, RuleRole: true, RuleMarker: true}

// accompanied reports whether another kind of instruction stands close, as in
// [job.escalate].
func accompanied(found []mark, i int) bool {
	for _, m := range found {
		if apart := m.f.Line - found[i].f.Line; m.f.Rule != found[i].f.Rule && instructs[m.f.Rule] && m.f.Severity >= High && apart <= together &&
			-apart <= together {
			return true
		}
	}
	return false
}

// lines returns the whole lines of a mark, and the rest of an encoding or
// comment that begins on the last one.
func lines(b []byte, m mark) cut {
	c := cut{from: bytes.LastIndexByte(b[:m.from], '\n') + 1, to: m.to}
	lineEnd := func() {
		if n := bytes.IndexByte(b[c.to:], '\n'); n >= 0 {
			c.to += n
		} else {
			c.to = len(b)
		}
	}
	c.to = min(max(c.to, m.from), len(b))
	lineEnd()
	if m.from >= 4 && bytes.HasPrefix(b[m.from-4:], []byte("<!--")) {
		if n := bytes.Index(b[m.from:], []byte("-->")); n >= 0 {
			c.to = max(c.to, m.from+n)
			lineEnd()
		}
	}
	for c.to < len(b) {
		rest := b[c.to+1:]
		n := bytes.IndexByte(rest, '\n')
		if n < 0 {
			n = len(rest)
		}
		if line := bytes.TrimSpace(rest[:n]); len(line) < minBase64 || !encodedOnly(line) {
			break
		}
		c.to += 1 + n
	}
	return c
}

func encodedOnly(line []byte) bool {
	for _, c := range line {
		if encodedClass[c] == 0 {
			return false
		}
	}
	return true
}

// Normalize removes invisible characters, characters that change the order of
// text, where the text does not need them, and terminal escape sequences. It
// returns the number of removed parts.
func (s *Scanner) Normalize(b []byte) ([]byte, int) {
	b, n := withoutEscapes(b)
	if bytes.IndexByte(b, 0) >= 0 || isASCII(b) {
		return b, n
	}
	var cuts []cut
	for _, m := range s.marks(Instructions, b) {
		if m.f.Rule != RuleHidden && m.f.Rule != RuleBidi {
			continue
		}
		from, to := m.from, min(m.to, len(b))
		if m.f.Rule == RuleBidi {
			line := lines(b, mark{from: m.from, to: m.from})
			from, to = line.from, line.to
		}
		first, _ := utf8.DecodeRune(b[from:])
		for i := from; i < to; {
			r, size := utf8.DecodeRune(b[i:])
			if isInvisible(r) || r >= 0xE0000 && r <= 0xE007F || isSelector(r) && isSelector(first) || m.f.Rule == RuleBidi && isBidi(r) {
				cuts = append(cuts, cut{i, i + size})
			}
			i += size
		}
	}
	out, removed := rewrite(b, cuts, "")
	return out, n + removed
}

// withoutEscapes drops control sequences and commands of terminals.
// See ECMA-48, 5.4 and 8.3.89.
func withoutEscapes(b []byte) ([]byte, int) {
	if bytes.IndexByte(b, 0x1b) < 0 {
		return b, 0
	}
	var cuts []cut
	for i := 0; i+1 < len(b); i++ {
		if b[i] != 0x1b {
			continue
		}
		end := i + 2
		switch b[i+1] {
		case '[':
			for end < len(b) && b[end] >= 0x20 && b[end] <= 0x3f {
				end++
			}
			end++
		case ']', 'P', 'X', '^', '_':
			for end < len(b) && b[end] != 0x07 && b[end] != 0x1b && b[end] != '\n' {
				end++
			}
			if end+1 < len(b) && b[end] == 0x1b && b[end+1] == '\\' {
				end++
			}
			if end < len(b) && b[end] != '\n' {
				end++
			}
		}
		cuts = append(cuts, cut{i, min(end, len(b))})
		i = end - 1
	}
	return rewrite(b, cuts, "")
}

// Redact replaces canaries, secrets of the run and known kinds of secrets, and
// returns their number. A text that holds a split value is withheld as a whole.
func (s *Scanner) Redact(b []byte) ([]byte, int) {
	n := 0
	for _, p := range s.planted {
		note := []byte("[redacted " + p.rule + "]")
		for _, spelling := range p.spellings {
			if c := bytes.Count(b, spelling); c > 0 {
				n += c
				b = bytes.ReplaceAll(b, spelling, note)
			}
		}
	}
	j := &job{scanner: s, ctx: context.Background(), name: "text", kind: Output, seen: map[Finding]bool{}, line: 1, column: 1}
	whole := span{job: j, raw: b}
	s.findPlanted(&whole)
	if len(j.found) > 0 {
		return []byte("[redacted " + j.found[0].Rule + "]"), n + 1
	}
	b, more := s.fingerprints.redact(b)
	n += more
	if !s.options.Secrets {
		return b, n
	}
	out := make([]byte, 0, len(b))
	at := 0
	for _, hit := range findSecrets(b) {
		if hit.from < at {
			continue
		}
		out = append(append(out, b[at:hit.from]...), "[redacted "+hit.what+"]"...)
		at = hit.to
		if hit.what == privateKey {
			at = keyEnd(b, hit.to)
		}
		n++
	}
	return append(out, b[at:]...), n
}

// keyEnd returns the end of a key that begins before at.
func keyEnd(b []byte, at int) int {
	const end = "-----END"
	if n := bytes.Index(b[at:min(len(b), at+16<<10)], []byte(end)); n >= 0 {
		at += n + len(end)
		if n := bytes.Index(b[at:min(len(b), at+40)], []byte("-----")); n >= 0 {
			at += n + len("-----")
		}
		return at
	}
	for at < len(b) && (encodedClass[b[at]] != 0 || b[at] == ' ') {
		at++
	}
	return at
}
