package foreground

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"
)

// Bounds of what [Shown] remembers.
const (
	maxShown     = 1000 // lines
	maxShownLine = 4096 // bytes
)

// Shown remembers the lines of a command's output that begin with a prefix. A program
// that prints the answer of a refused request shows the reason itself. It is safe for
// concurrent use.
type Shown struct {
	prefix string

	mu    sync.Mutex
	lines map[string]time.Time // when it was written last
}

// NewShown returns a memory of lines that begin with prefix.
func NewShown(prefix string) *Shown { return &Shown{prefix: prefix, lines: map[string]time.Time{}} }

// Since reports whether a line was written at a time or later. The zero time is always.
func (s *Shown) Since(line string, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, shown := s.lines[line]
	return shown && !last.Before(at)
}

// Watch returns a writer to w that remembers lines. Only one Write may run at a time.
func (s *Shown) Watch(w io.Writer) io.Writer { return &shownWriter{s: s, w: w} }

func (s *Shown) add(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.lines) == maxShown {
		clear(s.lines)
	}
	s.lines[line] = time.Now()
}

type shownWriter struct {
	s    *Shown
	w    io.Writer
	line []byte // the beginning of the line that is being written
	skip bool   // the rest of it is of no interest
	back bool   // a carriage return came last: what follows begins the line again
}

// File returns the file that is written to, or nil.
func (o *shownWriter) File() *os.File { return FileOf(o.w) }

func (o *shownWriter) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	for rest := p[:n]; len(rest) > 0; {
		part, after, ended := bytes.Cut(rest, []byte("\n"))
		o.read(part)
		if ended {
			if !o.skip && len(o.line) >= len(o.s.prefix) {
				o.s.add(string(bytes.TrimSuffix(o.line, []byte("\r"))))
			}
			o.begin()
		}
		rest = after
	}
	return n, err
}

func (o *shownWriter) begin() { o.line, o.skip, o.back = o.line[:0], false, false }

// read takes a part of a line.
func (o *shownWriter) read(part []byte) {
	if len(part) == 0 {
		return
	}
	if o.back {
		o.begin()
	}
	o.back = part[len(part)-1] == '\r'
	if i := bytes.LastIndexByte(part[:len(part)-1], '\r'); i >= 0 {
		o.line, o.skip, part = o.line[:0], false, part[i+1:]
	}
	if o.skip {
		return
	}
	o.line = append(o.line, part[:min(len(part), maxShownLine+1-len(o.line))]...)
	known := min(len(o.line), len(o.s.prefix))
	o.skip = len(o.line) > maxShownLine || string(o.line[:known]) != o.s.prefix[:known]
}

// SameFile reports whether two outputs are one file, such as a terminal.
func SameFile(a, b any) bool {
	f, g := FileOf(a), FileOf(b)
	if f == nil || g == nil {
		return a != nil && a == b
	}
	i, err := f.Stat()
	if err != nil {
		return false
	}
	j, err := g.Stat()
	return err == nil && os.SameFile(i, j)
}
