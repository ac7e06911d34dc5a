package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"agentsh/controller"
	"agentsh/internal/testenv"
)

// standIn simulates a provider's server. It accepts only the real value.
type standIn struct {
	mu   sync.Mutex
	seen []string // received Authorization headers
	port string
	ca   []byte
	dns  string // address of a name server that resolves api.provider.test to it

	instead http.Handler // answers in its place; nil: nothing
}

const realValue = "real-value-of-the-token-8841"

func newStandIn(t *testing.T) *standIn {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "stand-in"}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, DNSNames: []string{"api.provider.test"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	s := &standIn{ca: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	server := httptest.NewUnstartedServer(s)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	_, s.port, err = net.SplitHostPort(server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s.dns = testenv.NameServer(t)
	return s
}

// ServeHTTP accepts requests with the real value, and returns the value in the
// response.
func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.instead != nil {
		s.instead.ServeHTTP(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r.Header.Get("Authorization"))
	fmt.Fprintf(w, "you are %s\n", r.Header.Get("Authorization"))
}

func TestACredentialIsSwappedAtItsProviderOnly(t *testing.T) {
	t.Parallel()
	p, s := newProviderFixture(t, `
curl -sS -H "Authorization: Bearer $TOKEN" PROVIDER >answer.txt 2>&1
curl -sS -H "X-Other: $TOKEN" PROVIDER >misplaced.txt 2>&1
env >variables.txt
cat /sandbox/workspace/.env.d/* >>variables.txt
git add -A
git -c user.name=a -c user.email=a@example.com commit -q -m answers`, "")
	cmd := p.command(p.runArgs("--agentsh-config", "config.yaml")...)
	cmd.Env = append(cmd.Env, "HOST_TOKEN="+realValue)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !strings.Contains(string(out), "provider github: create") {
		t.Errorf("the run does not say what it did with the provider:\n%s", out)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) != 1 || s.seen[0] != "Bearer "+realValue {
		t.Errorf("the server saw %q", s.seen)
	}
	commit := p.git("rev-list", "--all", "--max-count=1")
	for name, want := range map[string]string{
		"answer.txt":    "you are Bearer ****", // removed from the response
		"misplaced.txt": "the header X-Other",
		"variables.txt": "TOKEN=agentsh-placeholder-",
	} {
		if text := p.git("show", commit+":"+name); !strings.Contains(text, want) || strings.Contains(text, realValue) {
			t.Errorf("%s: %q", name, text)
		}
	}
	p.withoutValue(out)
}

// withoutValue fails the test if the real value is in the output or in a stored
// file.
func (p *fixture) withoutValue(out []byte) {
	p.t.Helper()
	if bytes.Contains(out, []byte(realValue)) {
		p.t.Errorf("the value was printed:\n%s", out)
	}
	for _, dir := range []string{"out", "state", "repo"} {
		err := filepath.WalkDir(p.path(dir), func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(name)
			if bytes.Contains(data, []byte(realValue)) {
				p.t.Errorf("the value is in %s", name)
			}
			return err
		})
		if err != nil {
			p.t.Error(err)
		}
	}
}

func TestACredentialThatCannotBeUsedIsRefusedFirst(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ endpoints, value, want string }{
		"nowhere to use it": {"", realValue, "names no endpoints"},
		"no place":          {"endpoints: ['api.provider.test:443']\n", realValue, "write one of header: Authorization, query: NAME and path: true"},
		"a short value":     {"endpoints: ['api.provider.test:443']\nheader: Authorization\n", "short", "less than 8 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFixture(t, "true", "providers: [github]")
			p.write("providers/github.yaml", "name: github\ntype: rest\ncredentials: {TOKEN: \"${HOST_TOKEN}\"}\n"+tt.endpoints, 0o644)
			cmd := p.command(p.runArgs()...)
			cmd.Env = append(cmd.Env, "HOST_TOKEN="+tt.value)
			out, err := cmd.CombinedOutput()
			if cmd.ProcessState.ExitCode() != controller.ExitConfiguration || !strings.Contains(string(out), tt.want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
