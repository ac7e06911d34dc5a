package tools

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// callOf is a call of exec in a session.
const callOf = `{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"exec","arguments":{"command":"sleep 1000"}}}`

// busySession has a session with a command that runs, and whose client does not read the answer.
func busySession(t *testing.T, url string, of endless) (id string, gone context.CancelFunc) {
	t.Helper()
	status, answer, header := post(t, url, initialize, func(*http.Request) {})
	if id = header.Get("Mcp-Session-Id"); status != http.StatusOK || id == "" {
		t.Fatalf("%d %s", status, answer)
	}
	ctx, gone := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(callOf))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Authorization": "Bearer " + token, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		"Mcp-Session-Id": id,
	} {
		r.Header.Set(name, value)
	}
	go func() { // ends with the answer, or with gone
		if res, err := http.DefaultClient.Do(r); err == nil {
			_ = res.Body.Close()
		}
	}()
	<-of.begun
	return id, gone
}

// TestTheEndOfASessionEndsItsCalls has one client end its session while its command runs. The command of another one goes on.
func TestTheEndOfASessionEndsItsCalls(t *testing.T) {
	of := endless{begun: make(chan struct{}, 2)}
	box, err := New(t.Context(), Config{Program: "test", Version: "1", Sandbox: of, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	server := httptest.NewServer(Handler(box, token))
	defer server.CloseClientConnections() // of the client that goes on
	url := server.URL + Path
	id, gone := busySession(t, url, of)
	defer gone()
	_, other := busySession(t, url, of)
	defer other()
	client := http.Client{Timeout: time.Minute}
	r, err := http.NewRequest(http.MethodDelete, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Mcp-Session-Id", id)
	res, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	eventually(t, func() bool { return box.calls.number() == 1 })
	if res.StatusCode != http.StatusNoContent {
		t.Errorf("status %d", res.StatusCode)
	}
}

// TestASessionThatMakesRoomEndsItsCalls has clients that vanish while their commands run.
func TestASessionThatMakesRoomEndsItsCalls(t *testing.T) {
	const most = 3
	of := endless{begun: make(chan struct{}, 1)}
	box, err := New(t.Context(), Config{Program: "test", Version: "1", Sandbox: of, Dir: "/"})
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	server := httptest.NewServer(handler(box, token, most))
	defer server.CloseClientConnections()
	for range 4 * most {
		_, gone := busySession(t, server.URL+Path, of)
		gone()
	}
	eventually(t, func() bool {
		_, _, _ = post(t, server.URL+Path, initialize, func(*http.Request) {}) // each makes room
		return box.calls.number() == 0
	})
}

// TestAListOfMessagesIsRefused over HTTP, as over a stream.
func TestAListOfMessagesIsRefused(t *testing.T) {
	url, end := serveHTTP(t, openTools(t))
	_, _, header := post(t, url, initialize, func(*http.Request) {})
	session := func(r *http.Request) { r.Header.Set("Mcp-Session-Id", header.Get("Mcp-Session-Id")) }
	for _, list := range []string{`[{"jsonrpc":"2.0","id":2,"method":"ping"}]`, " \r\n\t[]", fmt.Sprintf(`[%s,%s]`, callOf, callOf)} {
		status, answer, _ := post(t, url, list, session)
		if status != http.StatusBadRequest || !strings.Contains(answer, "lists of messages are refused") {
			t.Errorf("%s: %d %s", list, status, answer)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
