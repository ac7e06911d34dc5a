package audit

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// Follower reads the events of a log in order while it grows. It reads the file itself: a
// slow follower misses nothing and needs no memory of the writer. It is for one goroutine,
// which closes it.
type Follower struct {
	log  *Log
	from uint64
	next int64 // offset of the next line
	stop int64 // offset at which the wanted events end; -1: none
	in   *bufio.Reader
	src  *section
}

// mark is where an event begins in the file of a log. A follower of late events starts at one.
type mark struct {
	seq    uint64
	offset int64
}

// extent says where the events of a log are in its file.
type extent struct {
	size  int64 // bytes of whole lines
	marks []mark
}

// markEvery is the number of events between two marks.
const markEvery = 16

// before is the offset of an event that is not after event from.
func (x *extent) before(from uint64) int64 {
	i := sort.Search(len(x.marks), func(i int) bool { return x.marks[i].seq > from })
	if i == 0 {
		return 0
	}
	return x.marks[i-1].offset
}

// section reads the bytes of a log up to a limit that moves.
type section struct {
	file       *os.File
	pos, limit int64
}

func (s *section) Read(p []byte) (int, error) {
	if s.pos >= s.limit {
		return 0, io.EOF
	}
	n, err := s.file.ReadAt(p[:min(int64(len(p)), s.limit-s.pos)], s.pos)
	s.pos += int64(n)
	if n > 0 {
		err = nil
	}
	return n, err
}

// Subscribe returns a follower that starts with event from; 0 and 1 are the
// first event of the log.
func (l *Log) Subscribe(from uint64) (*Follower, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, os.ErrClosed
	}
	// The descriptor of the follower stays open when the log is closed.
	fd, err := unix.FcntlInt(l.file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("follow the audit log: %w", err)
	}
	begin := l.before(from)
	src := &section{file: os.NewFile(uintptr(fd), l.file.Name()), pos: begin}
	return &Follower{log: l, from: from, next: begin, stop: -1, src: src, in: bufio.NewReaderSize(src, 16<<10)}, nil
}

// Close ends the follower.
func (f *Follower) Close() error { return f.src.file.Close() }

// ErrStopped is the end of the events that a follower reads.
var ErrStopped = errors.New("the end of the wanted events")

// StopHere ends the follower after the last event that the log has now.
func (f *Follower) StopHere() {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.stop = f.log.size
}

// Next waits for the next event. It returns [os.ErrClosed] after the last event
// of a closed log, [ErrStopped] where StopHere was called, and the error of ctx when that
// ends first.
func (f *Follower) Next(ctx context.Context) (wire.Event, error) {
	for {
		if err := f.wait(ctx); err != nil {
			return wire.Event{}, err
		}
		line, err := readLine(f.in)
		if err != nil {
			return wire.Event{}, fmt.Errorf("follow the audit log: %w", err)
		}
		f.next += int64(len(line)) + 1
		var e wire.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return wire.Event{}, fmt.Errorf("follow the audit log: %w", err)
		}
		if e.Seq >= f.from {
			return e, nil
		}
	}
}

// wait returns nil once a whole line can be read.
func (f *Follower) wait(ctx context.Context) error {
	if f.stop >= 0 && f.next >= f.stop {
		return ErrStopped
	}
	for {
		l := f.log
		l.mu.Lock()
		size, closed := l.size, l.closed
		if l.grown == nil {
			l.grown = make(chan struct{})
		}
		grown := l.grown
		l.mu.Unlock()
		if size > f.next {
			f.src.limit = size
			return nil
		}
		if closed {
			return os.ErrClosed
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
