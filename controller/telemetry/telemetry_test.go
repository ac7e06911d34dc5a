package telemetry

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"agentsh/controller"
	"agentsh/internal/wire"
)

func denied(n int) wire.Event {
	return wire.Event{
		Seq: uint64(n), Time: noon, Type: wire.EventFile, Op: "write", Path: "/etc/passwd", Decision: "deny", Mechanism: "seccomp",
		Message: "agentsh: denied write /etc/passwd", Hint: "write below /workspace",
		Rule: &wire.RuleAt{Name: "system", File: "policy.yaml", Line: 7, Column: 3}, Process: &wire.Process{PID: 42, Exe: "/bin/sh"},
	}
}

func many(n int) []wire.Event {
	var out []wire.Event
	for i := range n {
		out = append(out, denied(i+1))
	}
	return out
}

func TestARunArrivesAtTheCollector(t *testing.T) {
	c := newCollector(t, nil)
	net := wire.Event{
		Seq: 2, Time: noon, Type: wire.EventNet, Phase: "end", Target: "example.com:443", Decision: "allow",
		Net: &wire.Net{ID: 1, Address: "203.0.113.1:443", Via: "http", Sent: 10, Received: 20},
	}
	said, sum := export(t, Config{URL: c.URL + "/base", Headers: map[string]string{"Authorization": "Bearer x"}, Version: "1"}, denied(1), net)
	if said.Sent != 5 || said.NotSent != 0 || said.Error != "" || said.TraceID == "" || said.Waiting != 0 {
		t.Errorf("the result says %+v", said)
	}
	if sum.String() != "" || sum.Sent != 5 {
		t.Errorf("the summary says %q: %+v", sum.String(), sum)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, h := range c.headers {
		if h.Get("Authorization") != "Bearer x" {
			t.Errorf("headers %v", h)
		}
	}
	if len(c.logs) != 2 || len(c.spans) != 3 {
		t.Fatalf("%d events, %d spans", len(c.logs), len(c.spans))
	}
	for name, want := range map[string]any{
		"ocsf.class_uid": int64(1001), "ocsf.type_uid": int64(100103), "ocsf.action_id": int64(2), "ocsf.file.path": "/etc/passwd",
		"ocsf.policy.name": "system", "ocsf.actor.process.pid": int64(42), "agentsh.run.id": "r1", "agentsh.batch.run": "first",
		"agentsh.rule.at": "policy.yaml:7:3", "agentsh.seq": int64(1),
	} {
		if got := attributes(c.logs[0].Attributes)[name]; got != want {
			t.Errorf("%s of the denial is %v, want %v", name, got, want)
		}
	}
	for name, want := range map[string]any{
		"ocsf.class_uid": int64(4001), "ocsf.activity_id": int64(2), "ocsf.dst_endpoint.hostname": "example.com",
		"ocsf.dst_endpoint.port": int64(443), "ocsf.dst_endpoint.ip": "203.0.113.1", "ocsf.traffic.bytes_in": int64(20),
	} {
		if got := attributes(c.logs[1].Attributes)[name]; got != want {
			t.Errorf("%s of the connection is %v, want %v", name, got, want)
		}
	}
	c.checkSpans(said.TraceID)
	if c.logs[0].SeverityText != "WARN" || c.logs[0].EventName != "agentsh.file" || fmt.Sprintf("%x", c.logs[0].TraceId) != said.TraceID {
		t.Errorf("the event is %v", c.logs[0])
	}
	runs, _ := c.metrics["agentsh.runs"].GetData().(*metricspb.Metric_Sum)
	events, _ := c.metrics["agentsh.events"].GetData().(*metricspb.Metric_Sum)
	if runs == nil || runs.Sum.DataPoints[0].GetAsInt() != 1 || events == nil || len(events.Sum.DataPoints) != 2 ||
		c.metrics["agentsh.run.duration"].GetHistogram().GetDataPoints()[0].GetSum() != 60 {
		t.Errorf("counts %v", c.metrics)
	}
}

// checkSpans checks the spans of the run of export.
func (c *collector) checkSpans(trace string) {
	root := c.spans[2]
	if root.Name != "run" || len(root.ParentSpanId) != 0 || attributes(root.Attributes)["agentsh.status"] != controller.StatusAgentFailed ||
		attributes(root.Attributes)["agentsh.label.kind"] != "single" || root.EndTimeUnixNano-root.StartTimeUnixNano != uint64(time.Minute) {
		c.t.Errorf("the span of the run is %v", root)
	}
	for i, name := range []string{"load", "iterations"} {
		s := c.spans[i]
		if s.Name != name || string(s.ParentSpanId) != string(root.SpanId) || fmt.Sprintf("%x", s.TraceId) != trace ||
			s.EndTimeUnixNano-s.StartTimeUnixNano != uint64(time.Second) {
			c.t.Errorf("the span of %s is %v", name, s)
		}
	}
	if c.spans[1].Status.GetMessage() != "the agent failed" || c.spans[0].Status.GetCode() != 0 {
		c.t.Errorf("statuses %v and %v", c.spans[0].Status, c.spans[1].Status)
	}
}

func TestAnAddressMayHaveAPathOrNone(t *testing.T) {
	for base, under := range map[string]string{"": "/v1", "/": "/v1", "/base": "/base/v1", "/base/": "/base/v1", "/a%2Fb": "/a/b/v1"} {
		c := newCollector(t, nil)
		c.under = under
		if said, sum := export(t, Config{URL: c.URL + base}, denied(1)); said.Sent != 4 || said.NotSent != 0 || sum.String() != "" {
			t.Errorf("%q: the result says %+v, the summary %q", base, said, sum)
		}
	}
}

// The exporters read variables of the environment. What --otlp and its headers say is what holds: others
// would lead a token elsewhere, or make a protocol that was not asked for.
func TestTheEnvironmentDecidesNothing(t *testing.T) {
	stranger := newCollector(t, func(_ http.ResponseWriter, r *http.Request) bool {
		t.Errorf("a request to another collector: %s", r.URL)
		return true
	})
	for name, value := range map[string]string{
		"ENDPOINT": stranger.URL, "HEADERS": "x-other=1,authorization=other", "PROTOCOL": "http/json", "COMPRESSION": "none", "TIMEOUT": "1",
		"CERTIFICATE": "/does/not/exist", "CLIENT_CERTIFICATE": "/does/not/exist", "CLIENT_KEY": "/does/not/exist", "INSECURE": "false",
		"METRICS_TEMPORALITY_PREFERENCE": "delta", "METRICS_DEFAULT_HISTOGRAM_AGGREGATION": "base2_exponential_bucket_histogram",
	} {
		t.Setenv("OTEL_EXPORTER_OTLP_"+name, value)
		for _, signal := range []string{"LOGS_", "TRACES_", "METRICS_"} {
			t.Setenv("OTEL_EXPORTER_OTLP_"+signal+name, value)
		}
	}
	c := newCollector(t, nil)
	url := strings.Replace(c.URL, "http://", "http://ada:secret@", 1) + "/base"
	if said, sum := export(t, Config{URL: url}, denied(1)); said.Sent != 4 || sum.String() != "" {
		t.Errorf("the result says %+v, the summary %q", said, sum)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.metrics["agentsh.run.duration"].GetHistogram().GetDataPoints()) != 1 {
		t.Errorf("counts %v", c.metrics)
	}
	for _, h := range c.headers {
		if h.Get("X-Other") != "" || h.Get("Authorization") != "Basic YWRhOnNlY3JldA==" {
			t.Errorf("headers %v", h)
		}
	}
}

// An agent chooses names of files and arguments: they are no protocol, and have a bound.
func TestHostileNamesArrive(t *testing.T) {
	c := newCollector(t, nil)
	said, _ := export(t, Config{URL: c.URL + "/base"},
		wire.Event{Type: wire.EventExec, Path: "/bin/\xff\xfe", Argv: wire.Names{"\xff", strings.Repeat("a", 1<<20), "\x1b[2J\x00"}},
		wire.Event{Type: "\xff\nother", Op: "\xff", Target: "\xff:\xff", Message: strings.Repeat("\xff", 1<<20)},
		wire.Event{Type: wire.EventNet, Seq: 1 << 63, Target: "[::1", Net: &wire.Net{Address: "\xff", Via: "\xff"}, Count: -5},
	)
	if said.Sent != 6 || said.NotSent != 0 {
		t.Errorf("the result says %+v", said)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.logs {
		if size := proto.Size(r); size > 32<<10 {
			t.Errorf("an event has %d bytes", size)
		}
	}
	for _, p := range c.metrics["agentsh.events"].GetSum().GetDataPoints() {
		if kind := attributes(p.Attributes)["type"]; kind != "exec" && kind != "net" && kind != "other" {
			t.Errorf("a series of the type %q", kind)
		}
	}
}

func TestWhatACollectorDoesNotTakeIsCounted(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	away := "http://" + closed.Addr().String()
	_ = closed.Close()
	endless := func(status int) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(status)
			for block := make([]byte, 1<<20); ; {
				if _, err := w.Write(block); err != nil {
					return true
				}
			}
		}
	}
	status := func(status int, header ...string) func(w http.ResponseWriter, r *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			if len(header) > 0 {
				w.Header().Set(header[0], header[1])
			}
			w.WriteHeader(status)
			return true
		}
	}
	for _, c := range []struct {
		name   string
		before func(http.ResponseWriter, *http.Request) bool
		url    string
		lost   int
		want   string
	}{
		{name: "nobody listens", url: away, lost: 13, want: "connection refused"},
		{name: "it refuses what it gets", before: status(400), lost: 13, want: "400 Bad Request"},
		{name: "it is not there", before: status(404), lost: 13, want: "404 Not Found"},
		{name: "it has too much to do for an hour", before: status(503, "Retry-After", "3600"), lost: 13, want: "503"},
		{name: "it asks for other credentials", before: status(401), lost: 13, want: "401"},
		{name: "it leads elsewhere", before: status(307, "Location", "/base/v1/logs"), lost: 13, want: "307"},
		{name: "an endless answer to success", before: endless(200)},
		{name: "an endless error", before: endless(500), lost: 13, want: "500"},
		{name: "an answer that is no message", before: func(w http.ResponseWriter, _ *http.Request) bool {
			_, _ = w.Write([]byte("\xff\xff\xff<html>"))
			return true
		}},
		{name: "it rejects some", lost: 2, want: "too old", before: func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "logs") {
				_, _ = w.Write(partialAnswer(2, "too old\x1b[2J"))
			}
			return true
		}},
		{name: "it rejects more than there is", lost: 10, want: "all", before: func(w http.ResponseWriter, r *http.Request) bool {
			if strings.HasSuffix(r.URL.Path, "logs") {
				_, _ = w.Write(partialAnswer(1<<30, "all"))
			}
			return true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			url := c.url
			if url == "" {
				url = newCollector(t, c.before).URL + "/base"
			}
			began := time.Now()
			said, sum := export(t, Config{URL: url}, many(10)...)
			if took := time.Since(began); took > endWait+time.Second {
				t.Errorf("the end took %s", took)
			}
			if said.NotSent != c.lost || said.Sent != 13-c.lost || !strings.Contains(said.Error, c.want) || (said.Error == "") != (c.want == "") {
				t.Errorf("the result says %+v", said)
			}
			if c.lost > 0 && !strings.Contains(sum.String(), fmt.Sprintf("%d of 13 events and spans were not sent", c.lost)) ||
				strings.ContainsRune(sum.String(), '\x1b') {
				t.Errorf("the summary says %q", sum.String())
			}
		})
	}
}

