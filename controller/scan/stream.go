package scan

import (
	"bytes"
	"context"
	"errors"
	"io"
	"unicode/utf8"

	"agentsh/internal/text"
)

const (
	blockBytes = 128 << 10 // read at a time
	overlap    = 4 << 10   // seen again with the next block, so that nothing is cut in two
	maxExcerpt = 80        // characters
	maxDepth   = 3         // of texts decoded from texts
)

// job is the scan of one text.
type job struct {
	scanner *Scanner
	ctx     context.Context
	name    string
	kind    Kind
	found   []Finding
	dropped bool                          // more were found than are kept
	seen    map[Finding]bool              // by what they say, as blocks overlap
	persist settingsBuffer                // the beginning, where the whole is parsed
	passed  bool                          // a byte order mark at the start was seen
	note    func(from, to int, f Finding) // gets each finding with its bytes; nil: not called

	line, column int // of the first byte of the block
}

// read scans r block by block.
func (j *job) read(r io.Reader) error {
	buf := make([]byte, 0, blockBytes+overlap)
	for first := true; ; first = false {
		if err := j.ctx.Err(); err != nil {
			return err
		}
		old := len(buf)
		n, err := io.ReadFull(r, buf[old:blockBytes+overlap])
		buf = buf[:old+n]
		end := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !end {
			return err
		}
		j.persist.add(buf[old:])
		if n > 0 || first {
			if err := j.block(buf); err != nil {
				return err
			}
		}
		if end {
			return j.settings()
		}
		buf = j.slide(buf)
	}
}

// slide drops all but the last overlap bytes of a block, at a character
// boundary.
func (j *job) slide(buf []byte) []byte {
	cut := max(len(buf)-overlap, 0)
	for cut < len(buf) && !utf8.RuneStart(buf[cut]) {
		cut++
	}
	j.line, j.column = j.position(buf, cut)
	j.passed = true
	return buf[:copy(buf, buf[cut:])]
}

// block runs the scanners over one block.
func (j *job) block(b []byte) error {
	s := span{job: j, raw: b}
	s.plainText()
	s.decode()
	if j.scanner.options.Model != nil {
		return s.model()
	}
	return nil
}

// plainText runs the scanners of plain text.
func (s *span) plainText() {
	o := s.job.scanner.options
	s.job.scanner.findPlanted(s)
	if o.Unicode {
		s.unicode()
	}
	if o.Secrets {
		s.secrets()
	}
	if o.URLs {
		s.urls()
	}
	if o.Injection {
		s.injection()
	}
}

// span is a piece of text: a block, or a text decoded from one.
type span struct {
	job   *job
	raw   []byte
	how   string // how it was hidden: "base64", "an HTML comment"; empty: in plain sight
	at    int    // of a decoded span: where in the outermost block it was
	block []byte // of a decoded span: the outermost block
	depth int
}

// derive scans a text that was decoded from s at an offset.
func (s *span) derive(raw []byte, at int, how string) {
	if s.depth >= maxDepth || len(raw) == 0 {
		return
	}
	inner := span{job: s.job, raw: raw, how: how, at: at, block: s.raw, depth: s.depth + 1}
	if s.block != nil {
		inner.at, inner.block, inner.how = s.at, s.block, s.how+" in "+how
	}
	inner.plainText()
	inner.decode()
}

// hidden reports whether a reader sees the span in another form.
func (s *span) hidden() bool { return s.how != "" }

// report adds a finding at bytes [from, to) of the span.
func (s *span) report(from, to int, f Finding) {
	if f.Excerpt == "" {
		f.Excerpt = text.Short(string(s.raw[from:min(to, from+4*maxExcerpt, len(s.raw))]), maxExcerpt)
	}
	if s.hidden() {
		f.Message += " (hidden in " + s.how + ")"
	}
	block, at := s.raw, from
	if s.block != nil {
		block, at = s.block, s.at
	}
	f.Line, f.Column = s.job.position(block, at)
	if s.job.note != nil {
		end := to
		if s.block != nil {
			end = at
		}
		s.job.note(at, end, f)
	}
	s.job.add(f)
}

// add adds a finding unless it is already there.
func (j *job) add(f Finding) {
	f.File = j.name
	key := f
	key.Excerpt = "" // cut short where a block ends
	switch {
	case j.seen[key]:
	case len(j.found) >= maxFindings:
		j.tooMany(f)
	default:
		j.seen[key] = true
		j.found = append(j.found, f)
	}
}

// tooMany reports once that findings were left out, with the highest severity
// among them.
func (j *job) tooMany(f Finding) {
	if !j.dropped {
		j.dropped = true
		j.found = append(
			j.found,
			Finding{
				File:     j.name,
				Line:     f.Line,
				Column:   f.Column,
				Rule:     RuleLimit,
				Severity: f.Severity,
				Message:  "more findings follow",
				Hint:     "look at the whole file",
			},
		)
		return
	}
	last := &j.found[len(j.found)-1]
	last.Severity = max(last.Severity, f.Severity)
}

// position returns the line and column of an offset of the block.
func (j *job) position(block []byte, at int) (line, column int) {
	before := block[:at]
	newlines := bytes.Count(before, []byte("\n"))
	if newlines == 0 {
		return j.line, j.column + utf8.RuneCount(before)
	}
	return j.line + newlines, 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}
