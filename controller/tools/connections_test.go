package tools

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"
)

// TestClientsWithoutTheTokenKeepNobodyOut has strangers hold connections in each state, and clients that have shown the
// token keep theirs.
func TestClientsWithoutTheTokenKeepNobodyOut(t *testing.T) {
	const most = 4
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		known(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })).ServeHTTP(w, r)
	})
	server, limited := httpServer(l, own, most)
	served := make(chan error, 1)
	go func() { served <- server.Serve(limited) }()
	defer func() {
		_ = server.Close()
		<-served
	}()
	dial := func(sent string) net.Conn {
		t.Helper()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			_, err = io.WriteString(conn, sent)
		}
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	request := func(more string) string {
		return fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: %s\r\n%s\r\n", l.Addr(), more)
	}
	ask := func(conn net.Conn) {
		t.Helper()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatal(res.Status)
		}
	}
	client := request("Authorization: x\r\nContent-Length: 0\r\n")
	var clients []net.Conn
	for len(clients) < most {
		for _, stranger := range []string{"", "POST", request("Content-Length: 9\r\n"), request("Content-Length: 0\r\n")} {
			for range most {
				dial(stranger)
			}
		}
		conn := dial(client)
		ask(conn)
		clients = append(clients, conn)
	}
	late := dial(client) // waits for one of the others
	for _, conn := range clients {
		if _, err := io.WriteString(conn, client); err != nil {
			t.Fatal(err)
		}
		ask(conn)
	}
	limited.mu.Lock()
	open := limited.open
	limited.mu.Unlock()
	if open > most+1 { // late may have been accepted before the last client had shown the token
		t.Errorf("%d connections", open)
	}
	_ = clients[0].Close()
	ask(late)
}
