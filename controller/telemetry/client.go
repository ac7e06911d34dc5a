package telemetry

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// client sends requests of OTLP over HTTP, with binary protocol buffers. The exporters of the SDK
// are not used: their errors tell neither how many items were rejected nor when to send again.
type client struct {
	http    *http.Client
	base    *url.URL
	headers map[string]string
}

// again is the error of a request that may be sent again.
type again struct {
	after time.Duration // that the collector asks for; 0: it does not
	err   error
}

func (a *again) Error() string { return a.err.Error() }
func (a *again) Unwrap() error { return a.err }

// newClient follows no redirects, which could lead the headers elsewhere.
func newClient(base *url.URL, headers map[string]string) *client {
	return &client{base: base, headers: headers, http: &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12},
			MaxResponseHeaderBytes: maxAnswer, IdleConnTimeout: time.Minute, ForceAttemptHTTP2: true,
		},
		Timeout:       requestTime,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// post sends one request for a signal: logs, traces or metrics. It returns what the collector has
// rejected of it. The error is an [*again] if the request may be sent again.
func (c *client) post(ctx context.Context, signal string, m proto.Message) (rejected int64, err error) {
	data, err := proto.Marshal(m)
	if err != nil {
		return 0, err
	}
	var body bytes.Buffer
	z := gzip.NewWriter(&body)
	_, err = z.Write(data)
	if err = errors.Join(err, z.Close()); err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.JoinPath("v1", signal).String(), &body)
	if err != nil {
		return 0, err
	}
	for name, value := range c.headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("Content-Encoding", "gzip")
	answer, err := c.http.Do(req)
	if err != nil {
		var at *url.Error
		if errors.As(err, &at) {
			err = at.Err // the URL may have a secret
		}
		return 0, &again{err: err}
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return 0, &again{err: err}
	case answer.StatusCode >= 200 && answer.StatusCode <= 299:
		if len(text) > maxAnswer {
			return 0, nil // it was taken; what else it says is too long to matter
		}
		return partial(text)
	}
	err = fmt.Errorf("%s answered %s", signal, answer.Status)
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return 0, &again{err: err, after: retryAfter(answer.Header.Get("Retry-After"))}
	}
	return 0, err
}

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

// partial reads what a collector that has answered with success rejects: field 1 of the response of
// each signal has the number in field 1 and the reason in field 2.
func partial(response []byte) (rejected int64, err error) {
	inner := field(response, 1, protowire.BytesType)
	if inner == nil {
		return 0, nil
	}
	n, size := protowire.ConsumeVarint(field(inner, 1, protowire.VarintType))
	if size < 0 || n == 0 || n > 1<<31 {
		return 0, nil
	}
	return int64(n), fmt.Errorf("the collector rejected them: %s", field(inner, 2, protowire.BytesType))
}

// field is the value of a field of a message; nil: there is none.
func field(message []byte, number protowire.Number, kind protowire.Type) []byte {
	for len(message) > 0 {
		n, typ, size := protowire.ConsumeTag(message)
		if size < 0 {
			return nil
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(n, typ, message); size < 0 {
			return nil
		}
		if n == number && typ == kind {
			if kind == protowire.BytesType {
				value, _ := protowire.ConsumeBytes(message)
				return value
			}
			return message[:size]
		}
		message = message[size:]
	}
	return nil
}
