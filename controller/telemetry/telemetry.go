// Package telemetry exports runs to an OpenTelemetry collector: audit events as logs, runs and their
// steps as spans, and counts as metrics. A collector that is away, slow or refuses holds no run back.
// What could not be sent is counted.
package telemetry

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"agentsh/controller"
	"agentsh/internal/text"
)

// Config says where to export, and how.
type Config struct {
	URL     string            // of the collector: OTLP over HTTP; "/v1/logs" and so on are added
	Headers map[string]string // of each request, for example with a token
	Version string            // of agentctl
	Batch   bool              // many runs: the end of one waits for nothing
}

// Bounds of the export.
const (
	endWait      = 2 * time.Second  // for what is not sent yet, at the end of a run or a batch
	requestTime  = 10 * time.Second // of one request, without retries
	metricsEvery = 10 * time.Second
	maxAnswer    = 64 << 10 // bytes of an answer of the collector
	maxAttribute = 4 << 10  // bytes of one value
	maxCause     = 300      // bytes of an error
)

// Exporter exports the runs of this process. Safe for concurrent use.
type Exporter struct {
	batch   bool
	to      string // the URL without user and query
	queue   *queue
	logger  log.Logger
	tracer  trace.Tracer
	counts  instruments
	metrics *sdkmetric.MeterProvider
	client  *client

	mu   sync.Mutex
	runs map[trace.TraceID]*tally // those that have not ended
}

// New starts to export. The caller calls [Exporter.Close].
func New(c Config) (*Exporter, error) {
	at, err := url.Parse(c.URL)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" {
		return nil, fmt.Errorf("collector %.200q: it is no http or https URL; write it as http://127.0.0.1:4318", c.URL)
	}
	if (len(c.Headers) > 0 || at.User != nil) && at.Scheme == "http" && !loopback(at.Hostname()) {
		return nil, fmt.Errorf("collector %s: headers and passwords would pass the network in the clear; "+
			"write https://%s, or leave them out", shown(at), text.Visible(at.Host))
	}
	// The SDK reports by global functions, and would write to standard error.
	otel.SetLogger(logr.Discard())
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(error) {}))
	e := &Exporter{batch: c.Batch, to: shown(at), runs: map[trace.TraceID]*tally{}}
	if e.client, err = newClient(at, c.Headers); err != nil {
		return nil, fmt.Errorf("collector %s: %w", e.to, err)
	}
	of := resource.NewSchemaless(
		attribute.String("service.name", "agentctl"), attribute.String("service.version", clean(c.Version)),
	)
	e.queue = newQueue(e.client)
	e.logger = sdklog.NewLoggerProvider(
		sdklog.WithResource(of), sdklog.WithProcessor(onEmit{e}), sdklog.WithAttributeValueLengthLimit(maxAttribute),
	).Logger("agentsh.audit")
	limits := sdktrace.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxAttribute
	e.tracer = sdktrace.NewTracerProvider(
		sdktrace.WithResource(of), sdktrace.WithSpanProcessor(onEnd{e}), sdktrace.WithRawSpanLimits(limits),
		sdktrace.WithSampler(sdktrace.AlwaysSample()),
	).Tracer("agentsh.run")
	e.metrics = sdkmetric.NewMeterProvider(sdkmetric.WithResource(of), sdkmetric.WithReader(sdkmetric.NewPeriodicReader(
		watched{e.queue}, sdkmetric.WithInterval(metricsEvery), sdkmetric.WithTimeout(requestTime),
	)))
	if e.counts, err = newInstruments(e.metrics.Meter("agentsh"), e.queue); err != nil {
		return nil, fmt.Errorf("collector %s: %w", e.to, err)
	}
	return e, nil
}

// loopback reports whether a host of a URL is this machine.
func loopback(host string) bool {
	at, err := netip.ParseAddr(host)
	return err == nil && at.Unmap().IsLoopback() || host == "localhost"
}

// shown is a URL without what may be secret in it.
func shown(u *url.URL) string {
	return text.Visible(u.Scheme + "://" + u.Host + u.Path)
}

// Observe follows a run.
func (e *Exporter) Observe(start controller.Result, m controller.Member) controller.Observer {
	o := &observer{e: e, tally: &tally{}}
	var span trace.Span
	o.ctx, span = e.tracer.Start(context.Background(), "run", trace.WithTimestamp(start.Started), trace.WithNewRoot(),
		trace.WithAttributes(ofRun(start, m)...))
	o.span, o.of = span, ofLogs(start, m)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.runs[span.SpanContext().TraceID()] = o.tally
	return o
}

// forget drops the tally of a run that has ended. What waits in the queue has it still.
func (e *Exporter) forget(id trace.TraceID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.runs, id)
}

// of is the tally of a trace.
func (e *Exporter) of(id trace.TraceID) *tally {
	e.mu.Lock()
	defer e.mu.Unlock()
	if t := e.runs[id]; t != nil {
		return t
	}
	return &tally{}
}

// Summary is what was exported of all runs.
type Summary struct {
	To      string
	Sent    int // events and spans
	NotSent int
	Error   string // why some were not sent, or the metrics were not; empty: all were
}

// Close sends what waits, for at most two seconds, and stops.
func (e *Exporter) Close() Summary {
	ctx, cancel := context.WithTimeout(context.Background(), endWait)
	defer cancel()
	if !e.queue.flush(ctx, nil) {
		cancel() // the collector does not answer: it does not take counts either
	}
	_ = e.metrics.Shutdown(ctx) // its exporter notes errors
	e.queue.close()
	e.client.http.CloseIdleConnections()
	s := Summary{To: e.to}
	s.Sent, s.NotSent, s.Error = e.queue.total()
	return s
}

// String is one line for a person; empty if everything was sent.
func (s Summary) String() string {
	switch {
	case s.NotSent > 0:
		return fmt.Sprintf("telemetry: %d of %d events and spans were not sent to %s: %s", s.NotSent, s.Sent+s.NotSent, s.To, s.Error)
	case s.Error != "":
		return fmt.Sprintf("telemetry: the last counts were not sent to %s: %s", s.To, s.Error)
	}
	return ""
}

// onEmit puts log records into the queue.
type onEmit struct{ e *Exporter }

func (onEmit) Enabled(context.Context, sdklog.EnabledParameters) bool { return true }

func (p onEmit) OnEmit(_ context.Context, r *sdklog.Record) error {
	p.e.queue.add(item{log: r.Clone(), of: p.e.of(r.TraceID())})
	return nil
}

func (onEmit) Shutdown(context.Context) error   { return nil }
func (onEmit) ForceFlush(context.Context) error { return nil }

// onEnd puts ended spans into the queue.
type onEnd struct{ e *Exporter }

func (onEnd) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

func (p onEnd) OnEnd(s sdktrace.ReadOnlySpan) {
	p.e.queue.add(item{span: s, of: p.e.of(s.SpanContext().TraceID())})
}

func (onEnd) Shutdown(context.Context) error   { return nil }
func (onEnd) ForceFlush(context.Context) error { return nil }

// clean makes a text that protocol buffers can carry.
func clean(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
