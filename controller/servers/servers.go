// Package servers plans the MCP servers of a harness: the settings of the filter before them,
// and what the agent program starts.
package servers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"agentsh/controller/harness"
	"agentsh/controller/mcpfilter"
	"agentsh/controller/runtime"
	"agentsh/internal/layout"
	"agentsh/internal/text"
)

// SettingsFile is the file of the filter's settings in the sandbox. Log is its log.
const (
	SettingsFile = layout.RuntimeDir + "/mcp.json"
	Log          = layout.ConfigDir + "/mcp.log"
)

// Plan has the servers of a run.
type Plan struct {
	Settings mcpfilter.Settings
	pins     map[string]mcpfilter.Pins
}

// maxPins bounds a file of pins, in bytes.
const maxPins = 16 << 20

// New plans the servers of a harness. read reads a file of at most so many bytes. With unpinned the files of
// pins are not read.
func New(h *harness.Harness, unpinned bool, read func(name string, most int64) ([]byte, error)) (Plan, error) {
	p := Plan{pins: map[string]mcpfilter.Pins{}}
	if len(h.MCPServers) == 0 {
		return p, nil
	}
	p.Settings = mcpfilter.Settings{Version: 1, Log: Log}
	var problems []error
	for _, s := range h.MCPServers {
		one := mcpfilter.Server{Name: s.Name.V, Allow: words(s.Allow), Deny: words(s.Deny)}
		for _, w := range s.Command {
			one.Argv = append(one.Argv, w.V)
		}
		if len(one.Argv) == 0 || one.Argv[0] == "" {
			problems = append(problems, fmt.Errorf("%s: mcp_servers: server %s has no command", s.Name.At, s.Name.V))
		}
		if s.Pins.IsSet() && !unpinned {
			pins, err := readPins(h.Path(s.Pins), s.Name.V, read)
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: mcp_servers: pins: %w", s.Pins.At, err))
			}
			p.pins[one.Name], one.Pinned = pins, pins.Digests()
		}
		p.Settings.Servers = append(p.Settings.Servers, one)
	}
	return p, errors.Join(problems...)
}

// words is a list without positions. A list that is not set allows all, an empty one nothing.
func words(list harness.Texts) []string {
	if list == nil {
		return nil
	}
	out := make([]string, len(list))
	for i, w := range list {
		out[i] = w.V
	}
	return out
}

func readPins(file, server string, read func(string, int64) ([]byte, error)) (mcpfilter.Pins, error) {
	data, err := read(file, maxPins)
	if errors.Is(err, fs.ErrNotExist) {
		return mcpfilter.Pins{}, fmt.Errorf("%w: make it with 'agentctl mcp-pins HARNESS'", err)
	}
	if err != nil {
		return mcpfilter.Pins{}, err
	}
	pins, err := mcpfilter.ReadPins(data, server)
	if err != nil {
		return pins, fmt.Errorf("%s: %w", filepath.Base(file), err)
	}
	return pins, nil
}

// Empty reports whether there are no servers.
func (p Plan) Empty() bool { return len(p.Settings.Servers) == 0 }

// File is the file of the filter's settings.
func (p Plan) File() (runtime.File, error) {
	data, err := json.Marshal(p.Settings)
	return runtime.File{Dest: SettingsFile, Data: append(data, '\n'), Mode: 0o644}, err
}

// Filter is the command line of agentsh that stands for a server, or that lists its tools.
func Filter(command, server string) []string {
	return []string{layout.Program, command, "--settings", SettingsFile, server}
}

// Started are the servers as the agent program starts them.
func (p Plan) Started() []runtime.Server {
	var out []runtime.Server
	for _, s := range p.Settings.Servers {
		out = append(out, runtime.Server{Name: s.Name, Argv: Filter(mcpfilter.CommandFilter, s.Name)})
	}
	return out
}

// Changed describes a definition that the filter refused, with its difference from the pinned one.
func (p Plan) Changed(e mcpfilter.Entry) string {
	head := fmt.Sprintf("MCP server %s: tool %s is refused: %s",
		text.Short(e.Server, maxLine), text.Short(e.Tool, maxLine), text.Short(e.Reason, maxLine))
	pin, known := p.pins[e.Server].Tools[e.Tool]
	if !known {
		return head
	}
	return head + "\n" + Difference(pin.Definition, e.Definition)
}

// ReadLog reads the entries of the filter's log. Lines that the filter does not write are left out: the agent could
// write them, and a definition that is nested deeply takes gigabytes when it is shown.
func ReadLog(data []byte) []mcpfilter.Entry {
	var out []mcpfilter.Entry
	for line := range bytes.Lines(data) {
		var e mcpfilter.Entry
		if json.Unmarshal(line, &e) != nil || e.Server == "" {
			continue
		}
		if d, err := mcpfilter.NewDefinition(e.Definition); err == nil && d.Name == e.Tool {
			e.Definition = d.Text
			out = append(out, e)
		}
	}
	return out
}

// Bounds of a difference.
const (
	maxLine  = 300 // characters
	maxLines = 60
)

// Difference shows two definitions line by line: "- " before lines of the pinned one only, "+ " before those
// of the other. Lines that both have are left out.
func Difference(pinned, seen json.RawMessage) string {
	before, after := lines(pinned), lines(seen)
	var out []string
	for _, side := range []struct {
		mark  string
		lines []string
		other []string
	}{{"- ", before, after}, {"+ ", after, before}} {
		left := map[string]int{}
		for _, line := range side.other {
			left[line]++
		}
		for _, line := range side.lines {
			if left[line] > 0 {
				left[line]--
				continue
			}
			out = append(out, side.mark+text.Short(line, maxLine))
		}
	}
	if len(out) > maxLines {
		out = append(out[:maxLines], fmt.Sprintf("... %d more lines", len(out)-maxLines))
	}
	return strings.Join(out, "\n")
}

// lines are the lines of a definition in a form with one value a line.
func lines(definition json.RawMessage) []string {
	var b bytes.Buffer
	if json.Indent(&b, definition, "", "  ") != nil {
		return []string{string(definition)}
	}
	return strings.Split(b.String(), "\n")
}
