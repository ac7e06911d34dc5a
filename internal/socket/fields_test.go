package socket

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fields is a file of a key with fields after it.
func fields(t *testing.T, lines string) string {
	t.Helper()
	key, err := os.ReadFile(keyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "with-fields")
	if err := os.WriteFile(name, append(key, lines...), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

const token = "the-token-of-a-preview"

func TestFieldsOfRequestsComeWithTheKey(t *testing.T) {
	for _, tt := range []struct {
		name, address, lines string
		want                 http.Header
		fails                string
	}{
		{"a token", "wss://h.preview.bl.run/", "\nx-blaxel-preview-token:  " + token + " \r\n",
			http.Header{"X-Blaxel-Preview-Token": {token}}, ""},
		{"two", "ws://127.0.0.1:1/", "A: b\nC: " + token, http.Header{"A": {"b"}, "C": {token}}, ""},
		{"none", "tcp://h:1", "\n\n", nil, ""},
		{"in the clear", "ws://h/", "A: " + token, nil, "wss://HOST"},
		{"in the clear at a name", "ws://localhost/", "A: " + token, nil, "wss://HOST"},
		{"no requests", "tcp://h:1", "A: " + token, nil, "only ws:// and wss://"},
		{"no field", "wss://h/", "A: b\n" + token, nil, ":3: no field"},
		{"no value", "wss://h/", "A:", nil, ":2: no field"},
		{"a name with a blank", "wss://h/", "A b: " + token, nil, ":2: no field"},
		{"a field of the protocol", "wss://h/", "sec-websocket-key: " + token, nil, "agentctl writes Sec-Websocket-Key itself"},
		{"the host", "wss://h/", "host: " + token, nil, "agentctl writes Host itself"},
		{"twice", "wss://h/", "A: b\na: " + token, nil, "A is there twice"},
		{"characters", "wss://h/", "A: " + token + "\u00e9", nil, "not ASCII"},
		{"many", "wss://h/", "A: b\nB: b\nC: b\nD: b\nE: b\nF: b\nG: b\nH: b\nI: b\n", nil, "too many"},
		{"long", "wss://h/", "A: " + strings.Repeat("x", maxKeyFile), nil, "16 KiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, err := ParseAddress(tt.address)
			if err != nil {
				t.Fatal(err)
			}
			name := fields(t, tt.lines)
			a, key, err := a.ReadPlace(name)
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) || strings.Contains(err.Error(), token) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || key == nil || len(a.header) != len(tt.want) || strings.Contains(a.String(), token) {
				t.Errorf("%v, %v", a.header, err)
			}
			for field := range tt.want {
				if a.header.Get(field) != tt.want.Get(field) {
					t.Errorf("%v", a.header)
				}
			}
			// The place gets no such file.
			if _, err := ReadKey(name); len(tt.want) > 0 &&
				(err == nil || !strings.Contains(err.Error(), "head -n 1") || strings.Contains(err.Error(), token)) {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestAGatewayGetsItsToken has one before the place, which sends those with another token away.
func TestAGatewayGetsItsToken(t *testing.T) {
	name := fields(t, "X-Blaxel-Preview-Token: "+token+"\n")
	key, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	alone := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(alone, key[:strings.IndexByte(string(key), '\n')], 0o600); err != nil {
		t.Fatal(err)
	}
	place := listenAt(t, "ws:127.0.0.1:0", "ws://%s/", alone, echo)
	to, err := url.Parse(strings.Replace(place.String(), "ws://", "http://", 1))
	if err != nil {
		t.Fatal(err)
	}
	wanted, moved := token, ""
	proxy := httputil.NewSingleHostReverseProxy(to)
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case moved != "":
			http.Redirect(w, r, moved, http.StatusTemporaryRedirect)
		case r.Header.Get("X-Blaxel-Preview-Token") != wanted:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			proxy.ServeHTTP(w, r)
		}
	}))
	defer gateway.Close()
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("another host is asked") }))
	defer other.Close()
	through, err := ParseAddress(strings.Replace(gateway.URL, "http://", "ws://", 1) + "/")
	if err != nil {
		t.Fatal(err)
	}
	through, k, err := through.ReadPlace(name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), through, k, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	<-c.Gone()
	for _, change := range []func(){func() { wanted = "another" }, func() { moved = other.URL }} {
		change()
		if _, err := Dial(t.Context(), through, k, os.Stderr); err == nil || strings.Contains(err.Error(), token) {
			t.Errorf("%v", err)
		}
	}
}
