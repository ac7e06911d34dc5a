package telemetry

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlplog/otlploghttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	"google.golang.org/protobuf/proto"
)

// client sends with OpenTelemetry's exporters. Their errors tell neither how many items a collector
// rejected nor when it wants to be asked again. So the client is the transport of their requests,
// reads each answer first, and decides itself what is sent again.
type client struct {
	http    *http.Client
	base    *url.URL
	headers map[string]string

	logs    *otlploghttp.Exporter
	spans   *otlptrace.Exporter
	metrics *otlpmetrichttp.Exporter
}

// newClient follows no redirects, which could lead the headers elsewhere.
func newClient(base *url.URL, headers map[string]string) (*client, error) {
	if base.Path == "" {
		base = base.JoinPath("/") // else the path of a request would have no slash in front
	}
	c := &client{base: base, headers: headers}
	c.http = &http.Client{
		Transport: &transport{to: c, over: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
			MaxResponseHeaderBytes: maxAnswer, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
		}},
		Timeout:       requestTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	// The exporters take what an option leaves open from variables of the environment. The transport
	// decides the address and the headers.
	var errs [3]error
	ctx := context.Background() // used for nothing that lasts
	c.logs, errs[0] = otlploghttp.New(ctx, otlploghttp.WithHTTPClient(c.http), otlploghttp.WithURLPath("/v1/logs"),
		otlploghttp.WithEndpoint(placeholder), otlploghttp.WithTimeout(requestTime), otlploghttp.WithRetry(otlploghttp.RetryConfig{}),
		otlploghttp.WithCompression(otlploghttp.GzipCompression), otlploghttp.WithHeaders(map[string]string{}))
	c.spans, errs[1] = otlptracehttp.New(ctx, otlptracehttp.WithHTTPClient(c.http), otlptracehttp.WithURLPath("/v1/traces"),
		otlptracehttp.WithEndpoint(placeholder), otlptracehttp.WithTimeout(requestTime), otlptracehttp.WithRetry(otlptracehttp.RetryConfig{}),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression), otlptracehttp.WithHeaders(map[string]string{}),
		otlptracehttp.WithEncoding(otlptracehttp.EncodingProtobuf))
	c.metrics, errs[2] = otlpmetrichttp.New(ctx, otlpmetrichttp.WithHTTPClient(c.http), otlpmetrichttp.WithURLPath("/v1/metrics"),
		otlpmetrichttp.WithEndpoint(placeholder), otlpmetrichttp.WithTimeout(requestTime), otlpmetrichttp.WithRetry(otlpmetrichttp.RetryConfig{}),
		otlpmetrichttp.WithCompression(otlpmetrichttp.GzipCompression), otlpmetrichttp.WithHeaders(map[string]string{}))
	return c, errors.Join(errs[:]...)
}

// placeholder is the host of requests before the transport replaces it.
const placeholder = "collector.invalid"

// again is the error of a request that may be sent again.
type again struct {
	after time.Duration // that the collector asks for; 0: it does not
	err   error
}

func (a *again) Error() string { return a.err.Error() }
func (a *again) Unwrap() error { return a.err }

// answer is what a collector said to one request.
type answer struct {
	asked    bool // the request has left the exporter
	status   int  // 0: there was no answer
	header   http.Header
	rejected int64
	why      string // they were rejected
}

type answerKey struct{}

// post has one exporter send one request for a signal: logs, traces or metrics. It returns what the
// collector has rejected of it. The error is an [*again] if the request may be sent again.
func (c *client) post(ctx context.Context, signal string, export func(context.Context) error) (rejected int64, err error) {
	var a answer
	err = export(context.WithValue(ctx, answerKey{}, &a))
	switch {
	case a.status >= 200 && a.status <= 299:
		if a.rejected == 0 {
			return 0, nil
		}
		return a.rejected, fmt.Errorf("the collector rejected them: %s", a.why)
	case a.status != 0:
		err = fmt.Errorf("%s answered %d %s", signal, a.status, http.StatusText(a.status))
		switch a.status {
		case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return 0, &again{err: err, after: retryAfter(a.header.Get("Retry-After"))}
		}
		return 0, err
	case err == nil:
		return 0, fmt.Errorf("%s: nothing was sent", signal)
	}
	var at *url.Error
	if errors.As(err, &at) {
		err = at.Err // without the address
	}
	if !a.asked {
		return 0, err // it cannot be sent
	}
	return 0, &again{err: err}
}

// transport sends requests of the exporters to the collector, and reads the answers.
type transport struct {
	to   *client
	over *http.Transport
}

// RoundTrip implements [http.RoundTripper]. The response has no body: it was read.
func (t *transport) RoundTrip(from *http.Request) (*http.Response, error) {
	a, _ := from.Context().Value(answerKey{}).(*answer)
	if a == nil {
		return nil, errors.New("a request of nobody")
	}
	a.asked = true
	req := from.Clone(from.Context())
	req.URL = t.to.base.JoinPath(from.URL.Path)
	req.Host = ""
	req.Header = http.Header{"Content-Type": from.Header["Content-Type"], "Content-Encoding": from.Header["Content-Encoding"]}
	if u := req.URL.User; u != nil {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
	}
	for name, value := range t.to.headers {
		req.Header.Set(name, value)
	}
	resp, err := t.over.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	_ = resp.Body.Close() // it was read as far as it matters
	if err != nil {
		return nil, err
	}
	if len(text) > maxAnswer {
		text = nil // too long to matter
	}
	a.rejected, a.why = partial(text)
	a.status, a.header = resp.StatusCode, resp.Header
	resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(nil)), 0
	return resp, nil
}

// CloseIdleConnections is called by [http.Client.CloseIdleConnections].
func (t *transport) CloseIdleConnections() { t.over.CloseIdleConnections() }

// retryAfter reads the header of RFC 9110: seconds or a date. It is at most [maxRetryAfter].
func retryAfter(value string) time.Duration {
	d := time.Duration(0)
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		d = time.Duration(n) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		d = time.Until(at)
	}
	return min(max(d, 0), maxRetryAfter)
}

// partial reads what a collector that has answered with success rejects. The responses of all signals
// have the same fields.
func partial(response []byte) (rejected int64, why string) {
	var said collogs.ExportLogsServiceResponse
	_ = proto.Unmarshal(response, &said) // of a response that is no message, what comes before the mistake counts
	p := said.GetPartialSuccess()
	if n := p.GetRejectedLogRecords(); n > 0 {
		return min(n, 1<<31), p.GetErrorMessage()
	}
	return 0, ""
}
