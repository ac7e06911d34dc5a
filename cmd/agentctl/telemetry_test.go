package main

import (
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"agentsh/controller"
)

// requests is a double of a collector: it counts requests by their path, and takes all.
type requests struct {
	*httptest.Server
	mu   sync.Mutex
	seen map[string]int
	auth string
}

func newRequests(t *testing.T) *requests {
	r := &requests{seen: map[string]int{}}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen[req.URL.Path]++
		r.auth = req.Header.Get("Authorization")
	}))
	t.Cleanup(r.Close)
	return r
}

// closedPort is an address at which nobody listens.
func closedPort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	return "http://" + l.Addr().String()
}

func TestARunIsExported(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo two > a.txt; cat /etc/shadow; exit 0", "")
	c := newRequests(t)
	p.write("headers", "# of the collector\nAuthorization: Bearer secret-of-the-collector\n", 0o600)
	r, code := p.run("--otlp", c.URL, "--otlp-headers", p.path("headers"))
	if code != 0 || r.Telemetry == nil || r.Telemetry.NotSent != 0 || r.Telemetry.Sent < 20 || r.Telemetry.To != c.URL {
		t.Errorf("exit code %d: %+v", code, r.Telemetry)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen["/v1/logs"] == 0 || c.seen["/v1/traces"] == 0 || c.seen["/v1/metrics"] == 0 || c.auth != "Bearer secret-of-the-collector" {
		t.Errorf("requests %v, authorization %q", c.seen, c.auth)
	}
	data, err := os.ReadFile(p.path("out/result.json"))
	var stored controller.Result
	if err == nil {
		err = json.Unmarshal(data, &stored)
	}
	if err != nil || stored.Telemetry == nil || stored.Telemetry.TraceID != r.Telemetry.TraceID {
		t.Errorf("result.json has %+v: %v", stored.Telemetry, err)
	}
	_ = filepath.WalkDir(p.dir, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && name != p.path("headers") {
			if text, _ := os.ReadFile(name); strings.Contains(string(text), "secret-of-the-collector") {
				t.Errorf("%s has the header of the collector", name)
			}
		}
		return nil
	})
}

// The collector of agentctl.yaml is away: the run is as it would be without, and says what was not sent.
func TestACollectorThatIsAwayChangesNoRun(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo two > a.txt", "")
	away := closedPort(t)
	p.write("config/agentsh/agentctl.yaml", "otlp: {url: '"+away+"'}\n", 0o644)
	p.setenv = []string{"XDG_CONFIG_HOME=" + p.path("config")}
	out, errs, code := p.try("", p.runArgs()...)
	if code != 0 || !strings.Contains(errs, "events and spans were not sent to "+away) || !strings.Contains(errs, "connection refused") {
		t.Errorf("exit code %d\n%s\n%s", code, out, errs)
	}
	if n := strings.Count(errs, "telemetry"); n != 1 {
		t.Errorf("%d lines about telemetry", n)
	}
}

func TestTheRunsOfABatchAreExported(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo two > a.txt", "")
	c := newRequests(t)
	p.write("batch.yaml", "version: 1\nname: two\nmatrix: {harness: harness.yaml, repo: repo, vars: {N: ['1', '2']}}\n", 0o644)
	_, errs, code := p.try("", "batch", "batch.yaml", "--otlp", c.URL)
	if code != 0 || strings.Contains(errs, "telemetry") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen["/v1/logs"] == 0 || c.seen["/v1/traces"] == 0 {
		t.Errorf("requests %v", c.seen)
	}
	if _, errs, code := p.try("", "batch", "batch.yaml", "--otlp", closedPort(t)); code != 0 || !strings.Contains(errs, "were not sent") {
		t.Errorf("away: exit code %d\n%s", code, errs)
	}
}

func TestMistakesInTheSettingsOfTheExportAreNamed(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "")
	p.write("headers", "Authorization: x\nsecret value without a colon\n", 0o600)
	for _, c := range []struct{ args, want string }{
		{"--otlp=127.0.0.1:4318", "write it as http://127.0.0.1:4318"},
		{"--otlp-headers=" + p.path("headers"), "--otlp-headers without --otlp"},
		{"--otlp=http://127.0.0.1:1 --otlp-headers=" + p.path("headers"), "headers:2: it is no header: write NAME: VALUE"},
		{"--otlp=http://127.0.0.1:1 --otlp-headers=" + p.path("none"), "no such file"},
	} {
		_, errs, code := p.try("", p.runArgs(strings.Fields(c.args)...)...)
		if code != controller.ExitConfiguration || !strings.Contains(errs, c.want) || strings.Contains(errs, "secret") {
			t.Errorf("%s: exit code %d\n%s", c.args, code, errs)
		}
	}
}
