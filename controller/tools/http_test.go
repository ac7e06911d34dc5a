package tools

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const token = "the-token"

// bearer adds a token to requests.
type bearer struct{ token string }

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.token)
	return http.DefaultTransport.RoundTrip(r)
}

// serveHTTP serves tools at a free port. end ends it and returns the error.
func serveHTTP(t *testing.T, box *Toolbox) (url string, end func() error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- box.ServeHTTP(ctx, l, token) }() // ends with end
	t.Cleanup(cancel)
	return "http://" + l.Addr().String() + Path, func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(2 * time.Minute):
			t.Fatal("the server does not end")
			return nil
		}
	}
}

func connectHTTP(t *testing.T, url, version string) *mcp.ClientSession {
	t.Helper()
	client, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(context.Background(),
		&mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: bearer{token}}},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// post is a request of a client that has no SDK.
func post(t *testing.T, url, body string, change func(*http.Request)) (status int, answer string, header http.Header) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json, text/event-stream")
	change(r)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(data), res.Header
}

const initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},` +
	`"clientInfo":{"name":"x","version":"1"}}}`

func TestOnlyClientsWithTheTokenUseTheTools(t *testing.T) {
	box := openTools(t)
	url, end := serveHTTP(t, box)
	for name, tt := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"the token":              {func(*http.Request) {}, http.StatusOK},
		"no token":               {func(r *http.Request) { r.Header.Del("Authorization") }, http.StatusUnauthorized},
		"another token":          {func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }, http.StatusUnauthorized},
		"a page of this server":  {func(r *http.Request) { r.Header.Set("Origin", "http://"+r.URL.Host) }, http.StatusOK},
		"a page elsewhere":       {func(r *http.Request) { r.Header.Set("Origin", "http://example.com") }, http.StatusForbidden},
		"a page of another port": {func(r *http.Request) { r.Header.Set("Origin", "http://127.0.0.1:1") }, http.StatusForbidden},
		"a page without a host":  {func(r *http.Request) { r.Header.Set("Origin", "null") }, http.StatusForbidden},
		"a name that leads here": {func(r *http.Request) { r.Host = "example.com" }, http.StatusForbidden},
		"such a page": {func(r *http.Request) {
			r.Host = "example.com"
			r.Header.Set("Origin", "http://example.com")
		}, http.StatusForbidden},
		"another path":              {func(r *http.Request) { r.URL.Path = "/" }, http.StatusNotFound},
		"an unknown old version":    {func(r *http.Request) { r.Header.Set("Mcp-Protocol-Version", "2020-01-01") }, http.StatusBadRequest},
		"a session that is not one": {func(r *http.Request) { r.Header.Set("Mcp-Session-Id", "x") }, http.StatusNotFound},
	} {
		if status, answer, _ := post(t, url, initialize, tt.change); status != tt.want {
			t.Errorf("%s: %d, want %d: %s", name, status, tt.want, answer)
		}
	}
	huge := `{"jsonrpc":"2.0","id":1,"method":"` + strings.Repeat("x", maxMessage) + `"}`
	if status, _, _ := post(t, url, huge, func(*http.Request) {}); status < 400 {
		t.Errorf("a huge request: %d", status)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// TestClientsOverHTTPWorkInOneSandbox has a client with a session and clients of the version of the protocol
// that has none.
func TestClientsOverHTTPWorkInOneSandbox(t *testing.T) {
	box := openTools(t)
	url, end := serveHTTP(t, box)
	one, two := connectHTTP(t, url, "2025-06-18"), connectHTTP(t, url, "2026-07-28")
	if one.ID() == "" || two.ID() != "" {
		t.Errorf("sessions %q and %q", one.ID(), two.ID())
	}
	if res, err := callExec(context.Background(), one, "sh", "-c", "mkdir -p workspace && echo shared >workspace/f"); err != nil || res.IsError {
		t.Fatal(res, err)
	}
	res, err := callExec(context.Background(), two, "cat", "workspace/f")
	if err != nil || !strings.Contains(res.Content[0].(*mcp.TextContent).Text, "shared") {
		t.Errorf("%+v %v", res, err)
	}
	const request = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec","arguments":{"argv":["cat","workspace/f"]},"_meta":{` +
		`"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"x","version":"1"},` +
		`"io.modelcontextprotocol/clientCapabilities":{}}}}`
	status, answer, header := post(t, url, request, func(r *http.Request) {
		r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
		r.Header.Set("Mcp-Method", "tools/call")
		r.Header.Set("Mcp-Name", "exec")
	})
	if status != http.StatusOK || !strings.Contains(answer, "shared") || header.Get("Mcp-Session-Id") != "" {
		t.Errorf("%d %v %s", status, header, answer)
	}
	for _, client := range []*mcp.ClientSession{one, two} {
		ctx, cancel := context.WithCancel(context.Background())
		cancelled := make(chan error, 1)
		go func() { // ends with ctx
			_, err := callExec(ctx, client, "sleep", "86397")
			cancelled <- err
		}()
		eventually(t, func() bool { return len(box.slots) == 1 })
		cancel()
		if err := <-cancelled; err == nil {
			t.Error("a cancelled call has a result")
		}
		eventually(t, func() bool { return len(box.slots) == 0 })
	}
	running := make(chan error, 1)
	go func() { // ends with the server
		_, err := callExec(context.Background(), two, "sleep", "86398")
		running <- err
	}()
	eventually(t, func() bool { return len(box.slots) == 1 })
	if err := end(); err != nil {
		t.Error(err)
	}
	select {
	case <-running:
	case <-time.After(2 * time.Minute):
		t.Error("a call goes on after the end of the server")
	}
	box.Close()
	if len(box.slots) != 0 {
		t.Error("a command goes on after the end of the tools")
	}
}

// eventually waits until a condition holds, which another goroutine brings about.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	limit := time.After(2 * time.Minute)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-limit:
			t.Fatal("it does not come to hold")
		}
	}
}
