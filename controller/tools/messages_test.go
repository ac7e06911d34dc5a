package tools

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// TestALineThatIsNoMessageIsAnsweredAndLeftOut has a command run meanwhile: it goes on, and what comes after the line is served.
func TestALineThatIsNoMessageIsAnsweredAndLeftOut(t *testing.T) {
	const null = "null"
	call := func(id, more string) string {
		return `{"method":"tools/call","params":{"name":"exec","id":"other","arguments":{"command":"` + more + `"}},"jsonrpc":"2.0","id":` + id + `}`
	}
	deep := strings.Repeat("[", 20_000)
	for name, tt := range map[string]struct{ line, id string }{
		"no JSON":                  {"warning: a program says something", null},
		"half of a message":        {`{"jsonrpc":"2.0","id":9,"method":"pi`, "9"},
		"two messages":             {`{"jsonrpc":"2.0","id":9,"method":"ping"} {"jsonrpc":"2.0","id":10,"method":"ping"}`, "10"},
		"more behind it":           {`{"jsonrpc":"2.0","id":9,"method":"ping"} x`, "9"},
		"a list of messages":       {`[{"jsonrpc":"2.0","id":9,"method":"ping"}]`, null},
		"nested deeply":            {deep, null},
		"arguments, deeply":        {`{"jsonrpc":"2.0","id":"x\"y","method":"tools/call","params":` + deep + strings.Repeat("]", 20_000) + `}`, `"x\"y"`},
		"too long":                 {call(`"after"`, strings.Repeat("x", maxMessage)), `"after"`},
		"too long, response":       {`{"jsonrpc":"2.0","id":1,"result":"` + strings.Repeat("x", maxMessage) + `"}`, null},
		"an object as its id":      {`{"jsonrpc":"2.0","id":{"a":1},"method":"ping"}`, null},
		"an id that is no integer": {`{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, "1.5"},
		"an id that is rounded":    {`{"jsonrpc":"2.0","id":1764324000123456789,"method":"ping"}`, "1764324000123456789"},
		"another version":          {`{"jsonrpc":"1.0","id":9,"method":"ping"}`, "9"},
		"a long id":                {`{"jsonrpc":"2.0","id":[],"method":"ping","id":"` + strings.Repeat("i", 1000) + `","x":}`, null},
	} {
		t.Run(name, func(t *testing.T) {
			of := endless{begun: make(chan struct{}, 1)}
			box, err := New(t.Context(), Config{Program: "test", Version: "1", Sandbox: of, Dir: "/"})
			if err != nil {
				t.Fatal(err)
			}
			defer box.Close()
			read, in := io.Pipe()
			out, write := io.Pipe()
			done := make(chan error, 1)
			go func() {
				done <- box.Serve(t.Context(), read, write)
				_ = write.Close()
			}()
			lines := bufio.NewReader(out)
			say := func(line string) {
				t.Helper()
				if _, err := io.WriteString(in, line); err != nil {
					t.Fatal(err)
				}
			}
			hear := func() (id string, failed bool) {
				t.Helper()
				line, err := lines.ReadBytes('\n')
				if err != nil {
					t.Fatal(err)
				}
				var answer struct{ ID, Error json.RawMessage }
				if err := json.Unmarshal(line, &answer); err != nil {
					t.Fatalf("%v %s", err, line)
				}
				return string(answer.ID), answer.Error != nil
			}
			say(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
				`"clientInfo":{"name":"x","version":"1"}}}` + "\n")
			hear()
			say(call("2", "sleep") + "\n")
			<-of.begun
			say(tt.line + "\n")
			if id, failed := hear(); !failed || id != tt.id {
				t.Errorf("answered: %s, an error: %v", id, failed)
			}
			say("\r\n" + `{"jsonrpc":"2.0","id":3,"method":"ping"} ` + "\r\n")
			if id, failed := hear(); failed || id != "3" {
				t.Errorf("the next message: %s, an error: %v", id, failed)
			}
			say(tt.line[:len(tt.line)-1]) // and the client ends
			_ = in.Close()
			go func() { _, _ = io.Copy(io.Discard, lines) }() // ends with the pipe
			if err := <-done; err != nil {
				t.Errorf("the end of the client: %v", err)
			}
		})
	}
}

// TestAnIDThatWouldBeRoundedIsRefusedOverHTTP has an answer with the id as it was written.
func TestAnIDThatWouldBeRoundedIsRefusedOverHTTP(t *testing.T) {
	url, end := serveHTTP(t, openTools(t))
	for id, status := range map[string]int{"1764324000123456789": 400, "1.5": 400, "9007199254740991": 200, `"1.5"`: 200} {
		got, answer, _ := post(t, url, `{"jsonrpc":"2.0","id":`+id+`,"method":"initialize","params":{"protocolVersion":"2025-06-18",`+
			`"capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`, func(*http.Request) {})
		if got != status || !strings.Contains(answer, `"id":`+id+`,`) || strings.Contains(answer, `"error"`) != (status == 400) {
			t.Errorf("%s: %d %s", id, got, answer)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
