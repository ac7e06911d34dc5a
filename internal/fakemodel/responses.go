package fakemodel

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

func init() { formats = append(formats, responses{}) }

// responses is OpenAI's Responses API, as Codex uses it.
type responses struct{}

func (responses) name() string { return "responses" }

func (responses) matches(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/responses")
}

// responsesBody is what a request says, as far as a test reads it.
type responsesBody struct {
	Model        string          `json:"model"`
	Instructions string          `json:"instructions"`
	Input        []responsesItem `json:"input"`
	Tools        []responsesTool `json:"tools"`
}

type responsesTool struct {
	Type  string          `json:"type"` // function, custom, namespace, or a tool of the server
	Name  string          `json:"name"`
	Tools []responsesTool `json:"tools"` // of a namespace
}

type responsesItem struct {
	Type    string          `json:"type"`
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"` // of a message
	CallID  string          `json:"call_id"`
	Output  json.RawMessage `json:"output"` // of a tool
}

func (responses) read(_ *http.Request, body []byte, into *Request) error {
	var b responsesBody
	if err := json.Unmarshal(body, &b); err != nil {
		return fmt.Errorf("read request of responses: %w", err)
	}
	into.Model, into.System = b.Model, b.Instructions
	for _, item := range b.Input {
		switch {
		case item.Role == "developer" || item.Role == "system":
			into.System += "\n" + strings.Join(texts(item.Content), "\n")
		case item.Type == "message" || item.Type == "":
			into.Texts = append(into.Texts, texts(item.Content)...)
		case strings.HasSuffix(item.Type, "_call_output"):
			into.Results = append(into.Results, Result{ID: item.CallID, Text: strings.Join(texts(item.Output), "\n")})
		}
	}
	for _, t := range b.Tools {
		into.Tools = append(into.Tools, t.names()...)
	}
	return nil
}

// names are the tools that a tool represents.
func (t responsesTool) names() []string {
	if t.Type != "namespace" {
		return []string{orType(t.Name, t.Type)}
	}
	var names []string
	for _, inner := range t.Tools {
		for _, name := range inner.names() {
			if t.Name != "" {
				name = t.Name + inNamespace + name
			}
			names = append(names, name)
		}
	}
	return names
}

// inNamespace is between the name of a namespace and that of its tool.
const inNamespace = "__"

func orType(name, kind string) string {
	if name == "" {
		return kind
	}
	return name
}

// texts are the texts of a content: a string, a list of parts, or a part.
func texts(content json.RawMessage) []string {
	var one string
	if json.Unmarshal(content, &one) == nil {
		return []string{one}
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if json.Unmarshal(content, &parts) != nil {
		return nil
	}
	var out []string
	for _, p := range parts {
		if p.Text != "" {
			out = append(out, p.Text)
		}
	}
	return out
}

func (responses) write(w io.Writer, r Request, t Turn) error {
	id := fmt.Sprintf("resp_%d", len(r.Results))
	send := func(kind string, more map[string]any) error {
		more["type"] = kind
		return event(w, kind, more)
	}
	if err := send("response.created", map[string]any{"response": map[string]any{"id": id}}); err != nil {
		return err
	}
	for i, item := range responsesItems(r, t) {
		at := map[string]any{"output_index": i, "item": item}
		if err := send("response.output_item.added", at); err != nil {
			return err
		}
		if err := send("response.output_item.done", at); err != nil {
			return err
		}
	}
	return send("response.completed", map[string]any{"response": map[string]any{"id": id, "usage": map[string]any{
		"input_tokens": usageInput, "input_tokens_details": map[string]any{"cached_tokens": usageCached},
		"output_tokens": usageOutput, "output_tokens_details": map[string]any{"reasoning_tokens": 0}, "total_tokens": usageInput + usageOutput,
	}}})
}

// responsesItems are the items of an answer. A tool that takes plain text is
// called with the "input" of the call.
func responsesItems(r Request, t Turn) []map[string]any {
	var items []map[string]any
	n := len(r.Results)
	if t.Say != "" {
		items = append(items, map[string]any{
			"type": "message", "id": fmt.Sprintf("msg_%d", n), "role": "assistant", "status": "completed",
			"content": []any{map[string]any{"type": "output_text", "text": t.Say, "annotations": []any{}}},
		})
	}
	for i, c := range t.Calls {
		item := map[string]any{"id": fmt.Sprintf("fc_%d_%d", n, i), "call_id": callID(n, i), "name": c.Tool, "status": "completed"}
		if at := strings.LastIndex(c.Tool, inNamespace); at > 0 && strings.HasPrefix(c.Tool, "mcp"+inNamespace) {
			item["namespace"], item["name"] = c.Tool[:at], c.Tool[at+len(inNamespace):]
		}
		if plainTool(r.Body, c.Tool) {
			item["type"], item["input"] = "custom_tool_call", c.Input["input"]
		} else {
			item["type"], item["arguments"] = "function_call", arguments(c)
		}
		items = append(items, item)
	}
	return items
}

// plainTool reports whether a tool takes plain text.
func plainTool(body []byte, name string) bool {
	var b responsesBody
	if json.Unmarshal(body, &b) != nil {
		return false
	}
	for _, t := range b.Tools {
		if t.Name == name {
			return t.Type == "custom"
		}
	}
	return false
}

// arguments is the input of a call as JSON text.
func arguments(c Call) string {
	b, err := json.Marshal(c.Input)
	if err != nil || c.Input == nil {
		return "{}"
	}
	return string(b)
}

// callID names a call by the results before it and its place in the turn.
func callID(results, i int) string { return fmt.Sprintf("call_%d_%d", results, i) }

// What every turn says that it took, in tokens.
const (
	usageInput  = 100
	usageCached = 40
	usageOutput = 10
)
