package runtime

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// maxRecord is the longest line, in bytes, that [records] holds. What follows
// of a longer one is dropped.
const maxRecord = 4 << 20

// Bounds of texts in events, in bytes.
const (
	limitSaid   = 64 << 10 // of the model
	limitAnswer = 16 << 10 // of a tool
	limitCall   = 2 << 10  // a tool's input in short
)

// records splits what is written to it into lines, as they are. Not safe for
// concurrent use.
type records struct {
	take    func(line []byte) // valid until it returns
	dropped func(bytes int)   // of a line that is too long
	buf     []byte
	lost    int // bytes of the line that buf does not hold
}

// Write never fails.
func (r *records) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line, rest, found := bytes.Cut(p, []byte{'\n'})
		take := min(len(line), maxRecord-len(r.buf))
		r.buf = append(r.buf, line[:take]...)
		r.lost += len(line) - take
		if found {
			r.end()
		}
		p = rest
	}
	return n, nil
}

// end finishes a line. A buffer that a long line made is given back.
func (r *records) end() {
	switch {
	case r.lost > 0:
		r.dropped(len(r.buf) + r.lost)
	case len(bytes.TrimSpace(r.buf)) > 0:
		r.take(r.buf)
	}
	r.lost = 0
	if cap(r.buf) > 64<<10 {
		r.buf = nil
	}
	r.buf = r.buf[:0]
}

// flush finishes a line without an end.
func (r *records) flush() {
	if len(r.buf) > 0 || r.lost > 0 {
		r.end()
	}
}

// recordParser reads a program's output of one JSON object a line. What is none
// is a line of text. Both streams may be written at once.
type recordParser struct {
	stdout recordStream
	stderr *Lines
}

// recordStream is stdout.
type recordStream struct {
	records
	done func() // at the end
}

// newRecordParser calls read with each object of stdout and emits the rest as
// lines; read reports false for an object it does not know. done is called at the
// end.
func newRecordParser(emit func(Event), read func(object []byte) bool, done func()) *recordParser {
	var mu sync.Mutex // the streams are two goroutines
	line := func(stream, text string) { emit(Event{Kind: EventLine, Stream: stream, Text: text}) }
	p := &recordParser{}
	p.stderr = NewLines(func(text string) {
		mu.Lock()
		defer mu.Unlock()
		line("stderr", text)
	})
	text := NewLines(func(text string) { line("stdout", text) })
	p.stdout.take = func(b []byte) {
		mu.Lock()
		defer mu.Unlock()
		if b = bytes.TrimSpace(b); b[0] == '{' && read(b) {
			return
		}
		_, _ = text.Write(b) // never fails
		text.Flush()
	}
	p.stdout.dropped = func(n int) {
		mu.Lock()
		defer mu.Unlock()
		emit(Event{Kind: EventError, Stream: "stdout", Text: fmt.Sprintf("a line of %d bytes was left out", n)})
	}
	p.stdout.done = func() {
		mu.Lock()
		defer mu.Unlock()
		done()
	}
	return p
}

func (p *recordParser) Stdout() io.Writer { return &p.stdout }
func (p *recordParser) Stderr() io.Writer { return p.stderr }

func (p *recordParser) Close() {
	p.stdout.flush()
	p.stderr.Flush()
	p.stdout.done()
}

// clean is a text of an event: clean, and not longer than limit bytes and a word
// about the rest.
func clean(text string, limit int) string {
	if len(text) <= limit {
		return CleanText(text)
	}
	cut := limit
	for cut > 0 && !utf8.RuneStart(text[cut]) {
		cut--
	}
	return CleanText(text[:cut]) + fmt.Sprintf("... (%d bytes more)", len(text)-cut)
}

// short is the input of a tool in short: the first of the named members, or
// all of it.
func short(input json.RawMessage, names ...string) string {
	var members map[string]json.RawMessage
	if json.Unmarshal(input, &members) == nil {
		for _, name := range names {
			var text string
			if json.Unmarshal(members[name], &text) == nil && text != "" {
				return clean(text, limitCall)
			}
		}
	}
	return clean(strings.ToValidUTF8(string(input), "\uFFFD"), limitCall)
}

// joined are the texts that are not empty, on lines of their own.
func joined(texts ...string) string {
	var out []string
	for _, t := range texts {
		if t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, "\n")
}

// tokens is a count as a program says it; one that cannot be is none.
func tokens(n int64) int64 { return max(n, 0) }
