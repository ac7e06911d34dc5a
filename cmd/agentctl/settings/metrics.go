package settings

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"agentsh/cmd/agentctl/output"
	"agentsh/controller"
	"agentsh/internal/prometheus"
	"agentsh/internal/strictyaml"
)

// Metrics are the flags that say where counts are served for Prometheus.
type Metrics struct{ address, token string }

// Add adds the flags. The help of --metrics ends with fallback.
func (m *Metrics) Add(cmd *cobra.Command, fallback string) {
	cmd.Flags().StringVar(&m.address, "metrics", "",
		"serve counts for Prometheus at `ADDRESS`, as in 127.0.0.1:9464; port 0: a free one"+fallback)
	cmd.Flags().StringVar(&m.token, "metrics-token", "",
		"`FILE` with a token that requests of --metrics must have, 32 random bytes or more in base64")
}

// Or are other flags in the place of these, where these are not given.
func (m Metrics) Or(other Metrics) Metrics {
	if m == (Metrics{}) {
		return other
	}
	return m
}

// metrics reads where counts are served.
func (r *configReader) metrics(n *strictyaml.Node, c *prometheus.Config) {
	whole := r.Fields(n, "metrics", map[string]func(*strictyaml.Node){
		"listen":     func(n *strictyaml.Node) { c.Address, _ = r.Text(n) },
		"token_file": func(n *strictyaml.Node) { c.TokenFile = r.path(n, "the token") },
	})
	if !whole {
		return
	}
	if c.Address == "" {
		r.Fail(n, "write metrics: {listen: 127.0.0.1:9464}", "metrics needs listen")
	} else if err := c.Check("listen"); err != nil {
		r.Fail(n, "", "%s", err)
	}
}

// Serve serves counts if the flags, or with configured the configuration files, name an address. It
// says where on stderr. The caller closes the server, which may be nil. That the address of the
// configuration is taken, as by another batch, is a warning.
func (m Metrics) Serve(
	ctx context.Context, configured bool, stderr io.Writer, gather func() []*prometheus.Family,
) (*prometheus.Server, error) {
	wrong := func(err error) (*prometheus.Server, error) {
		return nil, &output.Failure{Code: controller.ExitConfiguration, Err: err}
	}
	c := prometheus.Config{Address: m.address, TokenFile: m.token}
	switch {
	case m.address != "":
		if err := c.Check("--metrics"); err != nil {
			return wrong(fmt.Errorf("%w with --metrics-token", err))
		}
	case m.token != "":
		return wrong(errors.New("--metrics-token without --metrics"))
	case configured:
		of, err := readConfig()
		if err != nil {
			return wrong(err)
		}
		c = of.metrics
	}
	if c.Address == "" {
		return nil, nil
	}
	s, err := prometheus.Listen(ctx, c, func() []*prometheus.Family {
		return append(gather(), prometheus.New(prometheus.Gauge, "agentsh_build_info", "The version of the program, as a label.").
			Add(1, "program", "agentctl", "version", cmp.Or(output.Version, "unknown")))
	})
	switch {
	case err != nil && m.address == "":
		fmt.Fprintf(stderr, "agentctl: warning: no counts for Prometheus: %v\n", err)
		return nil, nil
	case err != nil:
		return wrong(err)
	}
	fmt.Fprintf(stderr, "agentctl: counts for Prometheus at %s\n", s.URL())
	return s, nil
}
