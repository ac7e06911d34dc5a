package tools

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestSessionsOfClientsThatDoNotEndThemAreBounded has a client that opens a session for each call, beside one
// that keeps its session.
func TestSessionsOfClientsThatDoNotEndThemAreBounded(t *testing.T) {
	const most = 20
	box := openTools(t)
	server := httptest.NewServer(handler(box, token, most))
	defer server.Close()
	url := server.URL + Path
	kept := connectHTTP(t, url, "2025-06-18")
	for i := range 3 * most {
		if status, answer, _ := post(t, url, initialize, func(*http.Request) {}); status != http.StatusOK {
			t.Fatalf("session %d: %d %s", i, status, answer)
		}
		if _, err := kept.ListTools(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		strangers := func(r *http.Request) { r.Header.Set("Mcp-Session-Id", fmt.Sprint("x", i)) }
		if status, answer, _ := post(t, url, initialize, strangers); status != http.StatusNotFound {
			t.Fatalf("a session that is not one: %d %s", status, answer)
		}
	}
	eventually(t, func() bool { return len(slices.Collect(box.server.Sessions())) <= most })
	if err := kept.Close(); err != nil {
		t.Errorf("the client that works: %v", err)
	}
}

// TestTheBodiesOfRequestsAreBounded has requests with and without an announced size meet others.
func TestTheBodiesOfRequestsAreBounded(t *testing.T) {
	box := openTools(t)
	url, end := serveHTTP(t, box)
	if err := box.limits.bodies.hold(maxArguments - 100); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*http.Request){
		"announced": func(*http.Request) {}, "not announced": func(r *http.Request) { r.ContentLength = -1 },
	} {
		status, answer, _ := post(t, url, initialize, change)
		if status != http.StatusServiceUnavailable || !strings.Contains(answer, "MiB of arguments") {
			t.Errorf("%s: %d %s", name, status, answer)
		}
	}
	box.limits.bodies.release(maxArguments - 100)
	if status, answer, _ := post(t, url, initialize, func(*http.Request) {}); status != http.StatusOK {
		t.Errorf("%d %s", status, answer)
	}
	if err := end(); err != nil || box.limits.bodies.held != 0 {
		t.Errorf("%v, %d bytes are counted", err, box.limits.bodies.held)
	}
}

// TestABodyThatDoesNotComeEndsItsConnection has clients with and without the token send a header, and
// nothing more.
func TestABodyThatDoesNotComeEndsItsConnection(t *testing.T) {
	bodyWait = 200 * time.Millisecond
	t.Cleanup(func() { bodyWait = defaultBodyWait })
	url, end := serveHTTP(t, openTools(t))
	host := strings.TrimSuffix(strings.TrimPrefix(url, "http://"), Path)
	for name, tt := range map[string]struct {
		header string
		want   int
	}{
		"no token":              {"", http.StatusUnauthorized},
		"the token":             {"Authorization: Bearer " + token + "\r\n", http.StatusRequestTimeout},
		"the newest version":    {"Authorization: Bearer " + token + "\r\nMcp-Protocol-Version: 2026-07-28\r\n", http.StatusRequestTimeout},
		"a page of another one": {"Origin: http://example.com\r\n", http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", host)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(2 * time.Minute)) // it hangs
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"+
				"Accept: application/json, text/event-stream\r\nContent-Length: 1000\r\n%s\r\n{", Path, host, tt.header)
			from := bufio.NewReader(conn)
			res, err := http.ReadResponse(from, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			if _, err := from.ReadByte(); res.StatusCode != tt.want || err != io.EOF {
				t.Errorf("%d, then %v", res.StatusCode, err)
			}
		})
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
