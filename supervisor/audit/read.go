package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"agentsh/internal/wire"
)

// Reader reads the events of a log file, also while another process writes it. It does not
// check the chain: see [Verify]. It is for one goroutine, which closes it.
type Reader struct {
	src    *section
	in     *bufio.Reader
	next   int64 // offset of the next line
	number int   // of the last line read
	line   []byte
	watch  *FileWatch // nil until somebody waits
}

// OpenReader opens the log at path at its first event.
func OpenReader(path string) (*Reader, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", path)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	src := &section{file: f}
	return &Reader{src: src, in: bufio.NewReaderSize(src, 64<<10)}, nil
}

// ReadSince calls fn with the events that a log got since its file had a size. Other
// commands may have been writing to it then, so the size can be within a line: the
// event of that line is read too. A last line that is still being written is not.
func ReadSince(path string, size int64, fn func(wire.Event)) error {
	r, err := OpenReader(path)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }() // opened for reading
	if r.next, err = lineStart(r.src.file, size); err != nil {
		return err
	}
	r.src.limit = r.next
	end, err := r.size()
	if err != nil {
		return err
	}
	for r.next < end { // what is written meanwhile is not waited for
		at := r.next
		e, err := r.Next()
		var line *LineError
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil
		case errors.As(err, &line):
			return fmt.Errorf("the line at byte %d: %w", at, line.Err)
		case err != nil:
			return err
		}
		fn(e)
	}
	return nil
}

// lineStart is where the line of a log begins that an offset is in. An
// offset behind a newline is itself the beginning of a line.
func lineStart(f *os.File, offset int64) (int64, error) {
	for size := int64(1); ; size *= 64 { // most offsets are behind a newline
		size = min(size, MaxLine+1)
		start := max(0, offset-size)
		before := make([]byte, offset-start)
		n, err := f.ReadAt(before, start)
		if err != nil && !errors.Is(err, io.EOF) { // a failed write is removed again: the file may be shorter now
			return 0, err
		}
		newline := bytes.LastIndexByte(before[:n], '\n')
		if newline >= 0 || start == 0 {
			return start + int64(newline) + 1, nil
		}
		if size > MaxLine {
			return 0, fmt.Errorf("the line before byte %d: longer than %d bytes", offset, MaxLine)
		}
	}
}

// Close ends the reader.
func (r *Reader) Close() error {
	var err error
	if r.watch != nil {
		err = r.watch.Close()
	}
	return errors.Join(err, r.src.file.Close())
}

// Next returns the next event. It returns
//   - [io.EOF] at the end of the file,
//   - [io.ErrUnexpectedEOF] when the last line is unfinished, as during a write,
//   - a [LineError] for a line that is not an event.
//
// After the first two a later call continues.
func (r *Reader) Next() (wire.Event, error) {
	if err := r.refill(); err != nil {
		return wire.Event{}, err
	}
	line, err := readLine(r.in)
	if err != nil {
		return wire.Event{}, &LineError{r.number + 1, err}
	}
	r.next += int64(len(line)) + 1
	r.number++
	r.line = line
	var e wire.Event
	if err := json.Unmarshal(line, &e); err != nil {
		return wire.Event{}, &LineError{r.number, fmt.Errorf("not an audit event: %w", err)}
	}
	return e, nil
}

// Unread is how many bytes of the file follow the last event that was read.
func (r *Reader) Unread() (int64, error) {
	size, err := r.size()
	return max(size-r.next, 0), err
}

// Line is the last event as it is in the file, without its newline, valid until
// the next call of [Reader.Next].
func (r *Reader) Line() []byte { return r.line }

// refill moves the limit of what is read to the last newline of the file, when
// everything before it was read.
func (r *Reader) refill() error {
	if r.next < r.src.limit {
		return nil
	}
	size, err := r.size()
	if err != nil {
		return err
	}
	if size == r.next {
		return io.EOF
	}
	tail := make([]byte, min(size-r.next, MaxLine+1))
	n, err := r.src.file.ReadAt(tail, r.next)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for ; n > 0 && tail[n-1] != '\n'; n-- {
	}
	if n == 0 && int64(len(tail)) <= MaxLine {
		return io.ErrUnexpectedEOF
	}
	if n == 0 {
		return &LineError{r.number + 1, fmt.Errorf("longer than %d bytes", MaxLine)}
	}
	r.src.pos, r.src.limit = r.next, r.next+int64(n)
	r.in.Reset(r.src)
	return nil
}

func (r *Reader) size() (int64, error) {
	info, err := r.src.file.Stat()
	if err != nil {
		return 0, err
	}
	if info.Size() < r.next {
		return 0, fmt.Errorf("the log was cut to %d bytes while it was read", info.Size())
	}
	return info.Size(), nil
}

// ErrRemoved says that the log file was removed.
var ErrRemoved = errors.New("the log was removed")

// Wait returns nil once the file has changed since the last call of
// [Reader.Next], the error of ctx when that ends first, and [ErrRemoved] when no
// name leads to the file any more.
func (r *Reader) Wait(ctx context.Context) error {
	if r.watch != nil {
		return r.watch.Wait(ctx)
	}
	var err error
	if r.watch, err = WatchFile(r.src.file); err != nil {
		return fmt.Errorf("watch the log: %w", err)
	}
	return nil // the watch does not report changes from before its start
}

// FileWatch reports changes of an open file, even after a rename. It is
// for one goroutine, which closes it.
type FileWatch struct{ file, notify *os.File }

// WatchFile begins to watch f, which the caller keeps open. What was written
// before is not reported. See inotify(7).
func WatchFile(f *os.File) (*FileWatch, error) { return watch(f, unix.IN_MODIFY|unix.IN_ATTRIB) }

func watch(f *os.File, mask uint32) (*FileWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	notify := os.NewFile(uintptr(fd), "inotify")
	self := fmt.Sprintf("/proc/self/fd/%d", f.Fd())
	if _, err := unix.InotifyAddWatch(fd, self, mask); err != nil {
		return nil, errors.Join(err, notify.Close())
	}
	return &FileWatch{f, notify}, nil
}

// WatchDirectory begins to watch an open directory for names that are added.
func WatchDirectory(dir *os.File) (*FileWatch, error) {
	return watch(dir, unix.IN_CREATE|unix.IN_MOVED_TO)
}

// Close ends the watch.
func (w *FileWatch) Close() error { return w.notify.Close() }

// Wait returns nil once the file has changed since the watch began or the last
// change was reported, the error of ctx when that ends first, and [ErrRemoved] when
// no name leads to the file any more.
func (w *FileWatch) Wait(ctx context.Context) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(w.file.Fd()), &st); err != nil {
		return err
	}
	if st.Nlink == 0 {
		return ErrRemoved
	}
	stop := context.AfterFunc(ctx, func() { _ = w.notify.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4096)
	_, err := w.notify.Read(buf)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// Size returns the size of a log's file in bytes, for [ReadSince].
func Size(path string) (int64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("audit log: %w", err)
	}
	return info.Size(), nil
}
