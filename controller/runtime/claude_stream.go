package runtime

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// Bounds of texts in events, in bytes. The transcripts contain the whole texts.
const (
	maxText   = 64 << 10
	maxAnswer = 16 << 10 // of a tool
	maxInput  = 2 << 10  // of a tool
)

// cut cleans a text and cuts it to about limit bytes.
func cut(text string, limit int) string {
	if len(text) > limit {
		for limit > 0 && !utf8.RuneStart(text[limit]) {
			limit--
		}
		text = text[:limit] + " (cut)"
	}
	return CleanText(text)
}

// claudeParser parses --output-format stream-json: one JSON object a line. Any
// other line is a line of text.
type claudeParser struct {
	stdout *jsonLines
	stderr *Lines

	mu    sync.Mutex
	emit  func(Event)
	usage Usage  // of messages, until there is a result
	last  string // id of the message whose usage is partly counted
	part  Usage
	ended bool
}

func (claude) Parser(emit func(Event)) Parser {
	p := &claudeParser{emit: emit}
	line := func(stream string) func(string) {
		return func(text string) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.emit(Event{Kind: EventLine, Stream: stream, Text: text})
		}
	}
	p.stdout, p.stderr = newJSONLines(p.object, line("stdout")), NewLines(line("stderr"))
	return p
}

func (p *claudeParser) Stdout() io.Writer { return p.stdout }
func (p *claudeParser) Stderr() io.Writer { return p.stderr }

// Close reports the usage of a program that was stopped before its result.
func (p *claudeParser) Close() {
	p.stdout.Flush()
	p.stderr.Flush()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.usage.Add(p.part)
	if !p.ended && p.usage.Turns > 0 {
		u := p.usage
		p.emitText(Event{Kind: EventUsage, Usage: &u})
	}
}

// claudeUsage is a number of tokens.
type claudeUsage struct {
	Input      int64 `json:"input_tokens"`
	Output     int64 `json:"output_tokens"`
	CacheRead  int64 `json:"cache_read_input_tokens"`
	CacheWrite int64 `json:"cache_creation_input_tokens"`
}

func (u claudeUsage) add(to *Usage) {
	to.Add(Usage{Input: u.Input, Output: u.Output, CacheRead: u.CacheRead, CacheWrite: u.CacheWrite})
}

// claudeLine is one line of the stream.
type claudeLine struct {
	Type    string `json:"type"`
	Subtype string `json:"subtype"`
	Message struct {
		ID      string          `json:"id"`
		Model   string          `json:"model"`
		Usage   claudeUsage     `json:"usage"`
		Content json.RawMessage `json:"content"`
	} `json:"message"`

	// api_retry
	Attempt int             `json:"attempt"`
	Status  json.RawMessage `json:"error_status"`
	Error   json.RawMessage `json:"error"`

	// result
	IsError    bool                       `json:"is_error"`
	Result     string                     `json:"result"`
	Errors     []string                   `json:"errors"`
	Turns      int                        `json:"num_turns"`
	Cost       float64                    `json:"total_cost_usd"`
	Usage      claudeUsage                `json:"usage"`
	ModelUsage map[string]json.RawMessage `json:"modelUsage"`
	Denials    []struct {
		Tool  string          `json:"tool_name"`
		Input json.RawMessage `json:"tool_input"`
	} `json:"permission_denials"`
}

// claudeBlock is a part of a message.
type claudeBlock struct {
	Type    string          `json:"type"`
	Text    string          `json:"text"`
	ID      string          `json:"id"`
	Name    string          `json:"name"`
	Input   json.RawMessage `json:"input"`
	Call    string          `json:"tool_use_id"`
	IsError bool            `json:"is_error"`
	Content json.RawMessage `json:"content"`
}

// emitText emits an event of standard output.
func (p *claudeParser) emitText(e Event) {
	e.Stream = "stdout"
	p.emit(e)
}

