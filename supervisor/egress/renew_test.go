package egress

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"agentsh/internal/wire"
)

func TestARenewedValueIsUsedNextAndAllOfThemAreScrubbed(t *testing.T) {
	const next, last = "next-value-that-is-secret-2", "the-last-secret-value-of-them-3"
	w := newWorld(t, everything, credentials("Authorization", "", "api.test"))
	var mu sync.Mutex
	var seen []string
	half, rest := make(chan bool), make(chan bool)
	serve := func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		seen = append(seen, r.Header.Get("Authorization"))
		mu.Unlock()
		repeat := func(of ...string) {
			for _, v := range of {
				fmt.Fprintf(rw, "%s %s|", v, base64.StdEncoding.EncodeToString([]byte("x"+v)))
			}
		}
		repeat(value)
		if r.URL.Path == "/long" {
			_ = http.NewResponseController(rw).Flush()
			half <- true
			<-rest
		}
		repeat(next, last)
	}
	w.place(w.web(true, serve), "192.0.2.1", 443, "api.test")
	get := func(c *http.Client, path string, during func()) string {
		t.Helper()
		r, err := http.NewRequest("GET", "https://api.test"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+mark)
		res, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if during != nil {
			during()
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(body)
	}
	renew := func(to string) {
		t.Helper()
		if err := w.p.Renew([]wire.CredentialValue{{Name: "api", Value: to}}); err != nil {
			t.Fatal(err)
		}
	}
	without := func(body string, values ...string) {
		t.Helper()
		for _, v := range values {
			if strings.Contains(body, v) || strings.Contains(body, base64.StdEncoding.EncodeToString([]byte("x" + v))[4:20]) {
				t.Errorf("an answer has %s: %s", v, body)
			}
		}
	}
	for _, second := range []bool{false, true} {
		seen = nil
		c := w.client(second)
		renew(value)
		without(get(c, "/", nil), value)
		// The value is renewed in the middle of an answer, which has the new one then.
		body := get(c, "/long", func() {
			<-half
			renew(next)
			rest <- true
		})
		without(body, value, next)
		without(get(c, "/", nil), value, next)
		renew(last)
		without(get(c, "/", nil), value, next, last)
		want := []string{"Bearer " + value, "Bearer " + value, "Bearer " + next, "Bearer " + last}
		if fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("the server got %q, want %q", seen, want)
		}
	}
}

func TestValuesThatAreNotSoundChangeNothing(t *testing.T) {
	w := newWorld(t, everything, credentials("Authorization", "", "api.test"))
	for _, values := range [][]wire.CredentialValue{
		{{Name: "api", Value: "short"}}, {{Name: "api", Value: "two lines\nof secret"}}, {{Name: "api", Value: "with " + mark}},
		{{Name: "other", Value: "a-sound-secret-value"}}, {{Name: "api", Value: "a-sound-secret-value"}, {Name: "other",
			Value: "another-secret"}},
	} {
		err := w.p.Renew(values)
		if err == nil || strings.Contains(err.Error(), values[0].Value) {
			t.Errorf("%q: %v", values, err)
		}
	}
	if got := w.p.judge.secrets().list[0]; got.Value != value || len(got.former) > 0 {
		t.Errorf("%+v", got.Credential)
	}
}

func TestFormerValuesAreBounded(t *testing.T) {
	w := newWorld(t, everything, credentials("Authorization", "", "api.test"))
	for i := range 200 {
		if err := w.p.Renew([]wire.CredentialValue{{Name: "api", Value: fmt.Sprintf("value-number-%08d", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	s := w.p.judge.secrets()
	if n := len(s.list[0].former); n > maxFormer {
		t.Errorf("%d former forms", n)
	}
	for _, i := range []int{199, 198, 180} {
		if v := fmt.Sprintf("value-number-%08d", i); strings.Contains(s.clean("a "+v+" b"), v) {
			t.Errorf("%s is not scrubbed", v)
		}
	}
}
