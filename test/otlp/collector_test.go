package otlp

import (
	"context"
	"fmt"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/yamlprovider"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/plog"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

// one is what each part of an exporter has.
type one struct {
	component.StartFunc
	component.ShutdownFunc
}

var writing sync.Mutex

// add appends a line to a file.
func add(name string, line []byte, err error) error {
	if err != nil {
		return err
	}
	writing.Lock()
	defer writing.Unlock()
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	return err
}

// linesFactory makes an exporter of the collector. It appends what arrives to files in a directory, and
// answers when it is there: what the collector has taken is not lost when it is killed.
func linesFactory(dir string) exporter.Factory {
	type logs struct {
		one
		consumer.Logs
	}
	type traces struct {
		one
		consumer.Traces
	}
	type metrics struct {
		one
		consumer.Metrics
	}
	return exporter.NewFactory(component.MustNewType("lines"), func() component.Config { return &struct{}{} },
		exporter.WithLogs(func(context.Context, exporter.Settings, component.Config) (exporter.Logs, error) {
			c, err := consumer.NewLogs(func(_ context.Context, l plog.Logs) error {
				data, err := (&plog.JSONMarshaler{}).MarshalLogs(l)
				return add(dir+"/logs", data, err)
			})
			return logs{Logs: c}, err
		}, component.StabilityLevelStable),
		exporter.WithTraces(func(context.Context, exporter.Settings, component.Config) (exporter.Traces, error) {
			c, err := consumer.NewTraces(func(_ context.Context, l ptrace.Traces) error {
				data, err := (&ptrace.JSONMarshaler{}).MarshalTraces(l)
				return add(dir+"/traces", data, err)
			})
			return traces{Traces: c}, err
		}, component.StabilityLevelStable),
		exporter.WithMetrics(func(context.Context, exporter.Settings, component.Config) (exporter.Metrics, error) {
			c, err := consumer.NewMetrics(func(_ context.Context, l pmetric.Metrics) error {
				data, err := (&pmetric.JSONMarshaler{}).MarshalMetrics(l)
				return add(dir+"/metrics", data, err)
			})
			return metrics{Metrics: c}, err
		}, component.StabilityLevelStable),
	)
}

// collect is OpenTelemetry's collector: its receiver of OTLP over HTTP at an address, and lines.
func collect(address, dir string) error {
	config := fmt.Sprintf(`yaml:
receivers: {otlp: {protocols: {http: {endpoint: '%s'}}}}
exporters: {lines: {}}
service:
  telemetry: {metrics: {level: none}}
  pipelines:
    logs: {receivers: [otlp], exporters: [lines]}
    traces: {receivers: [otlp], exporters: [lines]}
    metrics: {receivers: [otlp], exporters: [lines]}
`, address)
	c, err := otelcol.NewCollector(otelcol.CollectorSettings{
		BuildInfo: component.NewDefaultBuildInfo(),
		Factories: func() (otelcol.Factories, error) {
			in, out := otlpreceiver.NewFactory(), linesFactory(dir)
			return otelcol.Factories{
				Telemetry: otelconftelemetry.NewFactory(),
				Receivers: map[component.Type]receiver.Factory{in.Type(): in},
				Exporters: map[component.Type]exporter.Factory{out.Type(): out},
			}, nil
		},
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			URIs: []string{config}, ProviderFactories: []confmap.ProviderFactory{yamlprovider.NewFactory()},
		}},
	})
	if err != nil {
		return err
	}
	return c.Run(context.Background())
}
