package runtime

import (
	"bytes"
	"fmt"
)

// maxObject is the longest JSON line that is parsed, in bytes. Longer lines are
// skipped and reported.
const maxObject = 4 << 20

// jsonLines splits its input into lines. Lines that begin as a JSON object are
// passed whole to object. Other lines are cleaned and passed to text, in pieces
// if they are long. Not safe for concurrent use.
type jsonLines struct {
	object func(line []byte) bool // false: it is not an object
	text   *Lines
	buf    []byte
	state  lineState
	lost   int // bytes of the line that is skipped
}

// lineState is the kind of the current line.
type lineState int

const (
	lineStart lineState = iota
	lineObject
	lineText
	lineLost
)

func newJSONLines(object func(line []byte) bool, text func(line string)) *jsonLines {
	return &jsonLines{object: object, text: NewLines(text)}
}

// Write never fails.
func (j *jsonLines) Write(p []byte) (int, error) {
	n := len(p)
	for len(p) > 0 {
		line, rest, found := bytes.Cut(p, []byte{'\n'})
		j.add(line)
		if found {
			j.end()
		}
		p = rest
	}
	return n, nil
}

func (j *jsonLines) add(part []byte) {
	if j.state == lineStart {
		if part = bytes.TrimLeft(part, " \t\r"); len(part) == 0 {
			return
		}
		j.state = lineText
		if part[0] == '{' {
			j.state = lineObject
		}
	}
	switch j.state {
	case lineText:
		_, _ = j.text.Write(part) // never fails
	case lineObject:
		if j.buf = append(j.buf, part...); len(j.buf) > maxObject {
			j.state, j.lost, j.buf = lineLost, len(j.buf), nil
		}
	case lineLost:
		j.lost += len(part)
	}
}

// end is called at the end of a line, and at the end of the output.
func (j *jsonLines) end() {
	switch j.state {
	case lineText:
		_, _ = j.text.Write([]byte{'\n'})
	case lineObject:
		if !j.object(j.buf) {
			_, _ = j.text.Write(append(j.buf, '\n'))
		}
	case lineLost:
		j.text.emit(fmt.Sprintf("(a line of %d bytes was left out)", j.lost))
	}
	if cap(j.buf) > MaxLine {
		j.buf = nil
	}
	j.state, j.lost, j.buf = lineStart, 0, j.buf[:0]
}

// Flush processes an unfinished last line.
func (j *jsonLines) Flush() { j.end() }
