// Package rpcid finds the id of a request in a line of JSON-RPC that is wrong or too long, so that its client gets an answer.
package rpcid

import (
	"bytes"
	"encoding/json"
)

// maxID bounds an id and a key, in bytes.
const maxID = 128

// Finder reads the bytes of one JSON object and holds a few of them. The zero value has read nothing.
type Finder struct {
	depth           int // of brackets
	quoted, escaped bool
	value           bool   // after the colon of the outer object
	key             []byte // of the outer object, the last one
	id              []byte // its text
	method          bool
}

// Find returns the id of a request in a line, as [Finder.Request] does.
func Find(line []byte) json.RawMessage {
	var f Finder
	f.Add(line)
	return f.Request()
}

// Add reads on.
func (f *Finder) Add(p []byte) {
	for _, c := range p {
		switch {
		case f.quoted:
			f.keep(c, c == '"' && !f.escaped)
			f.quoted = c != '"' || f.escaped
			f.escaped = c == '\\' && !f.escaped
		case c == '"':
			if f.quoted = true; f.depth == 1 && !f.value {
				f.key = f.key[:0]
			}
			f.keep(c, true)
		case c == '{' || c == '[':
			f.depth++
		case c == '}' || c == ']':
			f.depth--
		case f.depth != 1:
		case c == ':':
			f.value = true
			f.method = f.method || string(f.key) == "method"
			if string(f.key) == "id" {
				f.id = f.id[:0]
			}
		case c == ',':
			f.value = false
		case c > ' ':
			f.keep(c, false)
		}
	}
}

// keep keeps a byte of a key, without its quotes, or of the id.
func (f *Finder) keep(c byte, quote bool) {
	switch {
	case f.depth != 1:
	case !f.value && !quote && len(f.key) <= maxID:
		f.key = append(f.key, c)
	case f.value && string(f.key) == "id" && len(f.id) <= maxID:
		f.id = append(f.id, c)
	}
}

// Request is the id of a request: a text or a number. It is nil if there is none, or no "method".
func (f *Finder) Request() json.RawMessage {
	if !f.method || len(f.id) == 0 || len(f.id) > maxID || !json.Valid(f.id) || bytes.ContainsAny(f.id[:1], "tfn") {
		return nil
	}
	return bytes.Clone(f.id)
}
