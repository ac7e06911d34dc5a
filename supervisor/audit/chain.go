package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"agentsh/internal/wire"
)

// Head names the last event of a log.
type Head struct {
	Seq  uint64 `json:"seq"`  // 0: no event
	Hash string `json:"hash"` // hex SHA-256 of its line; empty: no event
}

// A line is the event's JSON object with its hash as the last member. The hash is that of
// the object without this member. So it is checked on the bytes of the line.
const (
	hashOpen  = `,"hash":"`
	hashClose = `"}`
	hashTail  = len(hashOpen) + 2*sha256.Size + len(hashClose)
)

// encode appends the line of the event after head to line, which is empty.
func encode(line []byte, e wire.Event, head Head) ([]byte, Head, error) {
	e.Seq, e.Prev, e.Hash = head.Seq+1, head.Hash, ""
	line, err := appendEvent(line, &e)
	if err != nil {
		return nil, head, err
	}
	sum := sha256.Sum256(line)
	next := Head{Seq: e.Seq, Hash: hex.EncodeToString(sum[:])}
	line = append(append(append(line[:len(line)-1], hashOpen...), next.Hash...), hashClose+"\n"...)
	if len(line) > MaxLine {
		return nil, head, fmt.Errorf("event of %d bytes, at most %d", len(line), MaxLine)
	}
	return line, next, nil
}

// decode checks one line, without its newline, for its own hash.
func decode(line []byte) (head Head, prev string, err error) {
	cut := len(line) - hashTail
	if cut <= 0 || !bytes.HasPrefix(line[cut:], []byte(hashOpen)) || !bytes.HasSuffix(line, []byte(hashClose)) {
		return Head{}, "", errors.New("not an audit event")
	}
	hash := string(line[cut+len(hashOpen) : len(line)-len(hashClose)])
	h := sha256.New()
	h.Write(line[:cut])
	h.Write([]byte("}"))
	if hex.EncodeToString(h.Sum(nil)) != hash {
		return Head{}, "", errors.New("the event was changed: its hash does not match")
	}
	var e struct {
		Seq  uint64 `json:"seq"`
		Prev string `json:"prev"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return Head{}, "", fmt.Errorf("not an audit event: %w", err)
	}
	return Head{Seq: e.Seq, Hash: hash}, e.Prev, nil
}

// LineError is the error of one line of a log.
type LineError struct {
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// Verify reads a log and returns its last event. The error has the first line that was
// changed, moved or added, or that follows a removed line. A log that was cut after a whole
// line is valid here: only its anchor shows that, see [VerifyFile].
func Verify(r io.Reader) (Head, error) {
	return verify(r, func(Head) error { return nil })
}

func verify(r io.Reader, visit func(Head) error) (Head, error) {
	in := bufio.NewReaderSize(r, 64<<10)
	var last Head
	for number := 1; ; number++ {
		line, err := readLine(in)
		if errors.Is(err, io.EOF) {
			return last, nil
		}
		if err == nil {
			last, err = link(line, last)
		}
		if err == nil {
			err = visit(last)
		}
		if err != nil {
			return last, &LineError{number, err}
		}
	}
}

// link checks that line follows last.
func link(line []byte, last Head) (Head, error) {
	head, prev, err := decode(line)
	switch {
	case err != nil:
		return last, err
	case head.Seq != last.Seq+1:
		return last, fmt.Errorf("event %d follows event %d: events were removed, added or moved", head.Seq, last.Seq)
	case prev != last.Hash:
		return last, fmt.Errorf("event %d does not follow the event before it: that one was replaced", head.Seq)
	}
	return head, nil
}

// readLine returns the next line without its newline, valid until the next
// call. io.EOF is returned between lines only.
func readLine(in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadSlice('\n')
	if err == nil {
		return line[:len(line)-1], nil
	}
	long := bytes.Clone(line)
	for errors.Is(err, bufio.ErrBufferFull) && len(long) <= MaxLine {
		line, err = in.ReadSlice('\n')
		long = append(long, line...)
	}
	switch {
	case len(long) > MaxLine:
		return nil, fmt.Errorf("longer than %d bytes", MaxLine)
	case errors.Is(err, io.EOF) && len(long) == 0:
		return nil, io.EOF
	case errors.Is(err, io.EOF):
		return nil, errors.New("unfinished: the log was cut within it")
	case err != nil:
		return nil, err
	}
	return long[:len(long)-1], nil
}

// end is the end of a log.
type end struct {
	size int64 // bytes up to and including the last newline
	head Head
	torn []byte // bytes after it
}

// readTail reads the last bytes of a log of this size: those that have its last whole line, from
// the newline before it, or all that may be part of one.
func readTail(f *os.File, size int64) (start int64, tail []byte, err error) {
	const most = 2*MaxLine + 1 // an unfinished line, a whole one, and the newline before it
	for bytesRead := min(usualTail, size); ; bytesRead = min(most, size) {
		start = size - bytesRead
		tail = make([]byte, bytesRead)
		if _, err := f.ReadAt(tail, start); err != nil {
			return 0, nil, err
		}
		if bytesRead == min(most, size) || bytes.Count(tail, []byte{'\n'}) > 1 {
			return start, tail, nil
		}
	}
}

// usualTail has the last line of most logs. Each start of a command reads it.
const usualTail = 8 << 10

// readEnd reads the last whole line of a log, which must be a valid event, and the bytes
// after it.
func readEnd(f *os.File) (end, error) {
	info, err := f.Stat()
	if err != nil {
		return end{}, err
	}
	start, tail, err := readTail(f, info.Size())
	if err != nil {
		return end{}, err
	}
	newline := bytes.LastIndexByte(tail, '\n')
	if len(tail)-newline-1 > MaxLine {
		return end{}, fmt.Errorf("its last line is longer than %d bytes", MaxLine)
	}
	e := end{size: start + int64(newline) + 1, torn: tail[newline+1:]}
	if newline < 0 {
		return e, nil
	}
	line := tail[bytes.LastIndexByte(tail[:newline], '\n')+1 : newline]
	if e.head, _, err = decode(line); err != nil {
		return end{}, fmt.Errorf("its last whole line: %w", err)
	}
	return e, nil
}
