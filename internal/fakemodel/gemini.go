package fakemodel

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strings"
)

func init() { formats = append(formats, gemini{}) }

// gemini is the generateContent method of the Gemini API, streamed or whole.
type gemini struct{}

func (gemini) name() string { return "gemini" }

// Methods of the Gemini API.
const (
	geminiStream = ":streamGenerateContent"
	geminiWhole  = ":generateContent"
)

func (gemini) matches(r *http.Request) bool {
	return r.Method == http.MethodPost && (strings.HasSuffix(r.URL.Path, geminiStream) || strings.HasSuffix(r.URL.Path, geminiWhole))
}

type geminiContent struct {
	Role  string `json:"role"`
	Parts []struct {
		Text             string `json:"text"`
		FunctionResponse *struct {
			ID       string          `json:"id"`
			Name     string          `json:"name"`
			Response json.RawMessage `json:"response"`
		} `json:"functionResponse"`
	} `json:"parts"`
}

// geminiBody is what a request says, as far as a test reads it.
type geminiBody struct {
	Contents []geminiContent `json:"contents"`
	System   geminiContent   `json:"systemInstruction"`
	Tools    []struct {
		FunctionDeclarations []struct {
			Name string `json:"name"`
		} `json:"functionDeclarations"`
	} `json:"tools"`
}

func (gemini) read(r *http.Request, body []byte, into *Request) error {
	var b geminiBody
	if err := json.Unmarshal(body, &b); err != nil {
		return fmt.Errorf("read request of gemini: %w", err)
	}
	into.Model, _, _ = strings.Cut(path.Base(r.URL.Path), ":")
	for _, p := range b.System.Parts {
		into.System += p.Text
	}
	for _, c := range b.Contents {
		for _, p := range c.Parts {
			if p.FunctionResponse != nil {
				into.Results = append(into.Results, geminiResult(p.FunctionResponse.ID, p.FunctionResponse.Response))
			} else if p.Text != "" {
				into.Texts = append(into.Texts, p.Text)
			}
		}
	}
	for _, t := range b.Tools {
		for _, f := range t.FunctionDeclarations {
			into.Tools = append(into.Tools, f.Name)
		}
	}
	return nil
}

// geminiResult reads a tool's answer: its output, or its error.
func geminiResult(id string, response json.RawMessage) Result {
	var r struct {
		Output string `json:"output"`
		Error  string `json:"error"`
	}
	if json.Unmarshal(response, &r) != nil || r.Output == "" && r.Error == "" {
		return Result{ID: id, Text: string(response)}
	}
	return Result{ID: id, Text: r.Output + r.Error, Failed: r.Error != ""}
}

func (gemini) write(w io.Writer, r Request, t Turn) error {
	parts := []any{}
	if t.Say != "" {
		parts = append(parts, map[string]any{"text": t.Say})
	}
	for i, c := range t.Calls {
		input := c.Input
		if input == nil {
			input = map[string]any{}
		}
		parts = append(parts, map[string]any{"functionCall": map[string]any{"id": callID(len(r.Results), i), "name": c.Tool, "args": input}})
	}
	answer := map[string]any{
		"candidates":   []any{map[string]any{"index": 0, "content": map[string]any{"role": "model", "parts": parts}, "finishReason": "STOP"}},
		"modelVersion": r.Model, "responseId": fmt.Sprintf("r%d", len(r.Results)),
		"usageMetadata": map[string]any{
			"promptTokenCount": usageInput, "cachedContentTokenCount": usageCached,
			"candidatesTokenCount": usageOutput, "totalTokenCount": usageInput + usageOutput,
		},
	}
	if strings.HasSuffix(r.Path, geminiStream) {
		return event(w, "", answer)
	}
	return json.NewEncoder(w).Encode(answer)
}