// The time is that of a bubble: the load of the machine does not count.
func TestACollectorThatHangsSlowsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := New(Config{URL: "http://127.0.0.1:1/base"})
		if err != nil {
			t.Fatal(err)
		}
		over, _ := e.client.http.Transport.(*transport)
		over.over.DialContext = func(context.Context, string, string) (net.Conn, error) {
			conn, _ := net.Pipe() // nobody reads what is sent
			return conn, nil
		}
		o := e.Observe(controller.Result{RunID: "r", Started: noon}, controller.Member{})
		const events = 2 * maxQueue
		began := time.Now()
		for _, event := range many(events) {
			o.Event(event)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the events took %s", took)
		}
		// Events that wait for a request would not be lost: a request is tried again for minutes.
		if lost := e.queue.lost(); lost < events-maxQueue-maxRequest {
			t.Errorf("%d of %d events were lost at once", lost, events)
		}
		said := o.End(controller.Result{Ended: noon})
		sum := e.Close()
		if took := time.Since(began); took > 2*endWait {
			t.Errorf("the end took %s", took)
		}
		if said.Sent != 0 || said.NotSent != events+1 || sum.NotSent != said.NotSent || said.Error == "" {
			t.Errorf("the result says %+v, the summary %q", said, sum)
		}
	})
}

