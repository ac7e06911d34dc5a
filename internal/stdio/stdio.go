// Package stdio exchanges the first messages of a stream that leads to another
// machine. A login shell, a container runtime or sshd may print text on such a stream
// first. A frame therefore has a line that begins it, and its reader skips a bounded
// number of bytes before that line.
package stdio

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

const (
	// MaxNoise is the number of bytes that may precede a frame.
	MaxNoise = 64 << 10

	magic   = "agentsh-stdio-1 "
	maxLine = len(magic) + len("4294967295")
)

// ErrNoFrame is wrapped by the error of a stream that begins with something else.
var ErrNoFrame = errors.New("no frame of agentsh")

// Write writes one frame: an empty line, the magic line with the length, and JSON.
func Write(w io.Writer, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	// The line break ends a line of noise that has no end of its own.
	_, err = w.Write(append([]byte("\n"+magic+strconv.Itoa(len(data))+"\n"), data...))
	return err
}

// Read reads one frame of at most limit bytes into v. It skips at most [MaxNoise]
// bytes before it, and reads no byte after it.
func Read(r io.Reader, v any, limit int) error {
	for left := MaxNoise; ; {
		line, n, err := readLine(r, left)
		if err != nil {
			return err
		}
		if text, is := strings.CutPrefix(line, magic); is {
			return readBody(r, v, text, limit)
		}
		left -= n
	}
}

// ReadLine returns the rest of the first line that begins with prefix. It skips at most
// [MaxNoise] bytes before that line, and reads no byte after it.
func ReadLine(r io.Reader, prefix string) (string, error) {
	for left := MaxNoise; ; {
		line, n, err := readLine(r, left)
		if err != nil {
			return "", err
		}
		if text, is := strings.CutPrefix(line, prefix); is {
			return text, nil
		}
		left -= n
	}
}

// readLine reads a line of at most limit bytes and returns it without its end. The
// bytes after the line belong to somebody else, so it reads one byte at a time.
func readLine(r io.Reader, limit int) (line string, n int, err error) {
	var text []byte
	var b [1]byte
	for n < limit {
		if _, err := io.ReadFull(r, b[:]); err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w: the stream ended: %w", ErrNoFrame, io.ErrUnexpectedEOF)
			}
			return "", n, err
		}
		n++
		if b[0] == '\n' {
			return strings.TrimSuffix(string(text), "\r"), n, nil
		}
		text = append(text, b[0])
	}
	return "", n, fmt.Errorf("%w within %d bytes", ErrNoFrame, MaxNoise)
}

func readBody(r io.Reader, v any, length string, limit int) error {
	size, err := strconv.ParseUint(length, 10, 32)
	if err != nil || len(magic)+len(length) > maxLine {
		return fmt.Errorf("frame of agentsh: %.20q is not a length", length)
	}
	if size > uint64(limit) {
		return fmt.Errorf("frame of agentsh: %d bytes, at most %d", size, limit)
	}
	data, err := io.ReadAll(io.LimitReader(r, int64(size)))
	if err == nil && uint64(len(data)) < size {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("frame of agentsh: %w", err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("frame of agentsh: %w", err)
	}
	return nil
}
