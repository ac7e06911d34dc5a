package mcpfilter

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// Bounds of messages.
const (
	maxFrame = 16 << 20 // bytes of a line
	maxDepth = 100      // nested objects and lists
	maxID    = 128      // bytes of an id or a token of the agent
	maxText  = 500      // characters of a text of the other side in a message of ours
)

// errFrame reports a line that is too long. The stream cannot be read on.
var errFrame = fmt.Errorf("a message has more than %d MiB", maxFrame>>20)

// readLine reads a line without its end. The result is valid until the next call.
func readLine(r *bufio.Reader, buffer []byte) ([]byte, error) {
	buffer = buffer[:0]
	for {
		part, err := r.ReadSlice('\n')
		if len(buffer)+len(part) > maxFrame {
			return buffer, errFrame
		}
		buffer = append(buffer, part...)
		switch {
		case err == nil:
			return bytes.TrimRight(buffer, "\r\n"), nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(buffer) > 0:
			return buffer, nil
		default:
			return buffer, err
		}
	}
}

// object is a JSON object whose keys are compared exactly. The last one of equal keys counts.
type object map[string]json.RawMessage

// message is what the filter reads of a message of either side.
type message struct {
	id     json.RawMessage // nil: a notification
	method string          // empty: a response
	params json.RawMessage
	result json.RawMessage
	error  json.RawMessage
}

// parseMessage reads a message. Lists of messages are none: no version of the protocol that
// is in use has them. Bytes that are no UTF-8 become U+FFFD: other programs read them in several ways.
func parseMessage(line []byte) (message, error) {
	var m message
	if !utf8.Valid(line) {
		line = bytes.ToValidUTF8(line, []byte("\uFFFD"))
	}
	if err := checkDepth(line); err != nil {
		return m, err
	}
	var o object
	if err := json.Unmarshal(line, &o); err != nil || o == nil {
		return m, errors.New("a line is no JSON object")
	}
	m.params, m.result, m.error = o["params"], o["result"], o["error"]
	if id, has := o["id"]; has {
		if !isID(id) {
			return m, errors.New("an id is a number or a text of at most 128 bytes")
		}
		m.id = id
	}
	if method, has := o["method"]; has {
		if err := json.Unmarshal(method, &m.method); err != nil || m.method == "" {
			return m, errors.New("a method is a text")
		}
	}
	return m, nil
}

// isID reports whether a value can be an id or a token: a number or a text.
func isID(id json.RawMessage) bool {
	return len(id) > 0 && len(id) <= maxID && (id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9')
}

// checkDepth rejects text that is nested deeply. Other programs read it by recursion.
func checkDepth(text []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return fmt.Errorf("JSON is nested more than %d deep", maxDepth)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}

// decodeObject reads an object with everything in it. Numbers stay as they are written.
func decodeObject(text []byte) (map[string]any, error) {
	if err := checkDepth(text); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var o map[string]any
	if err := d.Decode(&o); err != nil || o == nil {
		return nil, errors.New("it is no JSON object")
	}
	return o, nil
}

// encode makes a line of a message. It has no newline but the last byte.
func encode(m map[string]any) []byte {
	m["jsonrpc"] = "2.0"
	line, err := json.Marshal(m) // raw messages become compact
	if err != nil {
		panic(err) // everything in it was read as JSON
	}
	return append(line, '\n')
}

// Codes of JSON-RPC errors.
const (
	codeParse     = -32700
	codeRequest   = -32600
	codeNoMethod  = -32601
	codeParams    = -32602
	codeOurs      = -32603
	newestVersion = "2025-11-25" // of the protocol, that a server is asked for
)

func failure(id json.RawMessage, code int, text string) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	return encode(map[string]any{"id": id, "error": map[string]any{"code": code, "message": text}})
}

func success(id json.RawMessage, result any) []byte {
	return encode(map[string]any{"id": id, "result": result})
}
