package fakemodel

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

func init() { formats = append(formats, chat{}) }

// chat is OpenAI's chat completions API, in the form that OpenCode uses for
// compatible providers.
type chat struct{}

func (chat) name() string { return "chat" }

func (chat) matches(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/chat/completions")
}

// chatBody is the part of a request that tests read.
type chatBody struct {
	Model    string `json:"model"`
	Messages []struct {
		Role       string          `json:"role"`
		Content    json.RawMessage `json:"content"`
		ToolCallID string          `json:"tool_call_id"`
	} `json:"messages"`
	Tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	} `json:"tools"`
}

func (chat) read(_ *http.Request, body []byte, into *Request) error {
	var b chatBody
	if err := json.Unmarshal(body, &b); err != nil {
		return fmt.Errorf("read request of chat: %w", err)
	}
	into.Model = b.Model
	for _, m := range b.Messages {
		switch m.Role {
		case "system", "developer":
			into.System += strings.Join(texts(m.Content), "\n")
		case "tool":
			into.Results = append(into.Results, Result{ID: m.ToolCallID, Text: strings.Join(texts(m.Content), "\n")})
		default:
			into.Texts = append(into.Texts, texts(m.Content)...)
		}
	}
	for _, t := range b.Tools {
		into.Tools = append(into.Tools, t.Function.Name)
	}
	return nil
}

func (chat) write(w io.Writer, r Request, t Turn) error {
	var asked struct {
		Stream *bool `json:"stream"`
	}
	if json.Unmarshal(r.Body, &asked) == nil && asked.Stream != nil && !*asked.Stream {
		return json.NewEncoder(w).Encode(map[string]any{
			"id": "chatcmpl", "object": "chat.completion", "model": r.Model,
			"choices": []any{map[string]any{
				"index": 0, "message": map[string]any{"role": "assistant", "content": t.Say}, "finish_reason": "stop",
			}},
		})
	}
	send := func(delta map[string]any, finish any) error {
		return event(w, "", map[string]any{
			"id": fmt.Sprintf("chatcmpl-%d", len(r.Results)), "object": "chat.completion.chunk", "model": r.Model,
			"choices": []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish}},
			"usage":   nil,
		})
	}
	if err := send(map[string]any{"role": "assistant", "content": t.Say}, nil); err != nil {
		return err
	}
	finish := "stop"
	for i, c := range t.Calls {
		finish = "tool_calls"
		call := map[string]any{
			"index": i, "id": callID(len(r.Results), i), "type": "function",
			"function": map[string]any{"name": c.Tool, "arguments": arguments(c)},
		}
		if err := send(map[string]any{"tool_calls": []any{call}}, nil); err != nil {
			return err
		}
	}
	if err := send(map[string]any{}, finish); err != nil {
		return err
	}
	err := event(w, "", map[string]any{
		"id": fmt.Sprintf("chatcmpl-%d", len(r.Results)), "object": "chat.completion.chunk", "model": r.Model, "choices": []any{},
		"usage": map[string]any{
			"prompt_tokens": usageInput, "completion_tokens": usageOutput, "total_tokens": usageInput + usageOutput,
			"prompt_tokens_details": map[string]any{"cached_tokens": usageCached},
		},
	})
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, "data: [DONE]\n\n")
	return err
}