// object parses one line; false if it is not an object of the stream.
func (p *claudeParser) object(data []byte) bool {
	var l claudeLine
	if err := json.Unmarshal(data, &l); err != nil || l.Type == "" {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch l.Type {
	case "assistant":
		p.count(l)
		for _, b := range claudeBlocks(l.Message.Content) {
			p.assistant(b)
		}
	case "user":
		for _, b := range claudeBlocks(l.Message.Content) {
			if b.Type == "tool_result" {
				p.emitText(Event{Kind: EventToolResult, Call: Clean(b.Call), Text: cut(claudeText(b.Content), maxAnswer), Failed: b.IsError})
			}
		}
	case "system":
		if l.Subtype == "api_retry" {
			p.emitText(
				Event{
					Kind: EventError,
					Text: fmt.Sprintf("the model's API failed (%s, status %s), attempt %d", word(l.Error), word(l.Status), l.Attempt),
				},
			)
		}
	case "result":
		p.result(l)
	}
	return true
}

// claudeBlocks reads the content of a message: a text, or a list of parts.
func claudeBlocks(data json.RawMessage) []claudeBlock {
	var text string
	if json.Unmarshal(data, &text) == nil {
		return []claudeBlock{{Type: "text", Text: text}}
	}
	var list []claudeBlock
	if json.Unmarshal(data, &list) != nil {
		return nil
	}
	return list
}

func claudeText(data json.RawMessage) string {
	var texts []string
	for _, b := range claudeBlocks(data) {
		if b.Type == "text" {
			texts = append(texts, b.Text)
		}
	}
	return strings.Join(texts, "\n")
}

func (p *claudeParser) assistant(b claudeBlock) {
	switch {
	case b.Type == "text" && strings.TrimSpace(b.Text) != "":
		p.emitText(Event{Kind: EventSaid, Text: cut(b.Text, maxText)})
	case b.Type == "tool_use":
		p.emitText(Event{Kind: EventToolCall, Tool: Clean(b.Name), Call: Clean(b.ID), Text: inputText(b.Input)})
	}
}

// count stores the usage of a message. The program repeats it with each part of
// the message.
func (p *claudeParser) count(l claudeLine) {
	if l.Message.ID != p.last {
		if part := p.part; part.Turns > 0 && !p.ended {
			p.emitText(Event{Kind: EventUsing, Usage: &part})
		}
		p.usage.Add(p.part)
		p.last = l.Message.ID
	}
	p.part = Usage{Model: Clean(l.Message.Model), Turns: 1}
	l.Message.Usage.add(&p.part)
}

func (p *claudeParser) result(l claudeLine) {
	for _, d := range l.Denials {
		p.emitText(Event{Kind: EventError, Text: "permission denied: " + Clean(d.Tool) + " " + inputText(d.Input)})
	}
	u := Usage{Model: p.part.Model}
	u.Add(Usage{Turns: l.Turns, CostUSD: l.Cost})
	l.Usage.add(&u)
	if !p.ended {
		p.emitText(Event{Kind: EventUsage, Usage: &u})
	}
	p.ended = true
	text := l.Result
	if text == "" {
		text = strings.Join(l.Errors, "\n")
	}
	failed := l.IsError || l.Subtype != "success"
	if failed && text == "" {
		text = strings.ReplaceAll(l.Subtype, "_", " ")
	}
	p.emitText(Event{Kind: EventResult, Text: cut(text, maxText), Failed: failed})
}

// mainInputs are the fields of a tool's input that describe it best.
var mainInputs = []string{"command", "file_path", "notebook_path", "path", "pattern", "url", "query", "skill", "description", "prompt"}

// inputText is a tool's input, shortened.
func inputText(data json.RawMessage) string {
	var fields map[string]json.RawMessage
	if json.Unmarshal(data, &fields) == nil {
		for _, name := range mainInputs {
			var text string
			if json.Unmarshal(fields[name], &text) == nil && text != "" {
				return cut(text, maxInput)
			}
		}
	}
	var b bytes.Buffer
	if json.Compact(&b, data) != nil {
		return ""
	}
	return cut(b.String(), maxInput)
}

// word formats a JSON value for an error.
func word(data json.RawMessage) string {
	var text string
	if json.Unmarshal(data, &text) != nil {
		text = string(data)
	}
	if text == "" || text == "null" {
		return "none"
	}
	return cut(text, 200)
}
