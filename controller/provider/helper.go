package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"slices"
	"strings"
	"time"

	"agentsh/controller/harness"
	"agentsh/controller/sandbox/host"
	"agentsh/internal/text"
	"agentsh/internal/wire"
)

// Helper is a program of the operator that prints credentials of a provider.
type Helper struct {
	Provider string         // name
	At       harness.Origin // of command
	Argv     []string
	Names    []string      // of the credentials that it prints
	Lifetime time.Duration // of values that it prints without their end; 0: they have none
	Timeout  time.Duration
}

// Printed are the values that a [Helper] has printed.
type Printed struct {
	Values  map[string]string // by the name of the credential
	Got     time.Time
	Expires time.Time // zero: never
}

// DefaultHelperTime is the longest time of a helper that names none.
const DefaultHelperTime = 30 * time.Second

// maxHelperOutput bounds what a helper prints, in bytes.
const maxHelperOutput = 64 << 10

// Helpers are the helpers of the providers of a harness, sorted by their names.
func Helpers(h *harness.Harness) []Helper {
	var out []Helper
	for _, p := range h.Definitions {
		names := p.Printed()
		if len(names) == 0 {
			continue
		}
		one := Helper{Provider: p.Name.V, At: p.Command[0].At, Names: names, Timeout: DefaultHelperTime}
		for _, a := range p.Command {
			one.Argv = append(one.Argv, a.V)
		}
		one.Lifetime = time.Duration(p.Lifetime.V) * time.Second
		if s := p.Timeout.V; s > 0 {
			one.Timeout = time.Duration(s) * time.Second
		}
		out = append(out, one)
	}
	slices.SortFunc(out, func(a, b Helper) int { return strings.Compare(a.Provider, b.Provider) })
	return out
}

// HelperError is why a helper gave no values. Its text has nothing of what the helper printed on its
// standard output.
type HelperError struct {
	Helper Helper
	Bad    bool // what it printed is wrong; otherwise it failed
	Err    error
}

func (e *HelperError) Error() string {
	return fmt.Sprintf("%s: command of the provider %s: %v", e.Helper.At, e.Helper.Provider, e.Err)
}

func (e *HelperError) Unwrap() error { return e.Err }

// Run starts the helper with an environment and reads the values. Nothing of it is left when Run
// returns. The error is a [*HelperError].
func (h Helper) Run(ctx context.Context, environ []string) (Printed, error) {
	bad := func(wrong bool, format string, args ...any) (Printed, error) {
		return Printed{}, &HelperError{h, wrong, fmt.Errorf(format, args...)}
	}
	var out capped
	started := time.Now()
	res, err := host.Run(ctx, host.Command{Argv: h.Argv, Env: environ, Timeout: h.Timeout, Stdout: &out, MaxOutput: 4 << 10})
	switch {
	case errors.Is(err, host.ErrTimeout):
		return bad(false, "%s did not end within %s", h.Argv[0], h.Timeout)
	case errors.Is(err, host.ErrNotFound):
		return bad(false, "%s is not on the PATH", h.Argv[0])
	case err != nil:
		return bad(false, "%w", err)
	case res.Signal != 0 || res.Code != 0:
		return bad(false, "%s: %s", h.Argv[0], ended(res))
	case out.over:
		return bad(true, "it printed more than %d bytes", maxHelperOutput)
	}
	p, err := h.read(out.Bytes(), started)
	if err != nil {
		return bad(true, "%w", err)
	}
	return p, nil
}

// ended describes the end of a helper that failed, with the last line of its standard error.
func ended(res host.Result) string {
	res.Stdout = nil
	return text.Short(strings.TrimSpace(res.Err().Error()), 300)
}

// capped is a buffer that drops what is too much.
type capped struct {
	bytes.Buffer
	over bool
}

func (c *capped) Write(p []byte) (int, error) {
	if c.Len()+len(p) > maxHelperOutput {
		c.over = true
		return len(p), nil
	}
	return c.Buffer.Write(p)
}

// printedJSON is what a helper may print instead of a plain value.
type printedJSON struct {
	Value   string            `json:"value"`   // of the only credential
	Values  map[string]string `json:"values"`  // by the name of the credential
	Expires string            `json:"expires"` // RFC 3339
}

// read reads what the helper printed. Its errors have nothing of that.
func (h Helper) read(data []byte, got time.Time) (Printed, error) {
	p := Printed{Got: got}
	if h.Lifetime > 0 {
		p.Expires = got.Add(h.Lifetime)
	}
	plain := strings.TrimRight(string(data), "\r\n")
	switch {
	case strings.HasPrefix(strings.TrimSpace(plain), "{"):
		if err := h.readJSON(data, &p); err != nil {
			return Printed{}, err
		}
	case len(h.Names) != 1:
		return Printed{}, fmt.Errorf("it has to print one JSON object with values, as %d credentials are of it", len(h.Names))
	default:
		p.Values = map[string]string{h.Names[0]: plain}
	}
	for _, name := range h.Names {
		switch v, has := p.Values[name]; {
		case !has:
			return Printed{}, fmt.Errorf("it printed no value of %s", name)
		case v == "":
			return Printed{}, fmt.Errorf("it printed an empty value of %s", name)
		case len(v) < wire.ShortestCredential:
			return Printed{}, fmt.Errorf(
				"the value of %s has less than %d bytes, and cannot be distinguished from other text",
				name,
				wire.ShortestCredential,
			)
		case strings.ContainsFunc(v, func(r rune) bool { return r < 0x20 || r == 0x7f }):
			return Printed{}, fmt.Errorf("the value of %s has more than one line, or control characters: print the value alone", name)
		}
	}
	if len(p.Values) != len(h.Names) {
		return Printed{}, errors.New("it printed values of other credentials than those of the provider whose value is command")
	}
	if !p.Expires.IsZero() && !p.Expires.After(got) {
		return Printed{}, fmt.Errorf("the values have expired at %s", p.Expires.UTC().Format(time.RFC3339))
	}
	return p, nil
}

func (h Helper) readJSON(data []byte, p *Printed) error {
	var v printedJSON
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil || !errors.Is(d.Decode(new(any)), io.EOF) {
		return errors.New(
			"it printed JSON that is not one object of value or values, and expires",
		) // the library's error may have a part of a value
	}
	switch {
	case v.Value != "" && v.Values != nil:
		return errors.New("it printed both value and values")
	case v.Values != nil:
		p.Values = v.Values
	case len(h.Names) == 1:
		p.Values = map[string]string{h.Names[0]: v.Value}
	default:
		return errors.New("it printed no values")
	}
	if v.Expires == "" {
		return nil
	}
	at, err := time.Parse(time.RFC3339, v.Expires)
	if err != nil {
		return errors.New("expires is no time of RFC 3339, as 2026-01-22T10:15:00Z")
	}
	p.Expires = at
	return nil
}

// Due is when the values are to be renewed: when three quarters of their time are over. Zero: never.
func (p Printed) Due() time.Time {
	if p.Expires.IsZero() {
		return time.Time{}
	}
	return p.Got.Add(p.Expires.Sub(p.Got) / 4 * 3) // a length of time has room for 292 years
}
