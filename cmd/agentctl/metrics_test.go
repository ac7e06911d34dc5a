package main

import (
	"bufio"
	"context"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"agentsh/controller"
)

// scraped are the counts at a URL, as a Prometheus server reads them.
func scraped(t *testing.T, url string) map[string]*dto.MetricFamily {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	out, err := parser.TextToMetricFamilies(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v", url, answer.Status, err)
	}
	return out
}

// valueOf is the value of the series of a family that has a label; an empty label: of the only one.
func valueOf(f *dto.MetricFamily, label string) float64 {
	for _, m := range f.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetValue() == label {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
		if label == "" {
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return -1
}

var metricsURL = regexp.MustCompile(`http://127\.0\.0\.1:\d+/metrics`)

func TestPrometheusSeesABatch(t *testing.T) {
	p := newBatchFixture(t, waiting, "")
	p.writeBatch(3, "caps: {runs: 2}")
	g := p.startAs("started harness-1", []string{"batch", "batch.yaml", "--metrics", "127.0.0.1:0"})
	at := g.errs.find(t, metricsURL)
	all := scraped(t, at)
	for _, c := range []struct {
		family, label string
		want          float64
	}{
		{"agentsh_batch_runs", "running", 2}, {"agentsh_batch_runs", "waiting", 1}, {"agentsh_batch_runs", "ended", 0},
		{"agentsh_batch_queue_length", "local", 1}, {"agentsh_batch_runs_ended", "done", 0}, {"agentsh_batch_attempts_total", "", 2},
		{"agentsh_batch_retries_total", "", 0}, {"agentsh_batch_sandbox_ends_total", "memory", 0}, {"agentsh_batch_tokens_total", "output", 0},
		{"agentsh_batch_cost_usd_total", "", 0}, {"agentsh_batch_info", "b", 1}, {"agentsh_build_info", "agentctl", 1},
	} {
		if got := valueOf(all[c.family], c.label); got != c.want {
			t.Errorf("%s of %q is %v, want %v", c.family, c.label, got, c.want)
		}
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	if code := g.wait(); code != 143 {
		t.Errorf("exit code %d", code)
	}
	if answer, err := http.Get(at); err == nil {
		_ = answer.Body.Close()
		t.Error("the counts are served after the end")
	}
}

// The address of the configuration may be taken, as by another batch: this one goes on without.
func TestABatchGoesOnWithoutMetrics(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "echo two > a.txt", "")
	taken := newRequests(t)
	p.write("batch.yaml", "name: one\nmatrix: {harness: harness.yaml, repo: repo}\n", 0o644)
	p.write("config/agentsh/agentctl.yaml", "metrics: {listen: '"+strings.TrimPrefix(taken.URL, "http://")+"'}\n", 0o644)
	p.setenv = append(p.setenv, "XDG_CONFIG_HOME="+p.path("config"))
	_, errs, code := p.try("", "batch", "batch.yaml")
	if code != 0 || !strings.Contains(errs, "warning: no counts for Prometheus") || !strings.Contains(errs, "address already in use") {
		t.Errorf("exit code %d\n%s", code, errs)
	}
}

func TestMistakesInTheSettingsOfMetricsAreNamed(t *testing.T) {
	t.Parallel()
	p := newFixture(t, "true", "")
	taken := newRequests(t)
	p.write("batch.yaml", "name: one\nmatrix: {harness: harness.yaml, repo: repo}\n", 0o644)
	p.write("open", "x", 0o644)
	for _, c := range []struct{ args, config, want string }{
		{args: "--metrics=localhost:9464", want: "--metrics \"localhost:9464\": write an IP address and a port, as in 127.0.0.1:9464"},
		{args: "--metrics=0.0.0.0:9464", want: "write 127.0.0.1:9464, or name a file with a token with --metrics-token"},
		{args: "--metrics-token=open", want: "--metrics-token without --metrics"},
		{args: "--metrics=127.0.0.1:0 --metrics-token=open", want: "chmod 600"},
		{args: "--metrics=" + strings.TrimPrefix(taken.URL, "http://"), want: "address already in use"},
		{config: "metrics: {token_file: open}", want: "write metrics: {listen: 127.0.0.1:9464}"},
		{config: "metrics: {listen: '0.0.0.0:1'}", want: "agentctl.yaml:1:10"},
		{config: "metrics: {address: '127.0.0.1:1'}", want: "address"},
	} {
		p.write("config/agentsh/agentctl.yaml", c.config+"\n", 0o644)
		p.setenv = []string{"XDG_CONFIG_HOME=" + p.path("config")}
		_, errs, code := p.try("", append([]string{"batch", "batch.yaml"}, strings.Fields(c.args)...)...)
		if code != controller.ExitConfiguration || !strings.Contains(errs, c.want) {
			t.Errorf("%s%s: exit code %d\n%s", c.args, c.config, code, errs)
		}
	}
}

func TestPrometheusSeesWhatThePageShows(t *testing.T) {
	p := newBatchFixture(t, "echo two > a.txt; exit $N", "")
	p.writeBatch(2, "")
	if _, errs, code := p.try("", "batch", "batch.yaml"); code != controller.ExitAgentFailed {
		t.Fatalf("exit code %d\n%s", code, errs)
	}
	cmd := p.command("ui", "--metrics", "127.0.0.1:0")
	said, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGINT)
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(said).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	all := scraped(t, metricsURL.FindString(line))
	for _, c := range []struct {
		family, label string
		want          float64
	}{
		{"agentsh_runs", "done", 1}, {"agentsh_runs", "agent_failed", 1}, {"agentsh_runs", "running", 0}, {"agentsh_batches", "failed", 1},
		{"agentsh_questions", "", 0}, {"agentsh_records_unreadable", "", 0},
	} {
		if got := valueOf(all[c.family], c.label); got != c.want {
			t.Errorf("%s of %q is %v, want %v", c.family, c.label, got, c.want)
		}
	}
}

// A place that listens counts a sandbox while it goes on, and all of it when its directory is gone.
func TestPrometheusSeesAPlace(t *testing.T) {
	p := newFixture(t, "cat /etc/shadow; echo two > a.txt; "+waiting, "").listeningWith("--metrics", "127.0.0.1:0")
	g := p.start("agent at work")
	all := scraped(t, p.counts)
	if live, n := valueOf(all["agentsh_sandboxes"], ""), valueOf(all["agentsh_processes"], ""); live != 1 || n < 3 {
		t.Errorf("%v sandboxes, %v processes", live, n)
	}
	if n := valueOf(all["agentsh_commands_total"], "allow"); n < 1 {
		t.Errorf("%v commands", n)
	}
	_ = g.cmd.Process.Signal(syscall.SIGTERM)
	g.wait()
	p.checkClean()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for { // the supervisor ends after its controller
		if all = scraped(t, p.counts); valueOf(all["agentsh_sandboxes"], "") == 0 || ctx.Err() != nil {
			break
		}
	}
	if n := valueOf(all["agentsh_sandboxes_ended_total"], "closed"); n != 1 {
		t.Errorf("ended: %v", all["agentsh_sandboxes_ended_total"])
	}
	if n := valueOf(all["agentsh_denials_total"], "file"); n < 1 {
		t.Errorf("denials: %v", all["agentsh_denials_total"])
	}
	if n := valueOf(all["agentsh_events_lost_total"], ""); n != 0 {
		t.Errorf("%v events were lost", n)
	}
	for _, f := range all {
		if strings.Contains(f.String(), "shadow") {
			t.Errorf("a label has what an agent chose: %v", f)
		}
	}
}
