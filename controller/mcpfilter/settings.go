// Package mcpfilter stands between an agent program and the MCP servers of a harness. The
// agent program starts the filter in place of a server. The filter starts the server, and
// passes on only the tools that the harness allows and whose definitions are pinned.
//
// The protocol is the Model Context Protocol (MCP) over standard input and output: one JSON
// message a line, see https://modelcontextprotocol.io/specification. The filter never passes
// a message on as it came. It makes a new one of the members that it knows, so that both
// sides read the same message, whatever else the bytes say.
package mcpfilter

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"agentsh/internal/strictyaml"
)

// Settings are the servers of a run. The controller writes them to a file that commands
// cannot change.
type Settings struct {
	Version int      `json:"version"` // 1
	Servers []Server `json:"servers"`
	Log     string   `json:"log,omitempty"` // file for definitions that were refused; empty: none
}

// Server is one server and what the agent may use of it.
type Server struct {
	Name   string            `json:"name"` // letters, digits, _ and -
	Argv   []string          `json:"argv"`
	Allow  []string          `json:"allow"`          // tools; null: all
	Deny   []string          `json:"deny,omitempty"` // tools; it wins over Allow
	Pinned map[string]string `json:"pinned"`         // digests of definitions by tool; null: nothing is pinned
}

// allows reports whether the harness allows a tool.
func (s Server) allows(tool string) bool {
	return !slices.Contains(s.Deny, tool) && (s.Allow == nil || slices.Contains(s.Allow, tool))
}

// maxSettings bounds the settings file, in bytes.
const maxSettings = 4 << 20

// ReadSettings reads a settings file and finds one of its servers.
func ReadSettings(file, name string) (Server, string, error) {
	f, err := os.Open(file)
	if err != nil {
		return Server{}, "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSettings+1))
	if err != nil {
		return Server{}, "", err
	}
	var s Settings
	if len(data) > maxSettings {
		return Server{}, "", fmt.Errorf("settings %s: larger than %d MiB", file, maxSettings>>20)
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return Server{}, "", fmt.Errorf("settings %s: %w", file, err)
	}
	if s.Version != 1 {
		return Server{}, "", fmt.Errorf("settings %s: version %d, not 1", file, s.Version)
	}
	var names []string
	for _, one := range s.Servers {
		if one.Name == name && len(one.Argv) > 0 {
			return one, s.Log, nil
		}
		names = append(names, one.Name)
	}
	if near := strictyaml.Nearest(name, names); near != "" {
		return Server{}, "", fmt.Errorf("settings %s: no server %.60q; there is %s", file, name, near)
	}
	return Server{}, "", fmt.Errorf("settings %s: no server %.60q", file, name)
}

// Definition is the definition of a tool in the one form that is compared and passed on:
// objects with sorted keys, no blanks, each key once.
type Definition struct {
	Name   string
	Text   json.RawMessage
	SHA256 string // hex, of Text
}

// Bounds of a definition.
const (
	maxDefinition = 256 << 10 // bytes
	maxToolName   = 128       // bytes
)

// NewDefinition reads the definition of a tool.
func NewDefinition(text json.RawMessage) (Definition, error) {
	if len(text) > maxDefinition {
		return Definition{}, fmt.Errorf("a definition of a tool has %d bytes, at most %d", len(text), maxDefinition)
	}
	object, err := decodeObject(text)
	if err != nil {
		return Definition{}, fmt.Errorf("definition of a tool: %w", err)
	}
	name, is := object["name"].(string)
	if !is || !ToolName(name) {
		return Definition{}, fmt.Errorf("a tool has the name %.150q: at most %d letters, digits and _ - . /", name, maxToolName)
	}
	canonical, err := json.Marshal(object)
	if err != nil {
		return Definition{}, fmt.Errorf("definition of tool %s: %w", name, err)
	}
	sum := sha256.Sum256(canonical)
	return Definition{Name: name, Text: canonical, SHA256: hex.EncodeToString(sum[:])}, nil
}

// ToolName reports whether a text can be the name of a tool.
func ToolName(name string) bool {
	if name == "" || len(name) > maxToolName || name[0] == '-' {
		return false
	}
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '.', c == '/':
		default:
			return false
		}
	}
	return true
}

// Pins are the pinned definitions of one server, in a file of the operator.
type Pins struct {
	Version int            `json:"version"` // 1
	Server  string         `json:"server"`
	Tools   map[string]Pin `json:"tools"`
}

// Pin is one pinned definition. The digest decides; the definition is there for people and for
// differences.
type Pin struct {
	SHA256     string          `json:"sha256"`
	Definition json.RawMessage `json:"definition"`
}

// NewPins pins definitions.
func NewPins(server string, tools []Definition) Pins {
	p := Pins{Version: 1, Server: server, Tools: map[string]Pin{}}
	for _, d := range tools {
		p.Tools[d.Name] = Pin{SHA256: d.SHA256, Definition: d.Text}
	}
	return p
}

// ReadPins reads the content of a file of pins for a server. Each digest must be that of its definition.
func ReadPins(data []byte, server string) (Pins, error) {
	var p Pins
	if err := json.Unmarshal(data, &p); err != nil {
		return p, err
	}
	if p.Version != 1 {
		return p, fmt.Errorf("version %d, not 1", p.Version)
	}
	if p.Server != server {
		return p, fmt.Errorf("the pins are those of the server %.60q, not of %q", p.Server, server)
	}
	var wrong []error
	for name, pin := range p.Tools {
		d, err := NewDefinition(pin.Definition)
		switch {
		case err != nil:
			wrong = append(wrong, fmt.Errorf("tool %.60q: %w", name, err))
		case d.Name != name:
			wrong = append(wrong, fmt.Errorf("tool %.60q: its definition is that of %s", name, d.Name))
		case d.SHA256 != pin.SHA256:
			wrong = append(wrong, fmt.Errorf("tool %s: sha256 is not that of its definition, which has %s", name, d.SHA256))
		}
	}
	return p, errors.Join(wrong...)
}

// Digests are the digests of the pinned definitions by tool.
func (p Pins) Digests() map[string]string {
	out := make(map[string]string, len(p.Tools))
	for name, pin := range p.Tools {
		out[name] = pin.SHA256
	}
	return out
}