// fiveEvents begins a run with five events.
func fiveEvents(t *testing.T, c *collector) (*Exporter, controller.Observer) {
	t.Helper()
	e, err := New(Config{URL: c.URL + "/base"})
	if err != nil {
		t.Fatal(err)
	}
	o := e.Observe(controller.Result{RunID: "r", Started: noon}, controller.Member{})
	for _, event := range many(5) {
		o.Event(event)
	}
	return e, o
}

// A collector that has too much to do, or was away, gets everything later.
func TestWhatWasRefusedForAMomentIsSentAgain(t *testing.T) {
	var calls atomic.Int32
	sent := make(chan struct{})
	var once sync.Once
	c := newCollector(t, func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "metrics") {
			return false
		}
		if n := calls.Add(1); n <= 2 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader([]int{http.StatusTooManyRequests, http.StatusServiceUnavailable}[n-1])
			return true
		}
		once.Do(func() { close(sent) })
		return false
	})
	e, o := fiveEvents(t, c)
	<-sent
	if said := o.End(controller.Result{Ended: noon}); said.Sent != 6 || said.NotSent != 0 || said.Error != "" {
		t.Errorf("the result says %+v", said)
	}
	e.Close()
}

// What waits for another attempt at the end is sent at once, whatever the collector has asked for.
func TestACollectorThatIsBackAtTheEndGetsWhatWaits(t *testing.T) {
	refused := make(chan struct{})
	var once sync.Once
	c := newCollector(t, func(w http.ResponseWriter, _ *http.Request) (first bool) {
		once.Do(func() {
			first = true
			w.Header().Set("Retry-After", "60")
			w.WriteHeader(http.StatusServiceUnavailable)
			close(refused)
		})
		return first
	})
	e, o := fiveEvents(t, c)
	<-refused
	if said := o.End(controller.Result{Ended: noon}); said.Sent != 6 || said.NotSent != 0 || said.Error != "" {
		t.Errorf("the result says %+v", said)
	}
	if sum := e.Close(); sum.Sent != 6 || sum.String() != "" {
		t.Errorf("the summary says %+v", sum)
	}
}

