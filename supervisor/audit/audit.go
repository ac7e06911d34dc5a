// Package audit writes the log of commands and decisions: JSON lines that are numbered and
// chained by hashes. An anchor beside the log shows that its end was not cut off.
//
// audit.go has the writer; encode.go and chain.go make its lines, anchor.go its anchor.
// follow.go and read.go read a log while it grows.
package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// Log is an open audit log. A file has one writer. The methods are safe for concurrent
// use.
//
// If [Log.Append] returns an error, the event is not in the log. The action that the event
// describes must then be denied.
type Log struct {
	opts   Options
	file   lockedFile
	anchor *anchor

	syncMu sync.Mutex // taken before mu
	synced uint64     // highest sequence number known to be on disk

	mu     sync.Mutex
	extent // of the file
	head   Head
	line   []byte // reused for the next event
	broken error  // set when nothing more can be written to the file
	closed bool
	grown  chan struct{} // closed at the next append; nil: nobody waits

	dirty   chan struct{} // has an element when an event waits for fdatasync
	stop    chan struct{}
	stopped sync.WaitGroup
}

// Options are the inputs of [Open] besides the path. Only KeyFile is required.
type Options struct {
	// KeyFile has the key of the anchor. It is created with a new log, mode 0600. No
	// sandbox may be able to read it.
	KeyFile string
	// Redact may change an event before it is numbered and hashed. It gets copies of the
	// slices. Nil changes nothing.
	Redact func(*wire.Event)
	// SyncDelay is the most time until the event of an allowed request is on disk; 0 is one
	// second. Every other event is on disk when Append returns.
	SyncDelay time.Duration
}

// ErrNotWritten is wrapped by every error of [Log.Append].
var ErrNotWritten = errors.New("write audit event")

// MaxLine is the longest line, in bytes, its newline included.
const MaxLine = 1 << 20

// reusedLine is the longest line whose memory is reused for the next one, in bytes.
const reusedLine = 8 << 10

// Open opens the log at path, or creates it with mode 0600, and continues its chain. It
// moves an unfinished last line, which a crash can leave, to a file beside the log, and
// writes an event about that. A file that it created and that got no event is removed by
// [Log.Close]. It refuses
//   - a log that another process has open,
//   - a log whose last whole line is not a valid event,
//   - a log that is shorter than its anchor says.
func Open(path string, opts Options) (*Log, error) {
	if opts.SyncDelay == 0 {
		opts.SyncDelay = time.Second
	}
	f, err := openLocked(path)
	if err != nil {
		return nil, fmt.Errorf("open audit log %s: %w", path, err)
	}
	l := &Log{opts: opts, file: f, dirty: make(chan struct{}, 1), stop: make(chan struct{})}
	if err := l.resume(path); err != nil {
		return nil, errors.Join(fmt.Errorf("open audit log %s: %w", path, err), l.removeUnused(), f.Close())
	}
	l.stopped.Add(1)
	go l.flush()
	return l, nil
}

// maxTries is how often a log is opened that others remove meanwhile.
const maxTries = 1000

// lockedFile is the file of a log.
type lockedFile struct {
	*os.File
	made bool // it did not exist before
}

// openLocked opens the file of a log, which it locks.
func openLocked(path string) (lockedFile, error) {
	for range maxTries {
		made := true
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
		if errors.Is(err, os.ErrExist) {
			made = false
			f, err = os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
			if errors.Is(err, os.ErrNotExist) {
				continue // it was removed between the two calls
			}
		}
		if err != nil {
			return lockedFile{}, err
		}
		if err := lock(f); err != nil {
			return lockedFile{}, errors.Join(err, f.Close())
		}
		if isAt(f, path) {
			return lockedFile{f, made}, nil
		}
		// The process that had it locked removed it.
		if err := f.Close(); err != nil {
			return lockedFile{}, err
		}
	}
	return lockedFile{}, errors.New("its name leads to another file each time")
}

// lock checks that a file can have a log, and locks it.
func lock(f *os.File) error {
	info, err := f.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return errors.New("not a regular file")
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("mode %04o gives others access, want 0600", info.Mode().Perm())
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errors.New("another process writes it")
	}
	return err
}

// isAt reports whether path names an open file.
func isAt(f *os.File, path string) bool {
	at, err := os.Lstat(path)
	if err != nil {
		return false
	}
	info, err := f.Stat()
	return err == nil && os.SameFile(at, info)
}

