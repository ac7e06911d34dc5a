package fakemodel

import (
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

// The real programs are asked in test/agents; here is what a test reads of
// their requests, and what they are sent.
func TestRequestsAreReadAlike(t *testing.T) {
	want := Request{
		Model: "m1", System: "Be nice.", Texts: []string{"Do it."},
		Results: []Result{{ID: "c1", Text: "done"}, {ID: "c2", Text: "denied", Failed: true}}, Tools: []string{"shell", "patch"}, Key: "k",
	}
	tests := []struct{ format, path, header, body string }{
		{
			"responses",
			"/v1/responses",
			"Authorization",
			`{"model":"m1","instructions":"Be nice.","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Do it."}]},
			{"type":"function_call","name":"shell","call_id":"c1"},{"type":"function_call_output","call_id":"c1","output":"done"},{"type":"custom_tool_call_output","call_id":"c2","output":[{"type":"input_text","text":"denied"}]}],
			"tools":[{"type":"function","name":"shell"},{"type":"namespace","tools":[{"type":"custom","name":"patch"}]}]}`,
		},
		{
			"chat",
			"/v1/chat/completions",
			"Authorization",
			`{"model":"m1","messages":[{"role":"system","content":"Be nice."},{"role":"user","content":[{"type":"text","text":"Do it."}]},
			{"role":"assistant","content":"","tool_calls":[]},{"role":"tool","tool_call_id":"c1","content":"done"},{"role":"tool","tool_call_id":"c2","content":"denied"}],
			"tools":[{"type":"function","function":{"name":"shell"}},{"type":"function","function":{"name":"patch"}}]}`,
		},
		{
			"gemini",
			"/v1beta/models/m1:streamGenerateContent",
			"X-Goog-Api-Key",
			`{"systemInstruction":{"parts":[{"text":"Be nice."}]},"contents":[{"role":"user","parts":[{"text":"Do it."}]},
			{"role":"model","parts":[{"functionCall":{"name":"shell"}}]},{"role":"user","parts":[{"functionResponse":{"id":"c1","response":{"output":"done"}}},{"functionResponse":{"id":"c2","response":{"error":"denied"}}}]}],
			"tools":[{"functionDeclarations":[{"name":"shell"},{"name":"patch"}]}]}`,
		},
	}
	for _, tt := range tests {
		t.Run(tt.format, func(t *testing.T) {
			s := New(Turns(Turn{Say: "ok"}))
			r := httptest.NewRequest(http.MethodPost, tt.path, strings.NewReader(tt.body))
			r.Header.Set(tt.header, "k")
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "ok") {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			got := s.Requests()[0]
			if got.Format != tt.format {
				t.Fatalf("read as %s", got.Format)
			}
			expect := want
			expect.Format, expect.Path, expect.Header, expect.Body = got.Format, tt.path, got.Header, []byte(tt.body)
			if tt.format != "gemini" { // the others do not say that a tool failed
				expect.Results = []Result{{ID: "c1", Text: "done"}, {ID: "c2", Text: "denied"}}
			}
			if tt.format == "chat" {
				expect.Texts = []string{"Do it.", ""}
			}
			if !reflect.DeepEqual(got, expect) {
				t.Errorf("got  %+v\nwant %+v", got, expect)
			}
		})
	}
}

func TestCallsAreWritten(t *testing.T) {
	turn := Turn{
		Say:   "Looking.",
		Calls: []Call{{Tool: "shell", Input: map[string]any{"cmd": "ls"}}, {Tool: "patch", Input: map[string]any{"input": "*** Begin"}}},
	}
	tests := []struct {
		path, body string
		want       []string
	}{
		{"/v1/responses", `{"tools":[{"type":"custom","name":"patch"}]}`, []string{
			"event: response.created\n", `"text":"Looking."`, `"arguments":"{\"cmd\":\"ls\"}"`, `"call_id":"call_0_0"`,
			`"type":"custom_tool_call"`, `"input":"*** Begin"`,
			"event: response.completed\n", `"cached_tokens":40`,
		}},
		{
			"/chat/completions",
			`{}`,
			[]string{
				`"content":"Looking."`,
				`"arguments":"{\"cmd\":\"ls\"}"`,
				`"finish_reason":"tool_calls"`,
				`"prompt_tokens":100`,
				"data: [DONE]",
			},
		},
		{"/models/m:streamGenerateContent", `{}`, []string{`data: {`, `"text":"Looking."`, `"args":{"cmd":"ls"}`, `"promptTokenCount":100`}},
		{"/models/m:generateContent", `{}`, []string{`{"candidates"`, `"text":"Looking."`}},
	}
	for _, tt := range tests {
		t.Run(tt.path, func(t *testing.T) {
			w := httptest.NewRecorder()
			New(Turns(turn)).ServeHTTP(w, httptest.NewRequest(http.MethodPost, tt.path, strings.NewReader(tt.body)))
			body, err := io.ReadAll(w.Result().Body)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				if !strings.Contains(string(body), want) {
					t.Errorf("no %s in %s", want, body)
				}
			}
		})
	}
}
