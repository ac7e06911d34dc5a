package rpcid

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestTheIDOfARequestIsFoundInAnyLine(t *testing.T) {
	deep := strings.Repeat("[", 20_000)
	for line, want := range map[string]string{
		`{"id":1,"method":"a"}`: "1",
		`{"method":"a","params":{"id":2,"x":["id",{"id":3}]},"id" : "x\"}{y" }`: `"x\"}{y"`,
		`{"id":1,"method":"a","id":2}`:                                          "2",
		`{"id":1,"method":"a","params":` + deep:                                 "1",
		`{"id":1,"method":"a","params":"` + deep:                                "1",
		`{"method":"a","id":12`:                                                 "12",
		`{"method":"a","id":"cut`:                                               "",
		`{"method":"a","id":null}`:                                              "",
		`{"method":"a","id":true}`:                                              "",
		`{"method":"a","id":[1]}`:                                               "",
		`{"method":"a","id":{"id":1}}`:                                          "",
		`{"id":1,"result":{"method":"a"}}`:                                      "",
		`{"x":"id","y":"method","id":1}`:                                        "",
		`[{"id":1,"method":"a"}]`:                                               "",
		`{"method":"a","id":"` + strings.Repeat("i", 200) + `"}`:                "",
		`{"` + strings.Repeat("k", 1000) + `":1,"method":1,"id":2}`:             "2",
		"": "",
	} {
		if got := string(Find([]byte(line))); got != want {
			t.Errorf("%.60s: %q, want %q", line, got, want)
		}
	}
}

// FuzzFind compares it with a reader of whole objects.
func FuzzFind(f *testing.F) {
	f.Add([]byte(`{"method":"a","params":{"id":2},"id":"x"}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		id := Find(line)
		if id != nil && !json.Valid(id) {
			t.Fatalf("%q", id)
		}
		var o map[string]json.RawMessage
		if json.Unmarshal(line, &o) != nil || strings.Contains(string(line), `\`) { // keys may be escaped
			return
		}
		want := o["id"]
		if _, method := o["method"]; !method || len(want) > maxID || len(want) == 0 || strings.ContainsAny(string(want[:1]), "tfn{[") {
			want = nil
		}
		if string(id) != string(want) {
			t.Errorf("%q: %q, want %q", line, id, want)
		}
	})
}
