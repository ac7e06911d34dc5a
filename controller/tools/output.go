package tools

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"agentsh/internal/text"
)

// Limits of what is kept and shown of the output of commands, in bytes.
const (
	maxKept  = 8 << 20  // of one command; beyond it the oldest is dropped
	maxAll   = 64 << 20 // of all commands that run, and of all that have ended
	maxShown = 32 << 10 // in one result
)

// output is the output of one command: standard output and standard error as they came. It
// keeps the newest bytes. It is safe for concurrent use.
type output struct {
	mu      sync.Mutex
	kept    []byte
	room    int // bytes that are kept; at times half as much again
	total   int64
	changed chan struct{} // closed at the next write or the end; nil: nobody waits
	ended   bool
}

// Write never fails: a command is not blocked by what is kept.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.total += int64(len(p))
	o.kept = append(o.kept, p...)
	if len(o.kept) > o.room*3/2 { // seldom, so that a byte is moved few times
		o.kept = append(make([]byte, 0, o.room*7/4), o.kept[len(o.kept)-o.room:]...)
	}
	o.wake()
	return len(p), nil
}

// limit sets how many bytes are kept from now on.
func (o *output) limit(room int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.room = room
	if len(o.kept) > room*3/2 {
		o.kept = append([]byte(nil), o.kept[len(o.kept)-room:]...)
	}
}

// wake wakes those that wait. The caller holds mu.
func (o *output) wake() {
	if o.changed != nil {
		close(o.changed)
		o.changed = nil
	}
}

// end says that nothing follows, and frees what is above the limit.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if over := len(o.kept) - o.room; over > 0 {
		o.kept = o.kept[over:]
	}
	o.kept = append([]byte(nil), o.kept...)
	o.ended = true
	o.wake()
}

func (o *output) size() (total int64, kept int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.total, len(o.kept)
}

// page is a part of an output.
type page struct {
	text       string
	from, next int64 // offsets of its first byte and of the byte after it
	total      int64
	ended      bool
}

// read returns up to limit bytes from an offset. A character is never cut, unless the
// output is no text. An offset whose bytes were dropped is an error.
func (o *output) read(from int64, limit int) (page, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := o.total - int64(len(o.kept))
	switch {
	case from < 0:
		return page{}, fmt.Errorf("offset %d is negative: offsets count bytes from 0", from)
	case from > o.total:
		return page{}, fmt.Errorf("offset %d is after the end of the output, which has %d bytes so far", from, o.total)
	case from < first:
		return page{}, fmt.Errorf("the first %d bytes are dropped: read from there, or repeat the command with its output in a file", first)
	}
	rest := o.kept[from-first:]
	part := whole(rest[:min(len(rest), limit)], len(rest) > limit || !o.ended)
	return page{
		text: strings.ToValidUTF8(string(part), "\uFFFD"), from: from, next: from + int64(len(part)), total: o.total, ended: o.ended,
	}, nil
}

// whole leaves out a character that is cut at the end.
func whole(p []byte, cut bool) []byte {
	for i := 1; cut && i < utf8.UTFMax && i < len(p); i++ {
		if last := p[len(p)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				return p[:len(p)-i]
			}
			return p
		}
	}
	return p
}

// summary is the whole output, or its beginning and its end.
func (o *output) summary() (shown string, cut bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.total == int64(len(o.kept)) && len(o.kept) <= maxShown {
		return strings.ToValidUTF8(string(o.kept), "\uFFFD"), false
	}
	head := whole(o.kept[:min(len(o.kept), maxShown/4)], true)
	if o.total > int64(len(o.kept)) {
		head = nil
	}
	tail := o.kept[len(o.kept)-min(len(o.kept), maxShown*3/4):]
	for i := 0; i < utf8.UTFMax && len(tail) > 0 && !utf8.RuneStart(tail[0]); i++ {
		tail = tail[1:]
	}
	left := o.total - int64(len(head)) - int64(len(tail))
	shown = fmt.Sprintf("%s\n[%s left out: read them with exec_output]\n%s", head, text.Count(left, "byte"), tail)
	return strings.ToValidUTF8(shown, "\uFFFD"), true
}

// wait waits until the output has more than an offset, or has ended, or ctx ends.
func (o *output) wait(ctx context.Context, offset int64) {
	for {
		o.mu.Lock()
		more := o.ended || o.total > offset
		if o.changed == nil {
			o.changed = make(chan struct{})
		}
		changed := o.changed
		o.mu.Unlock()
		if more {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// lastLine is the last line that is not empty, shortened.
func (o *output) lastLine() (line string, total int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	tail := strings.TrimRight(string(o.kept[len(o.kept)-min(len(o.kept), 400):]), "\r\n ")
	return text.Short(strings.ToValidUTF8(tail[strings.LastIndexAny(tail, "\r\n")+1:], ""), 200), o.total
}
