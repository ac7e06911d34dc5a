package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"agentsh/internal/testenv"
)

// prometheusServer is a Prometheus server of Debian.
type prometheusServer struct {
	t  testing.TB
	at string
}

// startPrometheus scrapes with a configuration until the end of the test.
func (p *fixture) startPrometheus(config string) prometheusServer {
	p.t.Helper()
	p.write("prometheus.yml", config, 0o600)
	s := prometheusServer{p.t, closedPort(p.t)}
	cmd := exec.Command("prometheus", "--config.file="+p.path("prometheus.yml"), "--storage.tsdb.path="+p.t.TempDir(),
		"--web.listen-address="+strings.TrimPrefix(s.at, "http://"), "--log.level=warn")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		if said.Len() > 0 {
			p.t.Logf("prometheus: %s", said.String())
		}
	})
	return s
}

// get reads an answer of the server's API; false: there is none yet.
func (s prometheusServer) get(path string, into any) bool {
	s.t.Helper()
	answer, err := http.Get(s.at + path)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	return answer.StatusCode == http.StatusOK && json.NewDecoder(answer.Body).Decode(into) == nil
}

// await asks the server until a query has a value. The server scrapes every second.
func (s prometheusServer) await(query, want string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for last := ""; ; {
		var answer struct {
			Data struct {
				Result []struct {
					Value [2]any `json:"value"`
				} `json:"result"`
			} `json:"data"`
		}
		if s.get("/api/v1/query?query="+url.QueryEscape(query), &answer) && len(answer.Data.Result) == 1 {
			if last = fmt.Sprint(answer.Data.Result[0].Value[1]); last == want {
				return
			}
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			s.t.Errorf("%s is %q, want %q", query, last, want)
			return
		}
	}
}

// A Prometheus server sees a batch whose sandboxes are at a place that it sees too: with a token.
func TestAPrometheusServerScrapes(t *testing.T) {
	testenv.Asked(t, "AGENTSH_PROMETHEUS", "prometheus")
	p := newBatchFixture(t, "cat /etc/shadow; "+waiting, "")
	token := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{9}, 32))
	p.write("token", token+"\n", 0o600)
	p.listeningWith("--metrics", "127.0.0.1:0", "--metrics-token", p.path("token"))
	p.writeBatch(3, "caps: {runs: 2}")
	g := p.startAs("started harness-1", append([]string{"batch", "batch.yaml", "--metrics", "127.0.0.1:0"}, p.place...))
	of := g.errs.find(t, metricsURL)
	host := func(at string) string { return strings.Split(at, "/")[2] }
	s := p.startPrometheus(fmt.Sprintf(`global: {scrape_interval: 1s}
scrape_configs:
  - {job_name: batch, static_configs: [{targets: ['%s']}]}
  - {job_name: place, authorization: {credentials_file: '%s'}, static_configs: [{targets: ['%s']}]}
`, host(of), p.path("token"), host(p.counts)))
	s.await(`agentsh_batch_runs{state="running"}`, "2")
	s.await(`agentsh_batch_queue_length{backend="socket"}`, "1")
	s.await("agentsh_sandboxes", "2")
	s.await(`count(agentsh_denials_total{type="file"} > 0)`, "1")
	s.await("count(up == 1)", "2")
	s.await("sum(agentsh_events_lost_total)", "0")
	for _, at := range []string{of, p.counts} {
		checkMetrics(t, at, token)
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	g.wait()
	s.await("agentsh_sandboxes", "0")
	s.await(`agentsh_sandboxes_ended_total{cause="closed"}`, "2")
}

// checkMetrics has promtool check the text at a URL.
func checkMetrics(t *testing.T, at, token string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", at, answer.Status, err)
	}
	check := exec.Command("promtool", "check", "metrics")
	check.Stdin = bytes.NewReader(text)
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool: %v\n%s\n%s", err, out, text)
	}
}
