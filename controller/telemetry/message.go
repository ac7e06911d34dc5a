package telemetry

import (
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/instrumentation"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	logspb "go.opentelemetry.io/proto/otlp/logs/v1"
	metricspb "go.opentelemetry.io/proto/otlp/metrics/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
)

// logsData is the message of some events. All have the same resource and scope. LogsData, TracesData
// and MetricsData have the fields of the requests to a collector.
func logsData(records []sdklog.Record) *logspb.LogsData {
	scope := &logspb.ScopeLogs{Scope: scopeOf(records[0].InstrumentationScope())}
	for i := range records {
		r := &records[i]
		trace, span := r.TraceID(), r.SpanID()
		out := &logspb.LogRecord{
			TimeUnixNano: nanos(r.Timestamp()), ObservedTimeUnixNano: nanos(r.ObservedTimestamp()), EventName: r.EventName(),
			SeverityNumber: logspb.SeverityNumber(r.Severity()), SeverityText: r.SeverityText(),
			Body: valueOf(r.Body()), TraceId: trace[:], SpanId: span[:], Flags: uint32(r.TraceFlags()),
			DroppedAttributesCount: count(r.DroppedAttributes()),
		}
		r.WalkAttributes(func(kv attribute.KeyValue) bool {
			out.Attributes = append(out.Attributes, &commonpb.KeyValue{Key: string(kv.Key), Value: valueOf(kv.Value)})
			return true
		})
		scope.LogRecords = append(scope.LogRecords, out)
	}
	return &logspb.LogsData{ResourceLogs: []*logspb.ResourceLogs{
		{Resource: resourceOf(records[0].Resource()), ScopeLogs: []*logspb.ScopeLogs{scope}},
	}}
}

// tracesData is the message of some spans.
func tracesData(spans []sdktrace.ReadOnlySpan) *tracepb.TracesData {
	scope := &tracepb.ScopeSpans{Scope: scopeOf(spans[0].InstrumentationScope())}
	for _, s := range spans {
		trace, id := s.SpanContext().TraceID(), s.SpanContext().SpanID()
		out := &tracepb.Span{
			TraceId: trace[:], SpanId: id[:], Name: s.Name(), Kind: tracepb.Span_SPAN_KIND_INTERNAL,
			StartTimeUnixNano: nanos(s.StartTime()), EndTimeUnixNano: nanos(s.EndTime()), Attributes: valuesOf(s.Attributes()),
			DroppedAttributesCount: count(s.DroppedAttributes()), Flags: uint32(s.SpanContext().TraceFlags()),
		}
		if parent := s.Parent().SpanID(); parent.IsValid() {
			out.ParentSpanId = parent[:]
		}
		if status := s.Status(); status.Code == codes.Error {
			out.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: status.Description}
		}
		scope.Spans = append(scope.Spans, out)
	}
	return &tracepb.TracesData{ResourceSpans: []*tracepb.ResourceSpans{
		{Resource: resourceOf(spans[0].Resource()), ScopeSpans: []*tracepb.ScopeSpans{scope}},
	}}
}

// metricsData is the message of the counts.
func metricsData(m *metricdata.ResourceMetrics) *metricspb.MetricsData {
	out := &metricspb.ResourceMetrics{Resource: resourceOf(m.Resource)}
	for _, s := range m.ScopeMetrics {
		scope := &metricspb.ScopeMetrics{Scope: scopeOf(s.Scope)}
		for _, one := range s.Metrics {
			metric := &metricspb.Metric{Name: one.Name, Description: one.Description, Unit: one.Unit}
			switch data := one.Data.(type) {
			case metricdata.Sum[int64]:
				metric.Data = sum(data, func(p *metricspb.NumberDataPoint, n int64) { p.Value = &metricspb.NumberDataPoint_AsInt{AsInt: n} })
			case metricdata.Sum[float64]:
				metric.Data = sum(data, func(p *metricspb.NumberDataPoint, n float64) {
					p.Value = &metricspb.NumberDataPoint_AsDouble{AsDouble: n}
				})
			case metricdata.Histogram[float64]:
				metric.Data = histogram(data)
			default:
				continue // there are no others, see newInstruments
			}
			scope.Metrics = append(scope.Metrics, metric)
		}
		out.ScopeMetrics = append(out.ScopeMetrics, scope)
	}
	return &metricspb.MetricsData{ResourceMetrics: []*metricspb.ResourceMetrics{out}}
}

// sum is a counter. Its values count from the start of the process.
func sum[N int64 | float64](s metricdata.Sum[N], set func(*metricspb.NumberDataPoint, N)) *metricspb.Metric_Sum {
	out := &metricspb.Sum{
		IsMonotonic: s.IsMonotonic, AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE,
	}
	for _, p := range s.DataPoints {
		point := &metricspb.NumberDataPoint{
			Attributes: valuesOf(p.Attributes.ToSlice()), StartTimeUnixNano: nanos(p.StartTime), TimeUnixNano: nanos(p.Time),
		}
		set(point, p.Value)
		out.DataPoints = append(out.DataPoints, point)
	}
	return &metricspb.Metric_Sum{Sum: out}
}

func histogram(h metricdata.Histogram[float64]) *metricspb.Metric_Histogram {
	out := &metricspb.Histogram{AggregationTemporality: metricspb.AggregationTemporality_AGGREGATION_TEMPORALITY_CUMULATIVE}
	for _, p := range h.DataPoints {
		out.DataPoints = append(out.DataPoints, &metricspb.HistogramDataPoint{
			Attributes: valuesOf(p.Attributes.ToSlice()), StartTimeUnixNano: nanos(p.StartTime), TimeUnixNano: nanos(p.Time),
			Count: p.Count, Sum: &p.Sum, ExplicitBounds: p.Bounds, BucketCounts: p.BucketCounts,
		})
	}
	return &metricspb.Metric_Histogram{Histogram: out}
}

func resourceOf(r *resource.Resource) *resourcepb.Resource {
	return &resourcepb.Resource{Attributes: valuesOf(r.Attributes())}
}

func scopeOf(s instrumentation.Scope) *commonpb.InstrumentationScope {
	return &commonpb.InstrumentationScope{Name: s.Name, Version: s.Version}
}

func valuesOf(list []attribute.KeyValue) []*commonpb.KeyValue {
	out := make([]*commonpb.KeyValue, len(list))
	for i, kv := range list {
		out[i] = &commonpb.KeyValue{Key: string(kv.Key), Value: valueOf(kv.Value)}
	}
	return out
}

// valueOf is a value of an attribute. Lists and maps do not occur.
func valueOf(v attribute.Value) *commonpb.AnyValue {
	switch v.Type() {
	case attribute.BOOL:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: v.AsBool()}}
	case attribute.INT64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: v.AsInt64()}}
	case attribute.FLOAT64:
		return &commonpb.AnyValue{Value: &commonpb.AnyValue_DoubleValue{DoubleValue: v.AsFloat64()}}
	}
	return &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: clean(v.AsString())}}
}

// nanos is a time of OTLP; 0: it is not known.
func nanos(t time.Time) uint64 {
	if t.Unix() <= 0 {
		return 0
	}
	return uint64(t.UnixNano())
}

func count(n int) uint32 { return uint32(min(max(n, 0), 1<<31)) }
