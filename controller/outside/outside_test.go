package outside

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/internal/testenv"
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

// Names are resolved and servers verified by the operator's configuration, as in
// sessions.
func TestRequestsFollowTheConfiguration(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") }))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t)}} // other tests trust that of package httptest
	server.StartTLS()
	defer server.Close()
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "https://"), ":")
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	ca := write("ca.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	p, err := syntax.Load(policy.Source{Name: "p.yaml", Data: []byte("version: 1\nname: p\nnetwork_rules:\n" +
		"  - {name: open, domains: [example.com], cidrs: [127.0.0.1/32], ports: [" + port + "], paths: [/**], decision: allow}\n")}, syntax.Options{})
	if err != nil {
		t.Fatal(err)
	}
	names := testenv.NameServer(t)
	for text, want := range map[string]string{
		"degraded: []\nnetwork: {resolvers: ['" + names + "'], ca_files: ['" + ca + "']}\n": "here",
		"network: {resolvers: ['" + names + "']}\n":                                         "certificate",
		"network: {resolver: ['192.0.2.53']}\n":                                             `c.yaml:1:11: network has no key "resolver"`,
		"network: {ca_files: [/nosuch/ca.pem]}\n":                                           "c.yaml:1:22: authorities: stat /nosuch/ca.pem",
		"version: 1\nname: p\ncommand_rules: []\n":                                          "this is a policy, not a configuration",
	} {
		c, err := Open(Options{Policy: p, Events: filepath.Join(t.TempDir(), "events.jsonl"), Config: write("c.yaml", text)})
		if err != nil {
			if !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://example.com:"+port+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if res, err := c.RoundTrip(r); err != nil {
			got = err.Error()
		} else {
			text, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			got = string(text)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	missing := Options{Policy: p, Events: filepath.Join(t.TempDir(), "e"), Config: filepath.Join(dir, "none")}
	if _, err := Open(missing); !errors.Is(err, ErrConfig) {
		t.Errorf("a configuration that is not there: %v", err)
	}
}

// certificate is a certificate that no other test knows.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"example.com"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
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
