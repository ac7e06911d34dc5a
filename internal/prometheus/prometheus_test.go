package prometheus

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// The reader of Prometheus finds what was written, whatever the values of labels are.
func TestPrometheusReadsTheText(t *testing.T) {
	hostile := []string{
		"a\"b", "back\\slash", "new\nline", "\xff\xfe", "{}", "\x1b[2J", strings.Repeat("x", 1<<16), strings.Repeat("x", 1<<16) + "y", "",
	}
	f := New(Counter, "denials_total", "Denials by rule.")
	for _, h := range hostile {
		f.Add(1, "rule", h, "type", "file")
	}
	f.Add(2, "rule", hostile[0], "type", "file")
	var b bytes.Buffer
	write(&b, []*Family{f, New(Gauge, "cost", "What it cost.").Add(0.25)})
	parser := expfmt.NewTextParser(model.UTF8Validation)
	read, err := parser.TextToMetricFamilies(&b)
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, m := range read["denials_total"].GetMetric() {
		if sum += m.GetCounter().GetValue(); m.GetLabel()[0].GetValue() == hostile[0] && m.GetCounter().GetValue() != 3 {
			t.Errorf("a series counts %v", m)
		}
		if n := len(m.GetLabel()[0].GetValue()); n > 4*maxValue {
			t.Errorf("a label has %d bytes", n)
		}
	}
	if want := len(hostile); len(read["denials_total"].GetMetric()) != want || sum != float64(len(hostile)+2) {
		t.Errorf("%d series with %v in all, want %d", len(read["denials_total"].GetMetric()), sum, want)
	}
	if got := read["cost"].GetMetric()[0].GetGauge().GetValue(); got != 0.25 || read["cost"].GetHelp() != "What it cost." {
		t.Errorf("%v", read["cost"])
	}
}

func TestSeriesAreBounded(t *testing.T) {
	f := New(Counter, "x_total", "X.")
	for i := range 10 * maxSeries {
		f.Add(1, "rule", fmt.Sprint(i), "type", "file")
	}
	if len(f.series) != maxSeries+1 || f.series[`{rule="other",type="other"}`] != 9*maxSeries {
		t.Errorf("%d series, of others %v", len(f.series), f.series[`{rule="other",type="other"}`])
	}
}

// start serves one family that counts how often it was asked for.
func start(t *testing.T, c Config) *Server {
	t.Helper()
	asked := 0.0
	s, err := Listen(t.Context(), c, func() []*Family {
		asked++
		return []*Family{New(Counter, "asked_total", "How often.").Add(asked)}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// get asks a server, and returns the status and the text.
func get(t *testing.T, method, url string, change func(*http.Request)) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(r)
	}
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(data)
}

func tokenFile(t *testing.T) (name, token string) {
	t.Helper()
	name, token = filepath.Join(t.TempDir(), "token"), base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))
	if err := os.WriteFile(name, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name, token
}

func TestOnlyTheRightRequestsAreAnswered(t *testing.T) {
	file, token := tokenFile(t)
	open, guarded := start(t, Config{Address: "127.0.0.1:0"}), start(t, Config{Address: "127.0.0.1:0", TokenFile: file})
	_, port, err := net.SplitHostPort(open.listen.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	for _, c := range []struct {
		name   string
		at     *Server
		method string
		path   string
		change func(*http.Request)
		want   int
	}{
		{"a plain request", open, "GET", Path, nil, 200},
		{"the name of this machine", open, "GET", Path, host("localhost:" + port), 200},
		{"a name that leads here", open, "GET", Path, host("evil.example:" + port), 421},
		{"no port", open, "GET", Path, host("127.0.0.1"), 421},
		{"a page of another site", open, "GET", Path, header("Origin", "http://evil.example"), 403},
		{"a link of another site", open, "GET", Path, header("Sec-Fetch-Site", "cross-site"), 403},
		{"another path", open, "GET", "/", nil, 404},
		{"another method", open, "POST", Path, nil, 405},
		{"without the token", guarded, "GET", Path, nil, 401},
		{"with another token", guarded, "GET", Path, header("Authorization", "Bearer "+token[1:]), 401},
		{"with the token", guarded, "GET", Path, header("Authorization", "Bearer "+token), 200},
		{"the token, and another name", guarded, "GET", Path, func(r *http.Request) {
			r.Host = "evil.example"
			r.Header.Set("Authorization", "Bearer "+token)
		}, 421},
	} {
		got, text := get(t, c.method, strings.TrimSuffix(c.at.URL(), Path)+c.path, c.change)
		if got != c.want || (got == 200) != strings.Contains(text, "asked_total 1\n") || strings.Contains(text, token) {
			t.Errorf("%s: %d, want %d\n%s", c.name, got, c.want, text)
		}
	}
}

// Who asks all the time, or keeps connections, costs one count a second and a few descriptors.
func TestManyRequestsCostLittle(t *testing.T) {
	s := start(t, Config{Address: "127.0.0.1:0"})
	var kept []net.Conn
	for range 3 * maxConnections {
		c, err := net.Dial("tcp", s.listen.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		kept = append(kept, c)
	}
	closed := 0
	for _, c := range kept[maxConnections:] { // accepted in their order: these are above the bound
		if _, err := c.Read(make([]byte, 1)); err != nil {
			closed++
		}
	}
	if closed != 2*maxConnections {
		t.Errorf("%d of %d connections were closed", closed, 3*maxConnections)
	}
	for _, c := range kept[:maxConnections/2] {
		_ = c.Close()
	}
	s.text()
	s.mu.Lock()
	s.made = s.made.Add(time.Hour) // the second does not end
	s.mu.Unlock()
	var all sync.WaitGroup
	for range 64 {
		all.Go(func() { s.text() })
	}
	all.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !bytes.Contains(s.last, []byte("asked_total 1\n")) {
		t.Errorf("counted for each request: %s", s.last)
	}
}

func TestAddressesAndTokensAreChecked(t *testing.T) {
	file, _ := tokenFile(t)
	short := filepath.Join(t.TempDir(), "short")
	if err := os.WriteFile(short, []byte("c2hvcnQ="), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Address: "localhost:9464"}, "write an IP address and a port, as in 127.0.0.1:9464"},
		{Config{Address: ":9464"}, "write an IP address and a port"},
		{Config{Address: "0.0.0.0:9464"}, "write 127.0.0.1:9464, or name a file with a token"},
		{Config{Address: "[::]:9464"}, "other machines reach this address"},
		{Config{Address: "127.0.0.1:0", TokenFile: short}, "32 bytes"},
		{Config{Address: "127.0.0.1:0", TokenFile: "nosuch"}, "no such file"},
		{Config{Address: "0.0.0.0:0", TokenFile: file}, ""},
		{Config{Address: "[::1]:0"}, ""},
	} {
		s, err := Listen(context.Background(), c.config, func() []*Family { return nil })
		s.Close()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			if err != nil && strings.Contains(err.Error(), "cannot assign requested address") {
				continue // a machine without IPv6
			}
			t.Errorf("%+v: %v, want %q", c.config, err, c.want)
		}
	}
}
