package mcpfilter

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestMessagesOfAServerComeOutAsUTF8: whoever reads them next reads the same.
func TestMessagesOfAServerComeOutAsUTF8(t *testing.T) {
	e := filtered(t, Server{Name: "s"}, func(m map[string]any) []string {
		if m["method"] == "tools/call" {
			return []string{reply(m, "{\"content\":[{\"type\":\"text\",\"text\":\"a\xff\xc3b\"}]}")}
		}
		return tools("{\"name\":\"read\",\"description\":\"\xc3\x28\"}")(m)
	})
	for _, ask := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"read"}}`,
		"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\",\"method\":\"tools/list\"}",
	} {
		if got := e.ask(ask); !utf8.ValidString(got) || !strings.Contains(got, `"result"`) {
			t.Errorf("%q", got)
		}
	}
}

// TestAServerThatListsOtherToolsEachTimeIsBounded holds how many names are remembered.
func TestAServerThatListsOtherToolsEachTimeIsBounded(t *testing.T) {
	lists := 0
	serve := func(m map[string]any) []string {
		var page []string
		for i := range maxTools {
			page = append(page, fmt.Sprintf(`{"name":"t%d-%d"}`, lists, i))
		}
		lists++
		return tools(page...)(m)
	}
	e := filtered(t, Server{Name: "s"}, serve)
	for i := range 2 * maxNames / maxTools {
		got := e.ask(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/list"}`, i))
		if listed := strings.Contains(got, `"name"`); listed != (i < maxNames/maxTools) {
			t.Errorf("list %d: %.200s", i, got)
		}
	}
}
