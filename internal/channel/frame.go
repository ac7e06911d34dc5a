package channel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"agentsh/internal/wire"
)

// readFrame reads one message: its length in four bytes, big endian, and then JSON.
func readFrame(r io.Reader, msg any) error {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > wire.MaxMessage {
		return fmt.Errorf("message of %d bytes, at most %d", n, wire.MaxMessage)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(r, data); err != nil {
		return noEOF(err)
	}
	return json.Unmarshal(data, msg)
}

// writeFrame writes one message.
func writeFrame(w io.Writer, msg any) error {
	data, err := json.Marshal(msg)
	if err != nil {
		return err
	}
	return writeRawFrame(w, data)
}

func writeRawFrame(w io.Writer, data []byte) error {
	if len(data) > wire.MaxMessage {
		return fmt.Errorf("message of %d bytes, at most %d", len(data), wire.MaxMessage)
	}
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...))
	return err
}

// bodySize is the maximum number of bytes of a chunk. Together with the length it is a
// multiple of the data of an SSH packet.
const bodySize = 4<<15 - 4

// bodyWriter writes a body of unknown length as chunks. The length precedes each
// chunk, and length 0 ends the body. A body without that end is incomplete.
type bodyWriter struct {
	w   io.Writer
	buf []byte // space for the length, then the bytes that are not written yet
}

func newBodyWriter(w io.Writer) *bodyWriter {
	return &bodyWriter{w: w, buf: make([]byte, 4, 4+bodySize)}
}

func (b *bodyWriter) Write(p []byte) (int, error) {
	total := len(p)
	for len(p) > 0 {
		n := min(len(p), cap(b.buf)-len(b.buf))
		b.buf = append(b.buf, p[:n]...)
		p = p[n:]
		if len(b.buf) == cap(b.buf) {
			if err := b.flush(); err != nil {
				return total - len(p), err
			}
		}
	}
	return total, nil
}

func (b *bodyWriter) flush() error {
	if len(b.buf) == 4 {
		return nil
	}
	binary.BigEndian.PutUint32(b.buf, uint32(len(b.buf)-4))
	_, err := b.w.Write(b.buf)
	b.buf = b.buf[:4]
	return err
}

// end writes the remaining bytes and the end of the body.
func (b *bodyWriter) end() error {
	if err := b.flush(); err != nil {
		return err
	}
	_, err := b.w.Write(make([]byte, 4))
	return err
}

// aborted is the length that marks a body whose writer has failed.
const aborted = 1<<32 - 1

var errAborted = errors.New("the sender gave up")

// abort ends the body as incomplete.
func (b *bodyWriter) abort() error {
	_, err := b.w.Write(binary.BigEndian.AppendUint32(nil, aborted))
	return err
}

// bodyReader reads a body written by a bodyWriter. It returns io.EOF only at the
// written end, and io.ErrUnexpectedEOF if the stream ends earlier.
type bodyReader struct {
	r    io.Reader
	left int
	err  error
}

func (b *bodyReader) Read(p []byte) (int, error) {
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	if b.left == 0 {
		b.err = b.next()
		if b.err != nil {
			return 0, b.err
		}
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	if err != nil {
		b.err = noEOF(err)
	}
	return n, b.err
}

// next reads the length of the next chunk.
func (b *bodyReader) next() error {
	var head [4]byte
	if _, err := io.ReadFull(b.r, head[:]); err != nil {
		return noEOF(err)
	}
	n := binary.BigEndian.Uint32(head[:])
	if n == 0 {
		return io.EOF
	}
	if n == aborted {
		return errAborted
	}
	if n > bodySize {
		return fmt.Errorf("chunk of %d bytes, at most %d", n, bodySize)
	}
	b.left = int(n)
	return nil
}

// noEOF turns io.EOF into io.ErrUnexpectedEOF.
func noEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // readers return it unwrapped
		return io.ErrUnexpectedEOF
	}
	return err
}