// delivered waits until nothing waits.
func (q *queue) delivered() {
	for {
		q.mu.Lock()
		waiting, changed := q.all.waiting(), q.changed
		q.mu.Unlock()
		if waiting == 0 {
			return
		}
		<-changed
	}
}

// The runs of a batch export together, and the end of one waits for nothing.
func TestRunsOfABatchDoNotWait(t *testing.T) {
	release := make(chan struct{})
	c := newCollector(t, func(http.ResponseWriter, *http.Request) bool {
		<-release
		return false
	})
	e, err := New(Config{URL: c.URL + "/base", Batch: true})
	if err != nil {
		t.Fatal(err)
	}
	var runs sync.WaitGroup
	for n := range 8 {
		runs.Go(func() {
			o := e.Observe(controller.Result{RunID: fmt.Sprint(n), Started: noon}, controller.Member{Batch: "b", Name: fmt.Sprint(n)})
			for _, event := range many(20) {
				o.Event(event)
			}
			if said := o.End(controller.Result{Ended: noon}); said.Waiting != 21 || said.Sent != 0 || said.NotSent != 0 {
				t.Errorf("the result says %+v", said)
			}
		})
	}
	runs.Wait()
	close(release)
	e.queue.delivered() // Close has two seconds, which a machine with other work may not give
	if len(e.runs) != 0 {
		t.Errorf("%d runs that have ended are remembered", len(e.runs))
	}
	if sum := e.Close(); sum.Sent != 8*21 || sum.NotSent != 0 || sum.String() != "" {
		t.Errorf("the summary says %+v", sum)
	}
	if len(c.logs) != 160 || len(c.spans) != 8 {
		t.Errorf("%d events, %d spans", len(c.logs), len(c.spans))
	}
}

func TestAnAddressThatIsNoCollectorIsRefused(t *testing.T) {
	for _, url := range []string{"", "127.0.0.1:4318", "grpc://127.0.0.1:4317", "http://", "http://\x00"} {
		if _, err := New(Config{URL: url}); err == nil || !strings.Contains(err.Error(), "write it as http://127.0.0.1:4318") {
			t.Errorf("%q: %v", url, err)
		}
	}
	e, err := New(Config{URL: "http://user:secret@127.0.0.1:1/x?token=secret"})
	if err != nil {
		t.Fatal(err)
	}
	if e.to != "http://127.0.0.1:1/x" || strings.Contains(e.Close().String(), "secret") {
		t.Errorf("shown as %s", e.to)
	}
}

// Headers have tokens: they leave this machine encrypted, or not at all.
func TestHeadersDoNotLeaveInTheClear(t *testing.T) {
	for _, c := range []struct {
		url     string
		headers bool
		want    string
	}{
		{"http://collector.example.com:4318", true, "write https://collector.example.com:4318, or leave them out"},
		{"http://10.0.0.1:4318/x", true, "write https://10.0.0.1:4318"},
		{"http://user:secret@10.0.0.1:4318", false, "write https://10.0.0.1:4318"},
		{"http://localhost.example.com", true, "in the clear"},
		{"http://collector.example.com:4318", false, ""},
		{"https://collector.example.com", true, ""},
		{"https://user:secret@collector.example.com", true, ""},
		{"http://127.0.0.2:4318", true, ""},
		{"http://[::1]:4318", true, ""},
		{"http://localhost:4318", true, ""},
	} {
		config := Config{URL: c.url}
		if c.headers {
			config.Headers = map[string]string{"Authorization": "Bearer secret"}
		}
		e, err := New(config)
		if e != nil {
			e.queue.close()
			_ = e.metrics.Shutdown(t.Context())
		}
		switch {
		case c.want == "" && err != nil, c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", c.url, err, c.want)
		case err != nil && strings.Contains(err.Error(), "secret"):
			t.Errorf("%s: the error has the secret: %v", c.url, err)
		}
	}
}
