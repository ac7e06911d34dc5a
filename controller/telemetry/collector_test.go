package telemetry

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"sync"
	"testing"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	colmetrics "go.opentelemetry.io/proto/otlp/collector/metrics/v1"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/internal/wire"
)

// collector is a strict double of a collector. It decodes requests with the messages of
// OpenTelemetry's services and rejects fields that these do not have.
type collector struct {
	*httptest.Server
	t *testing.T
	// before answers a request in place of the collector, if it returns true.
	before func(w http.ResponseWriter, r *http.Request) bool

	mu      sync.Mutex
	logs    []*logspb.LogRecord
	spans   []*tracepb.Span
	metrics map[string]*metricspb.Metric
	headers []http.Header
	under   string // the directory of its paths
}

func newCollector(t *testing.T, before func(http.ResponseWriter, *http.Request) bool) *collector {
	t.Helper()
	c := &collector{t: t, before: before, metrics: map[string]*metricspb.Metric{}, under: "/base/v1"}
	c.Server = httptest.NewServer(http.HandlerFunc(c.serve))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) serve(w http.ResponseWriter, r *http.Request) {
	if c.before != nil && c.before(w, r) {
		return
	}
	z, err := gzip.NewReader(r.Body)
	if err != nil {
		c.t.Errorf("%s: %v", r.URL, err)
		return
	}
	data, err := io.ReadAll(z)
	if err != nil || r.Method != http.MethodPost || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.t.Errorf("%s %s: %v, %v", r.Method, r.URL, r.Header, err)
	}
	logs, traces := &collogs.ExportLogsServiceRequest{}, &coltrace.ExportTraceServiceRequest{}
	metrics := &colmetrics.ExportMetricsServiceRequest{}
	of := map[string]proto.Message{"logs": logs, "traces": traces, "metrics": metrics}[path.Base(r.URL.Path)]
	if of == nil || path.Dir(r.URL.Path) != c.under {
		c.t.Errorf("a request to %s", r.URL)
		http.NotFound(w, r)
		return
	}
	if err := proto.Unmarshal(data, of); err != nil || len(of.ProtoReflect().GetUnknown()) > 0 {
		c.t.Errorf("%s: %v", r.URL, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.headers = append(c.headers, r.Header)
	for _, x := range logs.ResourceLogs {
		for _, s := range x.ScopeLogs {
			c.logs = append(c.logs, s.LogRecords...)
		}
	}
	for _, x := range traces.ResourceSpans {
		for _, s := range x.ScopeSpans {
			c.spans = append(c.spans, s.Spans...)
		}
	}
	for _, x := range metrics.ResourceMetrics {
		for _, s := range x.ScopeMetrics {
			for _, m := range s.Metrics {
				c.metrics[m.Name] = m
			}
		}
	}
}

// attributes are those of an event or a span.
func attributes(list []*commonpb.KeyValue) map[string]any {
	out := map[string]any{}
	for _, kv := range list {
		switch v := kv.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			out[kv.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			out[kv.Key] = v.IntValue
		case *commonpb.AnyValue_DoubleValue:
			out[kv.Key] = v.DoubleValue
		}
	}
	return out
}

var noon = time.Date(2026, 1, 22, 12, 0, 0, 0, time.UTC)

// export runs a run with some events at a collector, and returns what its result says.
func export(t *testing.T, c Config, events ...wire.Event) (*controller.Telemetry, Summary) {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	start := controller.Result{RunID: "r1", Backend: "local", Harness: "h.yaml", Started: noon}
	o := e.Observe(start, controller.Member{Batch: "b1", Name: "first", Labels: map[string]string{"kind": "single"}})
	ended := noon.Add(time.Second)
	o.Step(record.Step{Name: "load", Started: noon, Ended: &ended})
	for _, event := range events {
		o.Event(event)
	}
	o.Step(record.Step{Name: "iterations", Started: noon, Ended: &ended, Error: "the agent failed", Code: 1})
	start.Ended, start.Status, start.ExitCode = noon.Add(time.Minute), controller.StatusAgentFailed, 1
	start.Error = &controller.ResultError{Step: "iterations", Message: "the agent failed"}
	said := o.End(start)
	return said, e.Close()
}

// partialAnswer is the answer of a collector that rejects some of a request.
func partialAnswer(n uint64, why string) []byte {
	inner := protowire.AppendTag(nil, 1, protowire.VarintType)
	inner = protowire.AppendVarint(inner, n)
	inner = protowire.AppendTag(inner, 2, protowire.BytesType)
	inner = protowire.AppendString(inner, why)
	return protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), inner)
}
