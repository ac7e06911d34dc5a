package runtime

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds of texts in events, in bytes.
const (
	limitText   = 64 << 10 // of the model
	limitAnswer = 16 << 10 // of a tool
	limitCall   = 2 << 10  // a tool's input, shortened
)

// recordParser parses the output of a program that prints one JSON object a
// line. Both streams may be written concurrently.
type recordParser struct {
	mu     sync.Mutex // locked while data is parsed or an event is emitted
	stdout *jsonLines
	stderr *Lines
	done   func()
}

// newRecordParser calls read with each object of stdout and emits the rest as
// lines. read reports false for an unknown object. done is called at the end.
func newRecordParser(emit func(Event), read func(object []byte) bool, done func()) *recordParser {
	line := func(stream string) func(string) {
		return func(text string) { emit(Event{Kind: EventLine, Stream: stream, Text: text}) }
	}
	return &recordParser{stdout: newJSONLines(read, line("stdout")), stderr: NewLines(line("stderr")), done: done}
}

func (p *recordParser) Stdout() io.Writer { return lockedWriter{&p.mu, p.stdout} }
func (p *recordParser) Stderr() io.Writer { return lockedWriter{&p.mu, p.stderr} }

func (p *recordParser) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stdout.Flush()
	p.stderr.Flush()
	p.done()
}

// lockedWriter locks a mutex during each write.
type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// clean cleans a text of an event and cuts it to limit bytes, followed by a
// note about the rest.
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

// short is the input of a tool, shortened: the first of the named members, or
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

// joined joins the texts that are not empty, each on its own line.
func joined(texts ...string) string {
	var out []string
	for _, t := range texts {
		if t != "" {
			out = append(out, t)
		}
	}
	return strings.Join(out, "\n")
}

// tokens is a reported count; a negative one is 0.
func tokens(n int64) int64 { return max(n, 0) }
