package tools

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"

	"agentsh/internal/rpcid"
)

// maxMessage bounds one message of a client, in bytes: two files of the largest size.
const maxMessage = 2*maxFile + 1<<20

// messages are the lines of a client that are messages. After any other line the SDK would read nothing more, while calls that
// run go on: such a line is answered here and left out. The client has ended where its last line is incomplete.
type messages struct {
	io.Closer
	in     *bufio.Reader
	answer func(line []byte)
	ended  chan struct{} // closed when the client has ended
	once   sync.Once
	line   []byte // the one that was read last
	rest   []byte // the part of it that was not passed on
}

func newMessages(in io.ReadCloser, answer func([]byte)) *messages {
	return &messages{Closer: in, in: bufio.NewReaderSize(in, 64<<10), answer: answer, ended: make(chan struct{})}
}

// Read passes at most one line on.
func (m *messages) Read(p []byte) (int, error) {
	for len(m.rest) == 0 {
		if err := m.next(); err != nil {
			m.once.Do(func() { close(m.ended) })
			return 0, err
		}
	}
	n := copy(p, m.rest)
	m.rest = m.rest[n:]
	return n, nil
}

// next reads a line. It is passed on if it is a message.
func (m *messages) next() error {
	if cap(m.line) > 1<<20 {
		m.line = nil
	}
	var id rpcid.Finder
	size := 0
	m.line = m.line[:0]
	for {
		part, err := m.in.ReadSlice('\n')
		id.Add(part)
		if size += len(part); size <= maxMessage {
			m.line = append(m.line, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		blank := size <= maxMessage && len(bytes.TrimSpace(m.line)) == 0
		var why error
		if !blank {
			why = check(m.line, size, id.Request())
		}
		switch {
		case err != nil && (blank || why != nil):
			return err
		case why != nil:
			m.answer(refusal(id.Request(), why))
		case !blank:
			m.rest = append(bytes.TrimSpace(m.line), '\n') // the SDK takes no blanks behind it
		}
		return nil
	}
}

// check says why a line of some size is no message that the SDK takes. A longer line is not there whole.
func check(line []byte, size int, id json.RawMessage) error {
	if size > maxMessage {
		return fmt.Errorf("the message has %d bytes: at most %d MiB", size, maxMessage>>20)
	}
	if _, err := jsonrpc.DecodeMessage(line); err != nil {
		return fmt.Errorf("no message of JSON-RPC: %w", err)
	}
	if !json.Valid(line) { // the SDK reads it by another function, which takes no more than one value
		return errors.New("no message of JSON-RPC: more than one value in a line")
	}
	return exactID(id)
}

// exactID checks that the SDK, which makes an int64 of a float64 of an id, answers with the same one.
func exactID(id json.RawMessage) error {
	if f, err := strconv.ParseFloat(string(id), 64); err == nil && (f != math.Trunc(f) || math.Abs(f) > 1<<53) {
		return errors.New("the id is neither a text nor an integer of at most 2^53")
	}
	return nil
}

// refusal is the answer to a line. Without the id of a request it has none.
func refusal(id json.RawMessage, why error) []byte {
	code := jsonrpc.CodeInvalidRequest
	if id == nil {
		code, id = jsonrpc.CodeParseError, json.RawMessage("null")
	}
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": map[string]any{"code": code, "message": why.Error()}})
	if err != nil {
		panic(err) // the id is valid
	}
	return append(line, '\n')
}