// removeUnused removes the file and its anchor if the log created it and has no event: the
// session did not begin. It is still locked, so that no other process writes to it.
func (l *Log) removeUnused() error {
	path := l.file.Name()
	if !l.file.made || l.head.Seq > 0 || l.broken != nil || !isAt(l.file.File, path) {
		return nil
	}
	if err := os.Remove(path + AnchorSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Remove(path)
}

// resume reads the end of the log, compares it with the anchor and moves an unfinished
// last line to another file.
func (l *Log) resume(path string) error {
	end, err := readEnd(l.file.File)
	if err != nil {
		return err
	}
	l.size, l.head, l.synced = end.size, end.head, end.head.Seq
	l.marks = []mark{{l.head.Seq + 1, l.size}} // what others wrote before is not read again
	l.anchor, err = openAnchor(path, l.opts.KeyFile, end.head.Seq == 0)
	if err != nil {
		return err
	}
	if err := l.anchor.check(end.head); err != nil {
		return errors.Join(err, l.anchor.close())
	}
	if len(end.torn) == 0 {
		return nil
	}
	aside := fmt.Sprintf("%s.torn-%d", path, time.Now().UnixNano())
	err = writeNew(aside, end.torn)
	if err == nil {
		err = l.file.Truncate(l.size)
	}
	if err == nil {
		err = l.Append(wire.Event{Type: wire.EventFault, Path: aside, Message: fmt.Sprintf(
			"the log ended in an unfinished line: its %d bytes were moved to %s", len(end.torn), aside)})
	}
	if err != nil {
		return errors.Join(fmt.Errorf("set the unfinished last line aside: %w", err), l.anchor.close())
	}
	return nil
}

func writeNew(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

// Append numbers e, chains it to the previous event and writes it. Denials, faults and the
// begin and end of sessions are on disk when it returns. Allowed requests are on disk after
// [Options.SyncDelay].
func (l *Log) Append(e wire.Event) error {
	if l.opts.Redact != nil {
		e.Argv, e.Env = slices.Clone(e.Argv), slices.Clone(e.Env)
		l.opts.Redact(&e)
	}
	stamp(&e)
	seq, err := l.write(e)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotWritten, err)
	}
	if durable(e) {
		if err := l.sync(seq); err != nil {
			return fmt.Errorf("%w: %w", ErrNotWritten, err)
		}
		return nil
	}
	select {
	case l.dirty <- struct{}{}:
	default:
	}
	return nil
}

func stamp(e *wire.Event) {
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	if e.MonoNanos == 0 {
		var ts unix.Timespec
		if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) == nil {
			e.MonoNanos = ts.Nano()
		}
	}
}

func durable(e wire.Event) bool {
	if e.Type == wire.EventSession || e.Type == wire.EventFault {
		return true
	}
	return e.Decision != "" && e.Decision != "allow" && e.Decision != "audit"
}

func (l *Log) write(e wire.Event) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return 0, os.ErrClosed
	}
	if l.broken != nil {
		return 0, l.broken
	}
	line, head, err := encode(l.line[:0], e, l.head)
	if err != nil {
		return 0, err
	}
	if l.line = line; cap(line) > reusedLine {
		l.line = nil
	}
	if _, err := l.file.WriteAt(line, l.size); err != nil {
		// A part of the line may be written. Without it the log is valid.
		if cut := l.file.Truncate(l.size); cut != nil {
			l.broken = errors.Join(err, cut)
		}
		return 0, err
	}
	if head.Seq%markEvery == 0 {
		l.marks = append(l.marks, mark{head.Seq, l.size})
	}
	l.size += int64(len(line))
	l.head = head
	if l.grown != nil {
		close(l.grown)
		l.grown = nil
	}
	return head.Seq, nil
}

// sync brings all events up to seq to disk. Callers that wait for each other share one
// fdatasync.
func (l *Log) sync(seq uint64) error {
	l.syncMu.Lock()
	defer l.syncMu.Unlock()
	if l.synced >= seq {
		return nil
	}
	l.mu.Lock()
	head, broken := l.head, l.broken
	l.mu.Unlock()
	if broken != nil {
		return broken
	}
	err := unix.Fdatasync(int(l.file.Fd()))
	if err == nil {
		err = l.anchor.write(head)
	}
	if err != nil {
		// After a failed fdatasync the kernel may have dropped data that it could not
		// write. A later success would prove nothing. See fsync(2).
		err = fmt.Errorf("bring the audit log to disk: %w", err)
		l.mu.Lock()
		l.broken = err
		l.mu.Unlock()
		return err
	}
	l.synced = head.Seq
	return nil
}

// flush syncs events of allowed requests until Close. A failure is in l.broken, which the
// next Append returns.
func (l *Log) flush() {
	defer l.stopped.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	for {
		select {
		case <-l.dirty:
		case <-l.stop:
			return
		}
		timer.Reset(l.opts.SyncDelay)
		select {
		case <-timer.C:
			_ = l.sync(l.Head().Seq)
		case <-l.stop:
			return
		}
	}
}

// Head is the last event of the log.
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Path is the name of the log's file. It is absolute if the working directory is known.
func (l *Log) Path() string {
	if path, err := filepath.Abs(l.file.Name()); err == nil {
		return path
	}
	return l.file.Name()
}

// Close brings the log to disk, ends its followers and closes it. It removes a file that
// [Open] created and that has no event.
func (l *Log) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return os.ErrClosed
	}
	l.closed = true
	if l.grown != nil {
		close(l.grown)
		l.grown = nil
	}
	last := l.head.Seq
	l.mu.Unlock()
	close(l.stop)
	l.stopped.Wait()
	err := l.sync(last)
	return errors.Join(err, l.anchor.close(), l.removeUnused(), l.file.Close())
}
