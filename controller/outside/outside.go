// Package outside sends requests of the controller itself. They go through the
// proxy that sessions have: the policy of the run judges them, a credential is
// only its placeholder until the proxy puts in the value, and each one is an event.
package outside

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"

	"agentsh/internal/layout"
	"agentsh/internal/wire"
	"agentsh/policy"
	"agentsh/supervisor/audit"
	"agentsh/supervisor/egress"
)

// Options describe a client.
type Options struct {
	Policy      *policy.Policy
	Config      string // configuration file of the supervisor; empty: that of this machine, if there is one
	Credentials []wire.Credential
	Events      string           // file of the events, chained as an audit log is
	OnEvent     func(wire.Event) // gets each event, too; nil: nobody
}

// Client is an [http.RoundTripper]. It is safe for concurrent use until Close.
type Client struct {
	proxy     *egress.Proxy
	log       *audit.Log
	transport *http.Transport
	served    chan error
	onEvent   func(wire.Event)

	one    sync.Mutex // one request at a time, up to the header of its answer
	mu     sync.Mutex
	denied *Denied // since the last request began
}

// Denied is the error of a request that the policy or a credential's endpoints
// refuse.
type Denied struct{ Event wire.Event }

// Error has the reason and the rule.
func (d *Denied) Error() string {
	text := "denied: " + d.Event.Message
	if r := d.Event.Rule; r != nil {
		text += " (rule " + r.Name
		if at := r.Position(); at != "" {
			text += " " + at
		}
		text += ")"
	}
	return text
}

// ErrConfig is the error of a configuration file that cannot be read.
var ErrConfig = errors.New("the configuration of the supervisor has a problem")

// Open starts a proxy for this process.
func Open(o Options) (*Client, error) {
	settings, err := egress.ReadSettings(cmp.Or(o.Config, layout.Config), o.Config == "")
	if err != nil {
		return nil, fmt.Errorf("%w:\n%w", ErrConfig, err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &Client{served: make(chan error, 1), onEvent: o.OnEvent}
	if c.log, err = audit.Open(o.Events, audit.Options{KeyFile: o.Events + ".key"}); err != nil {
		return nil, err
	}
	caller := egress.Caller{Process: wire.Process{PID: os.Getpid(), Exe: self}}
	c.proxy, err = egress.New(egress.Options{
		Policy: func() *policy.Policy { return o.Policy }, Emit: c.emit, Credentials: Credentials(o.Credentials),
		Resolvers: settings.Resolvers, Roots: settings.Roots, Identify: func(net.Conn) (egress.Caller, error) { return caller, nil },
	})
	if err != nil {
		return nil, errors.Join(err, c.log.Close())
	}
	if err := c.serve(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// serve serves the proxy for this process alone: no other one can connect to it.
func (c *Client) serve() error {
	roots, err := x509.SystemCertPool()
	if err != nil {
		return err
	}
	roots.AppendCertsFromPEM(c.proxy.CA())
	own := &pairs{accepted: make(chan net.Conn), done: make(chan struct{})}
	go func() { c.served <- c.proxy.ServeProxy(own) }()
	c.transport = http.DefaultTransport.(*http.Transport).Clone()
	c.transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy.invalid"})
	c.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return own.dial(ctx) }
	c.transport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	return nil
}

// Credentials are credentials as the proxy takes them.
func Credentials(list []wire.Credential) []egress.Credential {
	out := make([]egress.Credential, 0, len(list))
	for _, x := range list {
		out = append(out, egress.Credential(x))
	}
	return out
}

// emit records an event.
func (c *Client) emit(e wire.Event) error {
	if e.Decision == "deny" {
		c.mu.Lock()
		c.denied = &Denied{e}
		c.mu.Unlock()
	}
	if c.onEvent != nil {
		c.onEvent(e)
	}
	return c.log.Append(e)
}

// RoundTrip sends one request. A refusal is a [*Denied].
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	c.one.Lock() // the denial is this request's
	defer c.one.Unlock()
	c.mu.Lock()
	c.denied = nil
	c.mu.Unlock()
	res, err := c.transport.RoundTrip(r)
	c.mu.Lock()
	denied := c.denied
	c.mu.Unlock()
	if denied == nil {
		return res, err
	}
	if err == nil {
		_ = res.Body.Close() // the proxy's own answer
	}
	return nil, denied
}

// Close ends the proxy and all its connections.
func (c *Client) Close() error {
	var err error
	if c.transport != nil {
		c.transport.CloseIdleConnections()
	}
	err = c.proxy.Close()
	if c.transport != nil {
		if end := <-c.served; !errors.Is(end, egress.ErrClosed) && !errors.Is(end, net.ErrClosed) {
			err = errors.Join(err, end)
		}
	}
	err = errors.Join(err, c.log.Close())
	if err != nil {
		return fmt.Errorf("proxy of the controller: %w", err)
	}
	return nil
}
