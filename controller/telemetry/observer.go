package telemetry

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/internal/wire"
)

// observer exports one run.
type observer struct {
	e     *Exporter
	ctx   context.Context // with the span
	span  trace.Span
	of    []attribute.KeyValue // of each event
	tally *tally

	end sync.Once
}

// Event implements [controller.Observer].
func (o *observer) Event(event wire.Event) {
	var r log.Record
	r.SetTimestamp(event.Time)
	r.SetEventName("agentsh." + clean(event.Type))
	severity, word := severityOf(event)
	r.SetSeverity(severity)
	r.SetSeverityText(word)
	r.SetBody(attribute.StringValue(bodyOf(event)))
	r.AddAttributes(o.of...)
	r.AddAttributes(own(event)...)
	r.AddAttributes(ocsf(event)...)
	o.e.logger.Emit(o.ctx, r)
	o.e.counts.events.Add(o.ctx, int64(max(event.Count, 1)), metric.WithAttributes(
		attribute.String("type", known(event.Type, types)), attribute.String("decision", known(event.Decision, decisions)),
	))
}

// Step implements [controller.Observer].
func (o *observer) Step(s record.Step) {
	_, span := o.e.tracer.Start(o.ctx, clean(s.Name), trace.WithTimestamp(s.Started))
	if s.Error != "" {
		span.SetStatus(codes.Error, clip(s.Error))
		span.SetAttributes(attribute.Int("agentsh.exit_code", s.Code))
	}
	if s.Ended == nil {
		span.End()
		return
	}
	span.End(trace.WithTimestamp(*s.Ended))
}

// End implements [controller.Observer].
func (o *observer) End(r controller.Result) *controller.Telemetry {
	o.end.Do(func() {
		o.span.SetAttributes(ofEnd(r)...)
		if r.Error != nil {
			o.span.SetStatus(codes.Error, clip(r.Error.Step+": "+r.Error.Message))
		}
		o.span.End(trace.WithTimestamp(r.Ended))
		o.e.forget(o.span.SpanContext().TraceID())
		o.e.counts.run(o.ctx, r)
	})
	if !o.e.batch {
		ctx, cancel := context.WithTimeout(context.Background(), endWait)
		defer cancel()
		o.e.queue.flush(ctx, o.tally)
	}
	q := o.e.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	t := &controller.Telemetry{
		To: o.e.to, TraceID: o.span.SpanContext().TraceID().String(), Sent: o.tally.sent, NotSent: o.tally.lost, Error: o.tally.why,
	}
	if waiting := o.tally.waiting(); o.e.batch {
		t.Waiting = waiting
	} else if waiting > 0 { // nobody waits for it any longer
		t.NotSent += waiting
		t.Error = "the collector did not answer in time"
	}
	return t
}

// instruments count runs and what happens in them.
type instruments struct {
	runs, events, tokens metric.Int64Counter
	cost                 metric.Float64Counter
	took                 metric.Float64Histogram
}

func newInstruments(m metric.Meter, q *queue) (instruments, error) {
	var i instruments
	var errs [6]error
	i.runs, errs[0] = m.Int64Counter("agentsh.runs", metric.WithDescription("runs that have ended"))
	i.events, errs[1] = m.Int64Counter("agentsh.events", metric.WithDescription("events of audit logs"))
	i.tokens, errs[2] = m.Int64Counter("agentsh.tokens", metric.WithDescription("tokens that agents used"))
	i.cost, errs[3] = m.Float64Counter("agentsh.cost", metric.WithUnit("USD"), metric.WithDescription("what agents cost, as they report it"))
	i.took, errs[4] = m.Float64Histogram("agentsh.run.duration", metric.WithUnit("s"), metric.WithDescription("how long runs took"))
	_, errs[5] = m.Int64ObservableCounter("agentsh.telemetry.not_sent", metric.WithDescription("events and spans that were not sent"),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			o.Observe(q.lost())
			return nil
		}))
	for _, err := range errs {
		if err != nil {
			return i, err
		}
	}
	return i, nil
}

// run counts a run that has ended.
func (i instruments) run(ctx context.Context, r controller.Result) {
	of := metric.WithAttributes(attribute.String("status", clean(r.Status)), attribute.String("backend", clean(r.Backend)))
	i.runs.Add(ctx, 1, of)
	i.took.Record(ctx, max(r.Ended.Sub(r.Started), 0).Round(time.Millisecond).Seconds(), of)
	if u := r.Usage; u != nil {
		for kind, n := range map[string]int64{
			"input": u.Input, "output": u.Output, "cache_read": u.CacheRead, "cache_write": u.CacheWrite,
		} {
			i.tokens.Add(ctx, max(n, 0), metric.WithAttributes(attribute.String("kind", kind)))
		}
		i.cost.Add(ctx, max(u.CostUSD, 0))
	}
}
