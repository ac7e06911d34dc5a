package fakemodel

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

func init() { formats = append(formats, anthropic{}) }

// anthropic is the Messages API with streaming, as Claude Code uses it.
// See https://docs.anthropic.com/en/api/messages-streaming.
type anthropic struct{}

func (anthropic) name() string { return "anthropic" }

func (anthropic) matches(r *http.Request) bool {
	return r.Method == http.MethodPost && r.URL.Path == "/v1/messages"
}

// block is one part of a message.
type block struct {
	Type      string          `json:"type"`
	Text      string          `json:"text"`
	ToolUseID string          `json:"tool_use_id"`
	IsError   bool            `json:"is_error"`
	Content   json.RawMessage `json:"content"`
}

// blocks reads a text or a list of blocks.
func blocks(data json.RawMessage) ([]block, error) {
	if len(data) == 0 {
		return nil, nil
	}
	var text string
	if json.Unmarshal(data, &text) == nil {
		return []block{{Type: "text", Text: text}}, nil
	}
	var list []block
	err := json.Unmarshal(data, &list)
	return list, err
}

func (anthropic) read(_ *http.Request, body []byte, into *Request) error {
	var in struct {
		Model    string
		System   json.RawMessage
		Messages []struct{ Content json.RawMessage }
		Tools    []struct{ Name string }
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return err
	}
	into.Model = in.Model
	system, err := blocks(in.System)
	if err != nil {
		return fmt.Errorf("system: %w", err)
	}
	into.System = joined(system)
	for _, m := range in.Messages {
		parts, err := blocks(m.Content)
		if err != nil {
			return fmt.Errorf("messages: %w", err)
		}
		for _, p := range parts {
			switch p.Type {
			case "text":
				into.Texts = append(into.Texts, p.Text)
			case "tool_result":
				inner, err := blocks(p.Content)
				if err != nil {
					return fmt.Errorf("tool result: %w", err)
				}
				into.Results = append(into.Results, Result{ID: p.ToolUseID, Text: joined(inner), Failed: p.IsError})
			}
		}
	}
	for _, t := range in.Tools {
		into.Tools = append(into.Tools, t.Name)
	}
	return nil
}

func joined(parts []block) string {
	var texts []string
	for _, p := range parts {
		if p.Text != "" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// object is a JSON object.
type object = map[string]any

func (anthropic) write(w io.Writer, r Request, t Turn) error {
	id := fmt.Sprintf("msg_%d", len(r.Results))
	usage := object{"input_tokens": 100, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
	events := []object{{"type": "message_start", "message": object{
		"id": id, "type": "message", "role": "assistant", "model": r.Model, "content": []any{}, "stop_reason": nil, "stop_sequence": nil,
		"usage": usage,
	}}}
	add := func(start, delta object) {
		n := len(events)
		index := (n - 1) / 3
		events = append(events,
			object{"type": "content_block_start", "index": index, "content_block": start},
			object{"type": "content_block_delta", "index": index, "delta": delta},
			object{"type": "content_block_stop", "index": index})
	}
	if t.Say != "" {
		add(object{"type": "text", "text": ""}, object{"type": "text_delta", "text": t.Say})
	}
	stop := "end_turn"
	for i, c := range t.Calls {
		input, err := json.Marshal(c.Input)
		if err != nil {
			return err
		}
		stop = "tool_use"
		add(object{"type": "tool_use", "id": fmt.Sprintf("toolu_%d_%d", len(r.Results), i), "name": c.Tool, "input": object{}},
			object{"type": "input_json_delta", "partial_json": string(input)})
	}
	events = append(events,
		object{"type": "message_delta", "delta": object{"stop_reason": stop, "stop_sequence": nil}, "usage": object{"output_tokens": 20}},
		object{"type": "message_stop"})
	for _, e := range events {
		if err := event(w, fmt.Sprint(e["type"]), e); err != nil {
			return err
		}
	}
	return nil
}
