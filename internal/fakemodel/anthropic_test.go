package fakemodel

import (
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

func TestTheMessagesFormat(t *testing.T) {
	s := New(Turns(Turn{Status: 500}, Turn{Say: "Looking.", Calls: []Call{{Tool: "Bash", Input: map[string]any{"command": "ls"}}}}))
	ask := func(body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, "/v1/messages?beta=true", strings.NewReader(body))
		r.Header.Set("X-Api-Key", "k")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w
	}
	if w := ask(`{"model":"m1","messages":[{"role":"user","content":"Do it."}]}`); w.Code != 500 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for _, body := range []string{`{"messages":7}`, `{"system":7}`, `{"messages":[{"content":{"a":1}}]}`, `x`} {
		if w := ask(body); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", body, w.Code)
		}
	}
	w := ask(
		`{"model":"m1","system":[{"type":"text","text":"Be nice."}],"tools":[{"name":"Bash"}],"messages":[{"role":"user","content":"Do it."},
		{"role":"assistant","content":[{"type":"tool_use","id":"c1"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","is_error":true,
		"content":[{"type":"text","text":"denied"}]},{"type":"text","text":"go on"}]}]}`,
	)
	requests := s.Requests()
	got := requests[len(requests)-1]
	got.Header, got.Body = nil, nil
	want := Request{
		Format: "anthropic", Path: "/v1/messages", Key: "k", Model: "m1", System: "Be nice.", Texts: []string{"Do it.", "go on"},
		Results: []Result{{ID: "c1", Text: "denied", Failed: true}}, Tools: []string{"Bash"},
	}
	if len(requests) != 2 || !reflect.DeepEqual(got, want) {
		t.Errorf("%d requests, got %+v", len(requests), got)
	}
	var names []string
	for line := range strings.Lines(w.Body.String()) {
		if name, ok := strings.CutPrefix(line, "event: "); ok {
			names = append(names, strings.TrimSpace(name))
		}
	}
	part := []string{"content_block_start", "content_block_delta", "content_block_stop"}
	order := append(append(append([]string{"message_start"}, part...), part...), "message_delta", "message_stop")
	if !reflect.DeepEqual(names, order) {
		t.Errorf("%v", names)
	}
	for _, text := range []string{`"text":"Looking."`, `"index":1`, `"id":"toolu_1_0"`, `"partial_json":"{\"command\":\"ls\"}"`,
		`"stop_reason":"tool_use"`} {
		if !strings.Contains(w.Body.String(), text) {
			t.Errorf("no %s in %s", text, w.Body)
		}
	}
}
