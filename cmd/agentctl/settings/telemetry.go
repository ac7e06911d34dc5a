package settings

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/controller/record"
	"agentsh/controller/telemetry"
	"agentsh/internal/strictyaml"
)

// telemetryFlags say where runs are exported to.
type telemetryFlags struct {
	url     string
	headers string // file
}

// collector is the same with what the configuration files say.
type collector struct {
	url     string
	headers string // file
}

// AddTelemetry adds the flags of the export to a collector.
func (f *Run) AddTelemetry(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.telemetry.url, "otlp", "",
		"export events, steps and counts to the OpenTelemetry collector at `URL`, by OTLP over HTTP (default: of agentctl.yaml)")
	cmd.Flags().StringVar(&f.telemetry.headers, "otlp-headers", "",
		"`FILE` with headers of the requests of --otlp, 'NAME: VALUE' a line, for example with a token")
}

// otlp reads the collector of a configuration file.
func (r *configReader) otlp(n *strictyaml.Node, c *collector) {
	whole := r.Fields(n, "otlp", map[string]func(*strictyaml.Node){
		"url":          func(n *strictyaml.Node) { c.url, _ = r.Text(n) },
		"headers_file": func(n *strictyaml.Node) { c.headers = r.path(n, "the headers") },
	})
	if whole && c.url == "" {
		r.Fail(n, "write otlp: {url: URL}", "otlp needs url")
	}
}

// config is the configuration of the export; its URL is empty if there is none.
func (f *telemetryFlags) config(of config) (telemetry.Config, error) {
	c := of.otlp
	switch {
	case f.url != "":
		c = collector{f.url, f.headers}
	case f.headers != "":
		return telemetry.Config{}, errors.New("--otlp-headers without --otlp")
	}
	out := telemetry.Config{URL: c.url, Version: output.Version}
	if c.headers == "" {
		return out, nil
	}
	data, err := record.ReadFile(c.headers, maxHeaders)
	if err != nil {
		return out, fmt.Errorf("headers of the collector: %w", err)
	}
	if out.Headers, err = readHeaders(data); err != nil {
		return out, fmt.Errorf("headers of the collector: %s:%w", c.headers, err)
	}
	return out, nil
}

// maxHeaders bounds a file of headers, in bytes.
const maxHeaders = 64 << 10

// readHeaders reads "NAME: VALUE" lines. Its errors have the line, and never a value.
func readHeaders(data []byte) (map[string]string, error) {
	out := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, maxHeaders+1)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		if !found || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
			return nil, fmt.Errorf("%d: it is no header: write NAME: VALUE", n)
		}
		out[name] = value
	}
	return out, lines.Err()
}

// Export has the runs of some options exported, if a collector is configured. many: they are those
// of a batch. The caller calls end, which says what was not sent.
func (f *Run) Export(o *controller.Options, many bool, stderr io.Writer) (end func(), err error) {
	c := f.collector
	if c.URL == "" {
		return func() {}, nil
	}
	c.Batch = many
	e, err := telemetry.New(c)
	if err != nil {
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	o.Observe = e.Observe
	return func() {
		if said := e.Close().String(); said != "" {
			fmt.Fprintf(stderr, "agentctl: %s\n", said)
		}
	}, nil
}
