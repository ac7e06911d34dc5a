package provider

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"agentsh/controller/harness"
)

// helperOf is a helper whose program is a shell script.
func helperOf(t *testing.T, script string, names ...string) Helper {
	t.Helper()
	name := filepath.Join(t.TempDir(), "helper")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		names = []string{"TOKEN"}
	}
	return Helper{
		Provider: "p",
		At:       harness.Origin{File: "p.yaml", Line: 3, Column: 1},
		Argv:     []string{name, "arg"},
		Names:    names,
		Timeout:  time.Minute,
	}
}

var environ = []string{"PATH=/usr/bin:/bin", "FROM_HOST=of-the-host-8841"}

func TestAHelperPrintsValues(t *testing.T) {
	const at = "2099-01-22T10:15:00Z"
	for name, tt := range map[string]struct {
		script  string
		names   []string
		want    string
		expires string
	}{
		"a line":              {"echo secret-value", nil, "map[TOKEN:secret-value]", ""},
		"without a line end":  {"printf secret-value", nil, "map[TOKEN:secret-value]", ""},
		"of its environment":  {`printf '%s' "$FROM_HOST"`, nil, "map[TOKEN:of-the-host-8841]", ""},
		"spaces in it":        {"echo 'a secret value'", nil, "map[TOKEN:a secret value]", ""},
		"an object":           {`echo '{"value": "secret-value"}'`, nil, "map[TOKEN:secret-value]", ""},
		"with its end":        {`echo '{"value": "secret-value", "expires": "` + at + `"}'`, nil, "map[TOKEN:secret-value]", at},
		"several":             {`echo '{"values": {"A": "secret-a-value", "B": "secret-b-value"}, "expires": "` + at + `"}'`, []string{"A", "B"}, "map[A:secret-a-value B:secret-b-value]", at},
		"noise on the stderr": {"echo token-of-noise >&2; echo secret-value", nil, "map[TOKEN:secret-value]", ""},
	} {
		p, err := helperOf(t, tt.script, tt.names...).Run(t.Context(), environ)
		if err != nil || fmt.Sprint(p.Values) != tt.want {
			t.Errorf("%s: %v, %v", name, p.Values, err)
		}
		if got := ""; !p.Expires.IsZero() {
			if got = p.Expires.UTC().Format(time.RFC3339); got != tt.expires {
				t.Errorf("%s: expires %s", name, got)
			}
		} else if tt.expires != "" {
			t.Errorf("%s: has no end", name)
		}
	}
}

func TestWhatAHelperDoesWrongIsNamedWithoutItsOutput(t *testing.T) {
	for name, tt := range map[string]struct {
		script, says string
		bad          bool
	}{
		"it fails":               {"echo secret-value; echo 'no login: run x login' >&2; exit 3", "exit status 3: no login: run x login", false},
		"it is killed":           {"echo secret-value; kill -9 $$", "killed by signal 9", false},
		"nothing":                {"true", "an empty value of TOKEN", true},
		"a short value":          {"echo short", "less than 8 bytes", true},
		"two lines":              {"echo secret-value; echo secret-value", "more than one line", true},
		"control characters":     {`printf 'secret-value\033[2J'`, "control characters", true},
		"too much":               {"head -c 100000 /dev/zero | tr '\\0' x", "more than 65536 bytes", true},
		"broken JSON":            {`echo '{"value": "secret-value"'`, "not one object", true},
		"an unknown key":         {`echo '{"value": "secret-value", "token": "secret-value"}'`, "not one object", true},
		"two objects":            {`echo '{"value": "secret-value"}{"value": "secret-value"}'`, "not one object", true},
		"another type":           {`echo '{"value": ["secret-value"]}'`, "not one object", true},
		"no value":               {`echo '{"expires": "2099-01-22T10:15:00Z"}'`, "an empty value of TOKEN", true},
		"of another name":        {`echo '{"values": {"OTHER": "secret-value"}}'`, "no value of TOKEN", true},
		"of one name too many":   {`echo '{"values": {"TOKEN": "secret-value", "OTHER": "secret-value"}}'`, "values of other credentials", true},
		"both":                   {`echo '{"value": "secret-value", "values": {"TOKEN": "secret-value"}}'`, "both value and values", true},
		"a time of another form": {`echo '{"value": "secret-value", "expires": "tomorrow"}'`, "no time of RFC 3339", true},
		"that has expired":       {`echo '{"value": "secret-value", "expires": "2001-01-22T10:15:00Z"}'`, "have expired at 2001-01-22T10:15:00Z", true},
	} {
		_, err := helperOf(t, tt.script).Run(t.Context(), environ)
		var of *HelperError
		if !errors.As(err, &of) || of.Bad != tt.bad || !strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "secret-value") ||
			!strings.HasPrefix(err.Error(), "p.yaml:3:1: command of the provider p: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	h := helperOf(t, "")
	h.Argv = []string{"no-such-helper"}
	if _, err := h.Run(t.Context(), environ); err == nil || !strings.Contains(err.Error(), "no-such-helper is not on the PATH") {
		t.Errorf("a missing program: %v", err)
	}
}

func TestAHelperThatHangsIsEndedWithItsChildren(t *testing.T) {
	h := helperOf(t, "sleep 1000 & sleep 1000")
	h.Timeout = 100 * time.Millisecond
	began := time.Now()
	_, err := h.Run(t.Context(), environ)
	if err == nil || !strings.Contains(err.Error(), "did not end within 100ms") || time.Since(began) > time.Minute {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

func TestValuesAreRenewedBeforeTheirEnd(t *testing.T) {
	now := time.Now()
	if due := (Printed{Got: now, Expires: now.Add(time.Hour)}).Due(); due != now.Add(45*time.Minute) {
		t.Errorf("due %s", due.Sub(now))
	}
	for _, year := range []int{2100, 2150, 2200, 2400, 9999} { // a helper may say never like this
		expires := time.Date(year, 12, 31, 0, 0, 0, 0, time.UTC)
		if due := (Printed{Got: now, Expires: expires}).Due(); due.Before(now.Add(24*time.Hour)) || due.After(expires) {
			t.Errorf("values until %d are due at %s", year, due)
		}
	}
	if due := (Printed{Got: now}).Due(); !due.IsZero() {
		t.Errorf("due %s", due)
	}
	h := helperOf(t, "echo secret-value")
	h.Lifetime = time.Minute
	p, err := h.Run(t.Context(), environ)
	if left := p.Expires.Sub(p.Got); err != nil || left != time.Minute {
		t.Errorf("%s, %v", left, err)
	}
}

func FuzzAHelpersOutputIsReadOrRefusedWithoutIt(f *testing.F) {
	f.Add("secret-value\n", "A")
	f.Add(`{"value": "secret-value", "expires": "2099-01-22T10:15:00Z"}`, "A")
	f.Add(`{"values": {"A": "secret-value"}}`, "A")
	f.Fuzz(func(t *testing.T, out, name string) {
		h := Helper{Names: []string{name}}
		p, err := h.read([]byte(out), time.Now())
		if err == nil && len(p.Values[name]) < 8 || err != nil && len(out) > 20 && strings.Contains(err.Error(), out) {
			t.Fatalf("%q: %v, %v", out, p, err)
		}
	})
}
