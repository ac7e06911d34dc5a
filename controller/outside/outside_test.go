package outside

import (
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/policy/syntax"
	"agentsh/supervisor/audit"
)

const (
	placeholder = "agentsh-placeholder-0001"
	value       = "the-real-value-of-the-key"
)

// open makes a client that may reach a server at /open, and its log.
func open(t *testing.T, server *httptest.Server) (*Client, string) {
	t.Helper()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	data := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(ca, data, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", ca)
	host := strings.TrimPrefix(server.URL, "https://")
	_, port, _ := strings.Cut(host, ":")
	p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte("version: 1\nname: p\nnetwork_rules:\n" +
		"  - {name: open, cidrs: [127.0.0.1/32], ports: [" + port + "], paths: [/open/**], decision: allow}\n")}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "events.jsonl")
	c, err := Open(Options{Policy: p, Events: log, Credentials: []wire.Credential{
		{Name: "p.KEY", Placeholder: placeholder, Value: value, Endpoints: []string{host}, Header: "Authorization"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c, log
}

func TestRequestsAreJudgedAndHaveTheCredential(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]string{}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen[r.URL.Path] = r.Header.Get("Authorization")
	}))
	defer server.Close()
	c, log := open(t, server)
	for path, denied := range map[string]bool{"/open/a": false, "/other": true} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+placeholder)
		res, err := c.RoundTrip(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
		}
		var refusal *Denied
		if errors.As(err, &refusal) != denied || !denied && err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if len(seen) != 1 || seen["/open/a"] != "Bearer "+value {
		t.Errorf("the server saw %v", seen)
	}
	data, err := os.ReadFile(log)
	if err != nil || strings.Contains(string(data), value) || !strings.Contains(string(data), "/other") {
		t.Errorf("%v: %s", err, data)
	}
	if head, err := audit.VerifyFile(log, log+".key"); err != nil || head.Seq == 0 {
		t.Errorf("%+v, %v", head, err)
	}
}

// No other process of the user can reach the proxy, and a long name of the directory
// for temporary files does not matter.
func TestTheProxyHasNoAddress(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	c, _ := open(t, server)
	defer c.Close()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

// Requests at the same time get their own answers.
func TestADenialIsThatOfItsRequest(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) }))
	defer server.Close()
	c, _ := open(t, server)
	var all sync.WaitGroup
	for i := range 8 {
		path := []string{"/open/a", "/other"}[i%2]
		all.Go(func() {
			for range 10 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				res, err := c.RoundTrip(r)
				var refusal *Denied
				if err != nil {
					if !errors.As(err, &refusal) || path != "/other" || refusal.Event.Path != path {
						t.Errorf("%s: %v", path, err)
					}
					continue
				}
				text, err := io.ReadAll(res.Body)
				_ = res.Body.Close()
				if err != nil || path == "/other" || string(text) != path {
					t.Errorf("%s: %d %q %v", path, res.StatusCode, text, err)
				}
			}
		})
	}
	all.Wait()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}
